"""Prices a method without training: real messages and masks, no arithmetic on data.

A dry run calls every function of the method but `step`. Where all rounds but the first cost the
same, it stops early and extrapolates; otherwise it goes through all rounds, and always does for a
method with masks at the server, which may act rarely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gossamer.accounting.blank_data import Blank
from gossamer.core import AnyMethod
from gossamer.data.inputs import Floats
from gossamer.engine.client import Stop
from gossamer.engine.events import ClientFinished, Clock, Event, RoundFinished
from gossamer.engine.loop import start
from gossamer.engine.options import Options
from gossamer.engine.run_record import Run
from gossamer.task import Task

PROBE = 12
"""Rounds after the first that must cost the same before the rest is extrapolated."""

Line = tuple[str, str, str]
"""Direction, message and leaf."""


@dataclass(frozen=True)
class Bits:
    """One line of a price: how many messages, and their bits in three columns."""

    messages: int = 0
    sent: float = 0.0
    information: float = 0.0
    paper: float = 0.0

    def __add__(self, other: Bits) -> Bits:
        return Bits(
            self.messages + other.messages,
            self.sent + other.sent,
            self.information + other.information,
            self.paper + other.paper,
        )

    def __mul__(self, times: int) -> Bits:
        return Bits(
            self.messages * times, self.sent * times, self.information * times, self.paper * times
        )


@dataclass(frozen=True)
class Price:
    """What a method costs in all rounds."""

    rounds: int
    exact: int
    """Rounds that were played; the others cost as much as the last of these."""
    lines: Mapping[Line, Bits]
    flops: int
    device_seconds: float | None

    def total(self, direction: str) -> Bits:
        """All bits of one direction."""
        return sum((bits for line, bits in self.lines.items() if line[0] == direction), Bits())


def price(
    method: AnyMethod,
    task: Task,
    *,
    classes: int,
    pool: int,
    examples: int,
    rounds: int,
    options: Options = Options(),
    budgets: Floats | None = None,
) -> Price:
    """Prices a method on blank data of the task's shape.

    Args:
        method: The method.
        task: The task.
        classes: Classes of the data.
        pool: Clients in all.
        examples: Training examples of each client.
        rounds: Rounds of communication.
        options: How operations and time are counted.
        budgets: The density that each client can afford; 1 unless given.
    """
    federation = Blank(task.layout.input, classes, pool, examples, budgets=budgets)
    return price_run(Run(method, task, federation, rounds=rounds, options=options))


def price_run(run: Run) -> Price:
    """Prices a run by going through it without training steps."""
    stop = Stop()
    meter = _Meter(stop, hasattr(run.method, "measures"))
    start(replace(run, dry=True), sinks=[meter], stop=stop)
    return meter.price(run.rounds)


def add_up(events: Iterable[ClientFinished]) -> dict[Line, Bits]:
    """Sums the ledgers of some clients by direction, message and leaf."""
    ledger: dict[Line, Bits] = {}
    for event in events:
        for entry in event.traffic:
            line = (entry.direction, entry.message, entry.leaf)
            here = Bits(1, entry.sent, entry.information, entry.paper)
            ledger[line] = ledger.get(line, Bits()) + here
    return ledger


class _Meter:
    """Sums a dry run, and stops it when its rounds repeat."""

    def __init__(self, stop: Stop, all_rounds: bool) -> None:
        self._stop = stop
        self._all = all_rounds
        self._clients: list[ClientFinished] = []
        self._rounds: list[tuple[dict[Line, Bits], int, float]] = []
        self._seconds: float | None = None

    def emit(self, event: Event, clock: Clock) -> None:
        match event:
            case ClientFinished():
                self._clients.append(event)
            case RoundFinished():
                flops = sum(client.flops for client in self._clients)
                before, self._seconds = self._seconds, event.device_seconds
                seconds = (self._seconds or 0.0) - (before or 0.0)
                self._rounds.append((add_up(self._clients), flops, round(seconds, 9)))
                self._clients = []
                later = self._rounds[1 : PROBE + 1]
                if self._all or len(self._rounds) != PROBE + 1:
                    return
                if all(each == later[0] for each in later):
                    self._stop.request()
            case _:
                pass

    def close(self) -> None:
        pass

    def price(self, rounds: int) -> Price:
        """The price of all rounds; those not played cost as much as the last one."""
        rest = rounds - len(self._rounds)
        lines: dict[Line, Bits] = {}
        flops, seconds = 0, 0.0
        for index, (ledger, work, took) in enumerate(self._rounds):
            times = 1 + rest * (index == len(self._rounds) - 1)
            for line, bits in ledger.items():
                lines[line] = lines.get(line, Bits()) + bits * times
            flops += work * times
            seconds += took * times
        timed = self._seconds is not None
        return Price(rounds, len(self._rounds), lines, flops, seconds if timed else None)
