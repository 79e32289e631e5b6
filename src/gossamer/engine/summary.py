"""What a run came to: its last and best figures, and what it ran on."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import gossamer
from gossamer import fields
from gossamer.accounting import Cost
from gossamer.data.federation import Federation
from gossamer.engine.checkpoint import Progress
from gossamer.engine.events import (
    SCHEMA,
    ClientFailed,
    ClientFinished,
    Evaluated,
    RoundFinished,
    Started,
)
from gossamer.engine.options import Select
from gossamer.task.layout import Layout

Accuracy = Mapping[str, float | None]

UNKNOWN: Accuracy = {
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
    """What a run came to."""

    method: str
    run: str
    rounds: int
    accuracy: Accuracy
    select: Select
    """The data on which the best round was chosen; accuracy there is that on test data too."""
    density: float
    cost: Cost
    device_seconds: float | None
    """On the devices and network asked for, if any."""
    failed: int
    """Replies that were left out: clients that raised, or sent what could not be accepted."""
    seconds: float
    state_hash: str
    interrupted: bool
    state: Any
    """The final server state."""

    def figures(self) -> dict[str, Any]:
        """The figures that `--json` prints."""
        return {
            "method": self.method,
            "run": self.run,
            "rounds": self.rounds,
            "accuracy": dict(self.accuracy),
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
            "seconds": self.seconds,
            "state_hash": self.state_hash,
            "interrupted": self.interrupted,
        }


def best(
    so_far: Accuracy, found: Evaluated, density: float = 1.0, select: Select = "test"
) -> dict[str, float | None]:
    """Last figures, and those of the best evaluation so far.

    On test data a run is judged by its personal models, once there are any, otherwise by the global
    one; on validation data always by what clients have. Figures are those on test data either way:
    `global_best` and `personal_best` are maxima, or what the chosen round has.
    """
    personal = found.personal_density is not None
    first, second = found.global_accuracy, found.personal_mean
    if personal:
        first, second = second, first
    headline = second if first is None else first
    accuracy: dict[str, float | None] = {
        **UNKNOWN,
        **so_far,
        "global": found.global_accuracy,
        "personal_mean": found.personal_mean,
        "personal_std": found.personal_std,
        "personal_worst_decile": found.personal_worst_decile,
        "personal_density": found.personal_density,
        "valid_mean": found.valid_mean,
        "local_mean": found.local_mean,
    }
    # An evaluation of personal models comes before any that was made when there were none.
    before = accuracy["best_personal_density"] is not None
    score, known = (
        (found.valid_mean, accuracy["valid_best"])
        if select == "valid"
        else (headline, accuracy["best"])
    )
    chosen = score is not None and (personal > before or known is None or score > known)
    if chosen:
        accuracy |= {
            "valid_best": found.valid_mean,
            "best": headline,
            "best_round": found.round,
            "best_worst_decile": found.personal_worst_decile,
            "best_density": density,
            "best_personal_density": found.personal_density,
        }
    for name, value in (("global", found.global_accuracy), ("personal", found.personal_mean)):
        known = accuracy[f"{name}_best"]
        better = value is not None and (known is None or value > known)
        if chosen if select == "valid" else better:
            accuracy[f"{name}_best"] = value
    return accuracy


def run_started(
    method: object, name: str, rounds: int, seed: int, federation: Federation, layout: Layout
) -> Started:
    """The first event of a run."""
    return Started(
        schema=SCHEMA,
        method=name,
        settings=plain_settings(method),
        rounds=rounds,
        seed=seed,
        pool=len(federation.pool),
        data=dict(federation.describe()),
        parameters=layout.count,
        prunable=layout.total("count", layout.prunable),
        environment=environment(),
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
    }


def plain_settings(method: object) -> dict[str, Any]:
    """A method's settings by name, as the log and the command line have them."""
    return {item.name: fields.plain(item) for item in fields.settings(method)}


def advanced(
    progress: Progress,
    finished: Sequence[ClientFinished],
    failures: Sequence[ClientFailed],
    timed: bool,
    seconds: float,
) -> Progress:
    """One round further: what it cost is added, on devices as long as its slowest client took."""
    devices = None
    if timed:
        slowest = max((event.device_seconds or 0.0 for event in finished), default=0.0)
        devices = (progress.device_seconds or 0.0) + slowest
    densities = [event.density for event in finished]
    return replace(
        progress,
        round=progress.round + 1,
        cost=progress.cost + spent(finished, failures),
        density=float(np.mean(densities)) if densities else progress.density,
        seconds=seconds,
        device_seconds=devices,
        failed=progress.failed + len(failures),
    )


def spent(finished: Sequence[ClientFinished], failures: Sequence[ClientFailed]) -> Cost:
    """What a round cost; of clients that failed, what they were sent."""
    total = Cost()
    for event in finished:
        total += Cost(
            event.up,
            event.down,
            event.information_up,
            event.information_down,
            event.paper_up,
            event.paper_down,
            event.flops,
            event.examples,
        )
    for failure in failures:
        total += Cost(down=failure.down, paper_down=failure.paper_down)
    return total


def round_finished(
    progress: Progress, finished: Sequence[ClientFinished], failures: Sequence[ClientFailed]
) -> RoundFinished:
    """A round as an event, with what the run has cost so far."""
    failed = sorted(failure.client for failure in failures)
    total = progress.cost
    return RoundFinished(
        round=progress.round,
        clients=[event.client for event in finished if event.client not in failed],
        failed=failed,
        density=progress.density,
        metrics=means([event.metrics for event in finished]),
        up=total.up,
        down=total.down,
        information_up=total.information_up,
        information_down=total.information_down,
        paper_up=total.paper_up,
        paper_down=total.paper_down,
        flops=total.flops,
        device_seconds=progress.device_seconds,
    )


def means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the clients that have it."""
    names = sorted({name for each in metrics for name in each})
    return {
        name: float(np.mean([each[name] for each in metrics if name in each])) for name in names
    }
