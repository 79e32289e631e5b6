"""What a run came to: its last and best figures, and what it ran on."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import gossamer
from gossamer import fields
from gossamer.cost import Cost
from gossamer.engine.checkpoint import Progress
from gossamer.engine.events import ClientFailed, ClientFinished, Evaluated, RoundFinished

UNKNOWN: Mapping[str, float | None] = {
    "global": None,
    "global_best": None,
    "personal_mean": None,
    "personal_std": None,
    "personal_worst_decile": None,
    "personal_best": None,
    "best": None,
    "best_round": None,
}


@dataclass(frozen=True)
class Summary:
    """What a run came to."""

    method: str
    run: str
    rounds: int
    accuracy: Mapping[str, float | None]
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


def best(so_far: Mapping[str, float | None], found: Evaluated) -> dict[str, float | None]:
    """Last figures, and the best over all evaluations so far."""
    accuracy: dict[str, float | None] = {
        **UNKNOWN,
        **so_far,
        "global": found.global_accuracy,
        "personal_mean": found.personal_mean,
        "personal_std": found.personal_std,
        "personal_worst_decile": found.personal_worst_decile,
    }
    for last, top in (("global", "global_best"), ("personal_mean", "personal_best")):
        value, known = accuracy[last], accuracy[top]
        if value is not None and (known is None or value > known):
            accuracy[top] = value
            if last == "global" or found.global_accuracy is None:
                accuracy["best_round"] = found.round
    shared = accuracy["global_best"]
    accuracy["best"] = accuracy["personal_best"] if shared is None else shared
    return accuracy


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
    return {item.name: item.default for item in fields.settings(method)}


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
