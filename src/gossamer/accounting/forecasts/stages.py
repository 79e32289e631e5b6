"""When PFFDST's server changes its masks, in any reading, while nothing is trained."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from gossamer.core import Ctx
from gossamer.methods.as_published.pffdst_phases import Phases


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
        return self.number(round), holds, 0 < self.freezes < last

    def number(self, round: int) -> int:
        """How often the number of active weights has changed before a round."""
        return sum(each < round for each in self.counts)

    def mark(self, round: int) -> int:
        """The round itself, if it changes what later rounds cost; else 0."""
        return round if round in self.counts else 0


def stages(phases: Phases, ctx: Ctx) -> Stages:
    """Follows the rounds of a run; they are asked for once for every client of every round."""
    key = (phases, ctx.rounds)
    if key not in _KNOWN:
        _KNOWN[key] = _followed(phases, ctx)
    return _KNOWN[key]


_KNOWN: dict[tuple[Phases, int], Stages] = {}


def _followed(phases: Phases, ctx: Ctx) -> Stages:
    changes, counts, freezes = set[int](), set[int](), 0
    first: dict[int, int] = {}
    trimmed = set[int]()
    for number in range(1 + phases.probes, ctx.rounds + 1):
        phase, passed, length = phases.clock(replace(ctx, round=number))
        kind = 0 if phase in trimmed else _due(phases, phase, passed, length)
        if kind:
            changes.add(number)
            first.setdefault(phase, number)
        if kind == 2:
            counts.add(number)
            trimmed.add(phase)
        if phases.freezing and phase == 1 and passed == length:
            changes.add(number)
            counts.add(number)
            freezes = number
    return Stages(frozenset(changes), frozenset(counts.union(first.values())), freezes)


def _due(phases: Phases, phase: int, number: int, length: int) -> int:
    """0 if no change of masks is due, 1 if some move, 2 if counts change for the last time."""
    if phases.readjust == "learned":
        return int((number - 1) % phases.mask_every == 0)
    if phases.readjust == "client":  # the second phase begins with layers beyond their quotas
        return 2 if phase == 2 else 0
    if not phases.pure.extra or (phase == 2 and not phases.readjust_second):
        return 0
    last = number >= max(1, round(phases.trim_at * length))
    return 2 if last else int(number % phases.every == 0)
