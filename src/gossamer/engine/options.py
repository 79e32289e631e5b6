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
    """How a run is executed and reported; no option changes what is trained."""

    workers: int = option(0, "worker threads; 0: one per core", least=0)
    eval_every: int = option(1, "rounds between evaluations; 0: never", least=0)
    global_model: bool = option(True, "evaluate the global model on the server's test data")
    personal: bool = option(True, "evaluate every client's model on the client's own test data")
    select: Select = option("test", "data on which the best round is selected")
    keep: Keep = option("last", "models to keep: the last one, or that of the best round too")
    on_client_error: OnClientError = option("stop", "stop or skip when a client's training fails")
    flops_model: FlopsModel = option("passes", "how floating-point operations are counted")
    ledger: Detail = option(
        "field", "rows of the ledger: one per field of a message, or per tensor"
    )
    network: str = option("", "simulated network: 4g, wifi, iot, or up=,down=,latency=,flops=")
    checkpoint_every: int = option(
        0, "rounds between checkpoints; 0: adaptive, at most 2 % overhead", least=0
    )
