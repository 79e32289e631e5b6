"""Fingerprints of a method: small jobs that pass through all of its phases, and what they come to.

`tools/fingerprints.py` compares them before and after code is rearranged, and tests compare a
method with its copy.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gossamer import fields
from gossamer.core import Client, Data, Ensemble, Examples, Key, Method, Params, budgets_of
from gossamer.engine import Options, run
from gossamer.engine.client import server_ctx
from gossamer.engine.store import Store
from gossamer.task import Task
from gossamer.task.randomness import untouched_generators
from gossamer.wire import record_types
from gossamer.wire.archive import fingerprint as digest

AnyMethod = Method[Any, Any, Any, Any, Any]
SIDE, CLASSES, POOL = 8, 3, 12
SMALL: dict[str, Any] = {
    "clients": 4,
    "epochs": 2.0,
    "batch": 8,
    "lr": 0.05,
    "density": 0.2,
    "probe_clients": 4,
    "probe_epochs": 1.0,
    "first_rounds": 3,
    "first_batches": 2,
    "adjust_every": 2,
    "adjust_until": 8,
    "readjust_every": 2,
    "server_every": 2,
    "every": 2,
    "steps": 3,
    "readjust_ratio": 0.2,
    "first_accuracy": 0.5,
    "accurate": 0.1,
    "distance": 0.0,
    "select_clients": 3,
    "candidates": 2,
    "conv_rate": 0.3,
    "alpha": 0.05,
    "eta_tau": 0.02,
    "lambda0": 0.002,
    "threshold_lr": 0.01,
    "server_threshold_lr": 0.2,
    "prune_below": 0.5,
    "strength": 0.05,
}
"""Settings that are smaller here, so that few rounds pass through every phase."""


class Pictures:
    """Small images with a bright row that is their class; some jobs have clients of less budget."""

    name = "fingerprints"
    classes = CLASSES
    augment = None

    def __init__(self, budgets: tuple[float, ...] = (1.0,)) -> None:
        self.pool = [Client(id, 17 + id % 5, budgets[id % len(budgets)]) for id in range(POOL)]
        self.test = self._make(Key(1).fold("test"), 60)

    def describe(self) -> dict[str, object]:
        return {"name": self.name, "classes": self.classes}

    def client(self, id: int) -> Data:
        key = Key(1).fold("client", id)
        sizes = {"train": self.pool[id].examples, "valid": 6, "test": 9}
        return Data(*(self._make(key.fold(part), size) for part, size in sizes.items()))

    def test_rows(self, id: int) -> np.ndarray | None:
        return None

    def _make(self, key: Key, count: int) -> Examples:
        x = torch.randn(count, 1, SIDE, SIDE, generator=key.generator())
        y = torch.randint(CLASSES, (count,), generator=key.fold("labels").generator())
        x[torch.arange(count), 0, 2 * y] += 1
        return Examples(x, y)


def modules() -> dict[str, list[nn.Module]]:
    """The layers of each job's model."""
    inputs = SIDE * SIDE
    return {
        "mlp": [nn.Flatten(), nn.Linear(inputs, 12), nn.ReLU(), nn.Linear(12, CLASSES)],
        "bn": [
            *(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
            *(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32, CLASSES)),
        ],
    }


JOBS = ("mlp", "bn", "mlp-budgets")


def task_of(job: str) -> Task:
    """A small model: an MLP, or a convolutional net with batch normalisation."""
    with untouched_generators():
        layers = modules()[job.partition("-")[0]]
    return Task.of(nn.Sequential(*layers), torch.zeros(2, 1, SIDE, SIDE), start="seed")


def small(method: AnyMethod) -> dict[str, Any]:
    """The smaller settings that a method has, by their names."""
    known = {setting.name for setting in fields.settings(method)}
    return {name: value for name, value in SMALL.items() if name in known}


def fingerprint(method: AnyMethod, job: str, rounds: int) -> dict[str, object]:
    """Trains a method and describes the outcome.

    Args:
        method: with all of its settings; `small` has some that suit the jobs.
        job: one of JOBS.
        rounds: how long to train.

    Returns:
        Hashes of all states and of all models, bits in three columns (up/down), FLOPs, density, and
        accuracies (global/personal).
    """
    task = task_of(job)
    federation = Pictures((0.05, 0.1, 1.0) if "budgets" in job else (1.0,))
    options = Options(workers=1, eval_every=3)
    with tempfile.TemporaryDirectory() as folder:
        summary = run(method, task, federation, rounds=rounds, seed=1, out=folder, options=options)
        store = Store(Path(folder) / "rounds", record_types(method))
        store.rollback(rounds)
        kept = [store.get(id) for id in store.clients()]
    ctx = server_ctx(task, Key(1), rounds, rounds, budgets_of(federation.pool))
    models = [_bytes(method.model(ctx, summary.state, local)) for local in (None, *kept)]
    cost, accuracy = summary.cost, summary.accuracy
    return {
        "state": summary.state_hash[:12],
        "models": digest(*models)[:12],
        "sent": f"{cost.up}/{cost.down}",
        "information": f"{cost.information_up:.3f}/{cost.information_down:.3f}",
        "paper": f"{cost.paper_up}/{cost.paper_down}",
        "flops": cost.flops,
        "density": f"{summary.density:.6f}",
        "accuracy": f"{_text(accuracy['global'])}/{_text(accuracy['personal_mean'])}",
    }


def _bytes(model: Params | Ensemble) -> bytes:
    members = model.members if isinstance(model, Ensemble) else (model,)
    tensors = [tensor for each in members for _, tensor in sorted(each.items())]
    return b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"
