"""Who has how much of what: the partition of a run, made again from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.data import federation
from gossamer.data.picture import subtitle, table
from gossamer.report.reading import Run

MOST = 4
"""Partitions in one report."""
FACTS = ("partition", "pool", "classes", "train", "smallest", "largest")
"""What must be as the log has it."""


@dataclass(frozen=True)
class Partition:
    """Training examples by client and class."""

    title: str
    note: str
    clients: Sequence[int]
    counts: Sequence[Sequence[int]]


def partitions(runs: Sequence[Run]) -> tuple[list[Partition], list[str]]:
    """One picture for every way of dividing data, of the first seed; and why some are missing."""
    found: list[Partition] = []
    notices: list[str] = []
    seen = set()
    for run in runs:
        wish = run.table("experiment")
        how = repr([wish.get(name) for name in ("data", "partition", "pool", "least", "valid")])
        if not wish or how in seen:
            continue
        seen.add(how)
        if len(found) == MOST:
            notices.append(f"only the first {MOST} partitions are shown")
            break
        # Data of another machine or version may fail in any way; that must not cost the report.
        try:
            found.append(_partition(run, wish))
        except Exception as problem:
            known = isinstance(problem, KeyError) and problem.args
            reason = problem.args[0] if known else str(problem) or type(problem).__name__
            notices.append(f"{run.folder}: its partition cannot be shown: {reason}")
    return found, notices


def _partition(run: Run, wish: Mapping[str, Any]) -> Partition:
    own, least = wish.get("data_seed", -1), wish.get("least", -1)
    seed = run.seed if own < 0 else own
    if seed is None:
        raise ValueError("its seed is not known")
    divided = federation(
        wish["data"],
        wish.get("partition") or None,
        wish.get("pool") or None,
        seed=seed,
        least=None if least < 0 else least,
        valid=wish.get("valid", 0.0),
    )
    told, here = run.started.get("data"), divided.describe()
    if isinstance(told, dict):
        other = [name for name in FACTS if name in told and told[name] != here.get(name)]
        if other:
            raise ValueError(f"the data found here are not those of the run ({other[0]} differs)")
    sizes, shown, counts = table(divided)
    parts = [divided.name, str(here.get("partition", "")), f"{len(sizes):,} clients"]
    return Partition(
        " · ".join(part for part in (*parts, f"seed {seed}") if part),
        subtitle(sizes, counts),
        shown.tolist(),
        counts.tolist(),
    )
