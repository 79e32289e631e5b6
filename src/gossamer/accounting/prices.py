"""Prices: bits of messages by direction, message and leaf, and operations, for all rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gossamer.accounting.bits import Entry
from gossamer.accounting.forecast import Learned
from gossamer.engine.events import ClientFinished

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


Lines = Mapping[Line, Bits]


@dataclass(frozen=True)
class Price:
    """What a method costs in all rounds."""

    rounds: int
    exact: int
    """Rounds that were gone through; the others are like some of these."""
    lines: Lines
    """What is sent if training changes no mask; see `learned`."""
    flops: int
    device_seconds: float | None
    learned: Learned | None = None
    """What depends on training, if anything does; then the price is between two bounds."""
    least: Lines = field(default_factory=dict)
    most: Lines = field(default_factory=dict)
    """The bounds of `lines`; the same where nothing depends on training."""
    flops_bounds: tuple[int, int] = (0, 0)

    def total(self, direction: str) -> Bits:
        """All bits of one direction."""
        return total(self.lines, direction)


def total(lines: Lines, direction: str) -> Bits:
    """All bits of one direction."""
    return sum((bits for line, bits in lines.items() if line[0] == direction), Bits())


def by_line(entries: Iterable[Entry]) -> dict[Line, Bits]:
    """Sums rows of the ledger by direction, message and leaf."""
    ledger: dict[Line, Bits] = {}
    for entry in entries:
        line = (entry.direction, entry.message, entry.leaf)
        here = Bits(1, entry.sent, entry.information, entry.paper)
        ledger[line] = ledger.get(line, Bits()) + here
    return ledger


def add_up(events: Iterable[ClientFinished]) -> dict[Line, Bits]:
    """Sums the ledgers of some clients by direction, message and leaf."""
    return by_line(entry for event in events for entry in event.traffic)
