"""Who was waited for: the parts that classes of devices had in the rounds of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

OUTCOMES = ("merged", "late", "spare", "failed", "left")


@dataclass
class Waiting:
    """What a class of devices did, summed over rounds."""

    parts: int = 0
    """How often one of them was asked."""
    merged: int = 0
    late: int = 0
    spare: int = 0
    failed: int = 0
    left: int = 0
    seconds: float = 0.0
    """Virtual seconds of all parts."""
    last: int = 0
    """Rounds that ended with one of them."""
    alone: float = 0.0
    """Virtual seconds in which a round waited for one of them alone."""
    staleness: int = 0
    """Sum over merged replies."""


def take(known: dict[str, Waiting], event: Mapping[str, Any]) -> None:
    """Adds a round, as its event in the log has it.

    Raises:
        KeyError, TypeError, ValueError: The event is incomplete.
    """
    rows: Sequence[Mapping[str, Any]] = event["clients"]
    ends = sorted((float(row["ended"]), int(row["client"])) for row in rows)
    for row in rows:
        entry = known.setdefault(str(row["device"])[:40], Waiting())
        entry.parts += 1
        if (outcome := row["outcome"]) not in OUTCOMES:
            raise ValueError(f"no outcome is called {outcome!r}")
        setattr(entry, outcome, getattr(entry, outcome) + 1)
        entry.seconds += float(row["ended"]) - float(row["began"])
        if outcome == "merged":
            entry.staleness += int(row.get("staleness", 0))
        if row["client"] == event["waited_for"]:
            entry.last += 1
            before = ends[-2][0] if len(ends) > 1 else float(event["began"])
            entry.alone += max(0.0, float(event["ended"]) - before)


def together(each: Iterable[Mapping[str, Waiting]]) -> dict[str, Waiting]:
    """The sums over several runs, by class."""
    total: dict[str, Waiting] = {}
    for known in each:
        for name, entry in known.items():
            here = total.setdefault(name, Waiting())
            for item in fields(Waiting):
                setattr(here, item.name, getattr(here, item.name) + getattr(entry, item.name))
    return dict(sorted(total.items(), key=lambda item: -item[1].last))
