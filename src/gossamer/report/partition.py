"""The partition of a run: examples by client and class, rebuilt from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.data import Inputs, federation
from gossamer.data.opening import READ_BY
from gossamer.data.picture import subtitle, table
from gossamer.references import is_code, only_in_python
from gossamer.report.runs import Run

MOST = 4
"""Maximum partitions in a report."""
FACTS = ("partition", "pool", "classes", "train", "smallest", "largest")
"""Facts that must agree with the log."""


@dataclass(frozen=True)
class Partition:
    """Training examples by client and class."""

    title: str
    note: str
    clients: Sequence[int]
    counts: Sequence[Sequence[int]]


def partitions(runs: Sequence[Run]) -> tuple[list[Partition], list[str]]:
    """One partition per division of the data, of its first seed, and notices about missing ones."""
    drawn: list[Partition] = []
    notices: list[str] = []
    seen = set()
    for run in runs:
        experiment = run.table("experiment")
        names = ("data", "partition", "pool", "least", "valid")
        division = repr([experiment.get(name) for name in names])
        if not experiment or division in seen:
            continue
        seen.add(division)
        if len(drawn) == MOST:
            notices.append(f"only the first {MOST} partitions are shown")
            break
        # Data from another machine or version may fail in any way; the report must survive.
        try:
            drawn.append(_partition(run, experiment))
        except Exception as problem:
            known = isinstance(problem, KeyError) and problem.args
            reason = problem.args[0] if known else str(problem) or type(problem).__name__
            notices.append(f"{run.folder}: the partition cannot be shown: {reason}")
    return drawn, notices


def _kind(run: Run, experiment: Mapping[str, Any]) -> str:
    """What labels are, if the run asked for a task; a goal of Python code is not loaded."""
    task = run.started.get("task")
    return task.get("kind", "") if experiment.get("task") and isinstance(task, dict) else ""


def _partition(run: Run, experiment: Mapping[str, Any]) -> Partition:
    own, least = experiment.get("data_seed", -1), experiment.get("least", -1)
    seed = run.seed if own < 0 else own
    if seed is None:
        raise ValueError("the seed is unknown")
    if is_code(experiment["data"]) or only_in_python(experiment["data"]):
        raise ValueError(f"the data came from Python code ({experiment['data']})")
    divided = federation(
        experiment["data"],
        experiment.get("partition") or None,
        experiment.get("pool") or None,
        seed=seed,
        least=None if least < 0 else least,
        valid=experiment.get("valid", 0.0),
        inputs=Inputs(
            **{name: experiment[name] for name in READ_BY if name in experiment},
            task=_kind(run, experiment),
        ),
    )
    logged, here = run.started.get("data"), divided.describe()
    if isinstance(logged, dict):
        other = [name for name in FACTS if name in logged and logged[name] != here.get(name)]
        if other:
            raise ValueError(f"the data here differ from those of the run ({other[0]})")
    sizes, shown, counts = table(divided)
    parts = [divided.name, str(here.get("partition", "")), f"{len(sizes):,} clients"]
    return Partition(
        " · ".join(part for part in (*parts, f"seed {seed}") if part),
        subtitle(sizes, counts),
        shown.tolist(),
        counts.tolist(),
    )
