"""Sweeps from Python: `gs.sweep` tries settings of a method, one run after the other."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gossamer import fields
from gossamer.config import find_method
from gossamer.engine import Options, Summary
from gossamer.engine.options import Select
from gossamer.recipes import FederationLike, MethodLike, TaskLike, parts
from gossamer.reproduce import sweep_results
from gossamer.reproduce.sweep_results import Trial
from gossamer.reproduce.sweeps import combinations
from gossamer.running import run


@dataclass(frozen=True)
class Sweep:
    """The results of a sweep: combinations of settings from best to worst, and all their runs."""

    trials: Sequence[Trial]
    runs: Sequence[tuple[Mapping[str, Any], int, Summary]]
    """Settings, seed and summary of every run."""
    select: Select

    @property
    def best(self) -> Mapping[str, Any]:
        """The settings with the best mean score on the data that decide."""
        winner = sweep_results.best(self.trials, self.select)
        if winner is None:
            raise ValueError("no run of the sweep was evaluated; use `eval_every=1`")
        return winner.settings

    def __repr__(self) -> str:
        told = (sweep_results.text, sweep_results.verdict)
        return "\n".join(tell(self.trials, self.select) for tell in told)


def sweep(
    method: MethodLike,
    task: TaskLike,
    federation: FederationLike,
    settings: Mapping[str, Sequence[Any]],
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    out: str | Path | None = None,
    options: Options = Options(select="valid"),
) -> Sweep:
    """Tries every combination of settings; `gossamer sweep` does so side by side, and resumes.

    Args:
        method: The method whose settings are tried, or its name.
        task: The model and its loss, as `run` takes it.
        federation: The clients and their data, as `run` takes it, divided once for all runs. They
            need validation data (`valid=0.1`), unless `options` select on test data.
        settings: The values to try, by name: `{"lr": [0.01, 0.1]}`.
        rounds: Rounds of every run.
        seeds: Of the runs of every combination.
        out: A folder for the folders of all runs; None keeps nothing.
        options: How runs are executed; `select` says which data decide.

    Raises:
        ValueError: a method has no such setting, or there are no validation data.
    """
    base = find_method(method) if isinstance(method, str) else method
    known = {item.name for item in fields.settings(base)}
    for name in settings:
        if name not in known:
            raise ValueError(
                f"the method has no setting {name!r}; it has {', '.join(sorted(known))}"
            )
    made = parts(base, task, federation, seeds[0])
    runs: list[tuple[Mapping[str, Any], int, Summary]] = []
    tried = combinations(settings)
    for chosen in tried:
        for seed in seeds:
            folder = None if out is None else Path(out) / _name(chosen) / f"seed-{seed}"
            what = fields.replace(base, dict(chosen))
            summary = run(
                what,
                made.task,
                made.federation,
                rounds=rounds,
                seed=seed,
                out=folder,
                options=options,
                quiet=True,
            )
            runs.append((chosen, seed, replace(summary, state=None)))
            sys.stderr.write(f"{_name(chosen)} seed {seed}: {summary!r}\n")
    trials = [
        Trial(
            chosen,
            [{**end.figures(), "seed": seed} for each, seed, end in runs if each is chosen],
        )
        for chosen in tried
    ]
    return Sweep(sweep_results.ranked(trials, options.select), runs, options.select)


def _name(chosen: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in chosen.items()) or "defaults"
