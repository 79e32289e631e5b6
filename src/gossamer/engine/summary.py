"""The results of a run: its last and best figures, and the environment it ran in."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import gossamer
from gossamer.accounting import Cost
from gossamer.arithmetic.library import library
from gossamer.engine.checkpoint import Progress, write_atomically
from gossamer.engine.events import SCHEMA, Evaluated, Finished, Started
from gossamer.engine.history import History
from gossamer.engine.options import Select
from gossamer.engine.round_figures import diverged
from gossamer.engine.run_record import Run
from gossamer.task.metrics import Better, is_better, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scores = Mapping[str, float | None]

UNKNOWN: Scores = {
    "global": None,
    "global_best": None,
    "personal_mean": None,
    "personal_std": None,
    "personal_worst_decile": None,
    "personal_best": None,
    "personal_density": None,
    "valid_mean": None,
    "local_mean": None,
    "valid_best": None,
    "best": None,
    "best_round": None,
    "best_worst_decile": None,
    "best_density": None,
    "best_personal_density": None,
}
"""Figures of the last evaluation and of the best, before there are any."""


@dataclass(frozen=True)
class Summary:
    """The results of a run."""

    method: str
    run: str
    rounds: int
    scores: Scores
    """Last and best figures of the headline metric."""
    select: Select
    """The data on which the best round was selected; its scores are on test data either way."""
    density: float
    cost: Cost
    device_seconds: float | None
    """Simulated time on `Options.network`, if one is given."""
    failed: int
    """Replies that were left out: of clients that failed, and replies that were refused."""
    privacy: Mapping[str, Any] | None
    """Epsilon, delta and how they came about, under `--dp`."""
    seconds: float
    state_hash: str
    interrupted: bool
    state: Any
    """The final server state."""
    diverged: str = ""
    """In which round the run diverged, and how that showed; empty if it did not."""
    reached: str = ""
    """The goal of `Options.until` that ended the run; empty if none did."""
    history: History = field(default_factory=History)
    """A record per round: costs so far and scores."""
    metric: str = "accuracy"
    """The headline metric, which `scores` are of."""
    better: Better = "higher"
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """All metrics of the global model in the last round, if it was evaluated."""

    @property
    def accuracy(self) -> Scores:
        """The scores, where they are accuracies; otherwise nothing is known of it."""
        return self.scores if self.metric == "accuracy" else UNKNOWN

    def __repr__(self) -> str:
        """The results in a line."""
        from gossamer.report.units import bits, score

        known = {"global": self.scores["global"], "personal": self.scores["personal_mean"]}
        title = titled(self.metric)
        parts = [f"{name} {title} {score(v)}" for name, v in known.items() if v is not None]
        parts += [f"{bits(self.cost.up)} up", f"{bits(self.cost.down)} down"]
        rounds = f"{self.rounds} round{'s' * (self.rounds != 1)}"
        stopped = ", stopped" * self.interrupted
        return f"Summary({self.method}, {rounds}{stopped}: {', '.join(parts)})"

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draws the headline metric against rounds and against bits.

        Args:
            path: a file for it, too: .png, .svg or .pdf.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from gossamer.report.plot import plot

        return plot(self, path)

    def report(self, path: str | Path | None = None) -> Path:
        """Writes the page that `gossamer report` writes; returns its path.

        Args:
            path: of the page; by default `report.html` in the run's folder.

        Raises:
            FileNotFoundError: the run kept no folder.
        """
        from gossamer.report import report

        folder = Path(self.run)
        if not (folder / "events.jsonl").exists():
            raise FileNotFoundError(
                "this run kept no folder, and a report is made from it; run with `out=` a folder"
            )
        target = Path(path) if path is not None else folder / "report.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, report([folder]).html.encode())
        return target

    def figures(self) -> dict[str, Any]:
        """The figures that `--json` prints."""
        return {
            "method": self.method,
            "run": self.run,
            "rounds": self.rounds,
            "metric": self.metric,
            "better": self.better,
            "scores": dict(self.scores),
            "metrics": dict(self.metrics),
            **({"accuracy": dict(self.accuracy)} if self.metric == "accuracy" else {}),
            "select": self.select,
            "density": self.density,
            "bits": {
                "up": self.cost.up,
                "down": self.cost.down,
                "information_up": self.cost.information_up,
                "information_down": self.cost.information_down,
                "paper_up": self.cost.paper_up,
                "paper_down": self.cost.paper_down,
            },
            "flops": self.cost.flops,
            "device_seconds": self.device_seconds,
            "failed": self.failed,
            "privacy": None if self.privacy is None else dict(self.privacy),
            "seconds": self.seconds,
            "state_hash": self.state_hash,
            "interrupted": self.interrupted,
            "diverged": self.diverged or None,
            "reached": self.reached or None,
        }


def best(
    so_far: Scores,
    event: Evaluated,
    density: float = 1.0,
    select: Select = "test",
    better: Better = "higher",
) -> dict[str, float | None]:
    """Last figures, and those of the best evaluation so far.

    On test data, the best round is that of the best personal models once there are any, before that
    of the best global model; on validation data, that of the best personal models. All figures are
    on test data: `global_best` and `personal_best` are optima, or those of the selected round.

    Args:
        so_far: The figures up to the previous evaluation.
        event: The new evaluation.
        density: The clients' mean density in its round.
        select: The data on which the best round is selected.
        better: Which way the headline metric is better.
    """
    personal = event.personal_density is not None
    first, second = event.global_score, event.personal_mean
    if personal:
        first, second = second, first
    headline = second if first is None else first
    scores: dict[str, float | None] = {
        **UNKNOWN,
        **so_far,
        "global": event.global_score,
        "personal_mean": event.personal_mean,
        "personal_std": event.personal_std,
        "personal_worst_decile": event.personal_worst_decile,
        "personal_density": event.personal_density,
        "valid_mean": event.valid_mean,
        "local_mean": event.local_mean,
    }
    # An evaluation of personal models comes before any that was made when there were none.
    before = scores["best_personal_density"] is not None
    score, known = (
        (event.valid_mean, scores["valid_best"])
        if select == "valid"
        else (headline, scores["best"])
    )
    chosen = score is not None and (
        personal > before or known is None or is_better(better, score, known)
    )
    if chosen:
        scores |= {
            "valid_best": event.valid_mean,
            "best": headline,
            "best_round": event.round,
            "best_worst_decile": event.personal_worst_decile,
            "best_density": density,
            "best_personal_density": event.personal_density,
        }
    for name, value in (("global", event.global_score), ("personal", event.personal_mean)):
        known = scores[f"{name}_best"]
        improved = value is not None and (known is None or is_better(better, value, known))
        if chosen if select == "valid" else improved:
            scores[f"{name}_best"] = value
    return scores


def privacy_of(run: Run, spent: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The guarantee of a run so far, in figures and words; None without `--dp`."""
    mechanism = run.mechanism
    if mechanism is None:
        return None
    return {
        "epsilon": spent["epsilon"] if spent else 0.0,
        "delta": mechanism.spec.delta,
        "noise": mechanism.accountant.noise,
        "clip": spent["clip"] if spent else mechanism.spec.clip,
        "sampling": mechanism.accountant.scheme,
        "neighbours": mechanism.accountant.neighbours,
        "releases": spent["releases"] if spent else 0,
    }


def run_started(run: Run) -> Started:
    """The first event of a run."""
    layout, facts = run.task.layout, dict(run.federation.describe())
    if run.capped:
        facts["weighted as"] = {str(client): most for client, most in run.capped.items()}
    return Started(
        schema=SCHEMA,
        method=run.name,
        settings=run.settings,
        rounds=run.rounds,
        seed=run.key.seed,
        pool=len(run.federation.pool),
        data=facts,
        parameters=layout.count,
        prunable=layout.total("count", layout.prunable),
        environment=environment(),
        start={"from": run.task.start, **run.task.fingerprints},
        frozen=layout.frozen,
        task=run.task.goal.facts,
    )


def summarise(
    run: Run,
    progress: Progress,
    state_hash: str,
    interrupted: bool,
    seconds: float,
    state: Any,
    history: History,
    reached: str,
) -> Summary:
    """The results of a run as far as it has come."""
    return Summary(
        method=run.name,
        run=str(run.folder),
        rounds=progress.round,
        scores={**UNKNOWN, **progress.scores},
        metric=run.task.goal.headline.name,
        better=run.task.goal.headline.better,
        metrics=history.last_metrics,
        select=run.options.select,
        density=progress.density,
        cost=progress.cost,
        device_seconds=progress.device_seconds,
        failed=progress.failed,
        privacy=privacy_of(run, progress.privacy),
        seconds=seconds,
        state_hash=state_hash,
        interrupted=interrupted,
        state=state,
        history=history,
        diverged=diverged(progress, _guessing(run)),
        reached=reached,
    )


def _guessing(run: Run) -> float | None:
    return run.task.goal.guessing(run.federation.classes)


def run_finished(run: Run, progress: Progress, state_hash: str, reached: str) -> Finished:
    """The last event of a run."""
    scores = progress.scores
    return Finished(
        progress.round,
        scores if run.task.goal.headline.name == "accuracy" else {},
        progress.density,
        state_hash,
        run.options.select,
        diverged(progress, _guessing(run)),
        reached,
        scores,
    )


def environment() -> dict[str, str]:
    """The software and hardware that a run's bits may depend on."""
    return {
        "gossamer": gossamer.__version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "kernels": kernels.build if (kernels := library()) else "none",
    }
