"""What a run came to: its last and best figures, and what it ran on."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import gossamer
from gossamer.cost import Cost
from gossamer.engine.events import Evaluated

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
                "paper_up": self.cost.paper_up,
                "paper_down": self.cost.paper_down,
            },
            "flops": self.cost.flops,
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
