"""When a server with a frozen part changes its masks, for the price of a run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

Clock = Callable[[int], tuple[int, int, int]]
"""From a round to the phase, the round in it and the rounds that it has."""
Due = Callable[[int, int, int], int]
"""From these to 0 if no change of masks is due, 1 if some move, or 2 if their counts change."""


@dataclass(frozen=True)
class Stages:
    """The rounds after which the masks at the server are others."""

    changes: frozenset[int]
    counts: frozenset[int]
    """Those of them after which there may be fewer or more active weights: the first of each phase,
    and the last where the server prunes."""
    freezes: int
    """The round after which there is a frozen part; 0 if there never is."""

    def label(self, round: int, last: int) -> Hashable:
        """What a message to a client costs: its stage, and what the client holds already."""
        holds = last > 0 and not any(last <= each < round for each in self.changes)
        keeps = 0 < self.freezes < last
        return self.number(round), holds, keeps

    def number(self, round: int) -> int:
        """How often the number of active weights has changed before a round."""
        return sum(each < round for each in self.counts)

    def mark(self, round: int) -> int:
        """The round itself, if it changes what later rounds cost; else 0."""
        return round if round in self.counts else 0


def stages(rounds: Iterable[int], clock: Clock, due: Due, freezing: bool) -> Stages:
    """Follows the rounds of a run.

    Args:
        rounds: The rounds that train a model.
        clock: Where in its phase a round is.
        due: What the server does at its end; after counts changed, nothing more in that phase.
        freezing: Whether the first phase ends with freezing.
    """
    changes, counts, freezes = set[int](), set[int](), 0
    first: dict[int, int] = {}
    trimmed = set[int]()
    for number in rounds:
        phase, passed, length = clock(number)
        kind = 0 if phase in trimmed else due(phase, passed, length)
        if kind:
            changes.add(number)
            first.setdefault(phase, number)
        if kind == 2:
            counts.add(number)
            trimmed.add(phase)
        if freezing and phase == 1 and passed == length:
            changes.add(number)
            counts.add(number)
            freezes = number
    return Stages(frozenset(changes), frozenset(counts.union(first.values())), freezes)
