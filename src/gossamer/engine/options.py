"""How a run is executed, and how it is asked to stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gossamer.accounting import FlopsModel
from gossamer.fields import option
from gossamer.wire import Detail

OnClientError = Literal["stop", "skip"]
Select = Literal["test", "valid"]


class Stop:
    """A request to stop: once to finish the round, twice to abandon it."""

    def __init__(self) -> None:
        self._requests = 0

    def request(self) -> int:
        """Asks (again); returns how often that was done."""
        self._requests += 1
        return self._requests

    def after_round(self) -> bool:
        """Whether to stop when the round is over."""
        return self._requests >= 1

    def at_once(self) -> bool:
        """Whether to drop the round."""
        return self._requests >= 2


@dataclass(frozen=True)
class Options:
    """How to run and report, as opposed to what: nothing here changes what is trained."""

    workers: int = option(0, "worker threads; 0 means one per core", least=0)
    eval_every: int = option(1, "rounds between evaluations; 0 means never", least=0)
    global_model: bool = option(True, "test the global model on the server's test data")
    personal: bool = option(True, "also test every client's model on the client's own test data")
    select: Select = option("test", "on which of the clients' data the best round is chosen")
    on_client_error: OnClientError = option("stop", "what to do when a client's training raises")
    flops_model: FlopsModel = option("passes", "how floating-point operations are counted")
    ledger: Detail = option("field", "rows of the ledger: by field of a message, or by tensor")
    network: str = option("", "time on devices: 4g, wifi, iot, or up=,down=,latency=,flops=")
    checkpoint_every: int = option(
        0, "rounds between checkpoints; 0 means so often that they take 2 % of the time", least=0
    )
