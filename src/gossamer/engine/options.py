"""How a run is executed and reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gossamer.accounting import FlopsModel
from gossamer.fields import option
from gossamer.wire import Detail

OnClientError = Literal["stop", "skip"]
Select = Literal["test", "valid"]
Keep = Literal["last", "best"]


@dataclass(frozen=True)
class Options:
    """How a run is executed, protected and reported.

    `reply_limit`, `weight_cap` and `aggregate` protect it, and so can change what is trained: the
    first two only where a reply or a claim is out of bounds. `until` can end it early. `devices`
    say how long things take; with `availability`, `failures`, `deadline`, `oversample`, `partial`,
    `sampling` and `asynchronous`, that decides who is asked and whose replies count. Other options
    change nothing of what is trained.
    """

    workers: int = option(0, "worker threads; 0: one per core", least=0)
    eval_every: int = option(1, "rounds between evaluations; 0: never", least=0)
    until: str = option(
        "", "end the run when reached: accuracy=0.85, bits=1e9, seconds=600; several: the first"
    )
    global_model: bool = option(True, "evaluate the global model on the server's test data")
    personal: bool = option(True, "evaluate every client's model on the client's own test data")
    eval_clients: int = option(
        10_000, "most clients in personal figures, a fixed sample of a larger pool; 0: all", least=0
    )
    select: Select = option("test", "data on which the best round is selected")
    keep: Keep = option("last", "models to keep: the last one, or that of the best round too")
    on_client_error: OnClientError = option("stop", "stop or skip when a client's training fails")
    flops_model: FlopsModel = option("passes", "how floating-point operations are counted")
    ledger: Detail = option(
        "field", "rows of the ledger: one per field of a message, or per tensor"
    )
    network: str = option("", "simulated network: 4g, wifi, iot, or up=,down=,latency=,flops=")
    devices: str = option(
        "", "devices of clients: phone-2024, a mixture phone-2024:50%,mcu:50%, or a CSV file"
    )
    spread: float = option(0.0, "spread of speeds within a class (log-normal sigma)", least=0)
    failures: float = option(0.0, "probability that a client fails in a round", least=0, below=1)
    availability: str = option(
        "", "when devices are there: always, duty:24h:0.3, or a CSV file client,from,until"
    )
    time_by: str = option("flops", "training time by flops, or measured here: measured:FACTOR")
    deadline: str = option("", "time after which a round ends without those missing, e.g. 60s")
    oversample: float = option(
        1.0, "ask for so many times more clients; the first that answer count", least=1
    )
    partial: bool = option(False, "clients that would miss the deadline send what they have")
    sampling: str = option(
        "uniform", "clients to prefer: uniform, tiers:5, utility (Oort), power:2 (of choice)"
    )
    asynchronous: str = option(
        "", "no rounds: fedbuff, fedasync, or buffer=10,concurrency=50,staleness=polynomial:0.5"
    )
    checkpoint_every: int = option(
        0, "rounds between checkpoints; 0: adaptive, at most 2 % overhead", least=0
    )
    reply_limit: float = option(
        50.0, "refuse replies whose change exceeds this multiple of the usual norm; 0: off", least=0
    )
    weight_cap: float = option(
        10.0,
        "cap on a client's weight where nodes report sizes, in median sizes; 0: off",
        least=0,
    )
    aggregate: str = option(
        "mean", "mean, median, trimmed:SHARE, clipped:RADIUS, krum:FAULTY or geometric-median"
    )
