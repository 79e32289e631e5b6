"""What conformance checks run methods on: tiny images, tiny nets, small settings."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from gossamer import fields
from gossamer.core import AnyMethod, Client, Data, Examples, Key
from gossamer.models.lora import lora
from gossamer.task import Task
from gossamer.task.first_weights import Start, seeded_globally
from gossamer.task.randomness import untouched_generators

SIDE, CLASSES, POOL = 6, 3, 12
SMALL = {
    "clients": 4,
    "epochs": 2,
    "batch": 8,
    "first_rounds": 1,
    "first_batches": 1,
    "adjust_every": 2,
    "probe_clients": 4,
    "probe_epochs": 1.0,
}
"""Upper limits of settings, so that a check takes seconds."""


def small(method: AnyMethod) -> AnyMethod:
    """The method with few clients and small batches, where it has such settings."""
    known = {setting.name: setting.default for setting in fields.settings(method)}
    numbers = {name: known[name] for name in SMALL if isinstance(known.get(name), int | float)}
    return fields.replace(method, {name: min(numbers[name], SMALL[name]) for name in numbers})


def plain_task() -> Task:
    """A convolutional net without buffers."""
    with untouched_generators():
        return _task(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES))


def normed_task() -> Task:
    """A net with running statistics and dropout."""
    with untouched_generators():
        conv, norm = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4)
        head = (nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, CLASSES))
        return _task(conv, norm, nn.ReLU(), *head)


def pretrained_task() -> Task:
    """A net that keeps its weights: a frozen layer and norm, and an adapter beside the last."""
    with seeded_globally(Key(2)):
        front = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        head = lora(nn.Linear(16, CLASSES), rank=2)
        rest = (nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), head)
    task = _task(front.requires_grad_(False), *rest, start="module")
    _ = task.fingerprints  # before any method can change a constant
    return task


def _task(*layers: nn.Module, start: Start = "seed") -> Task:
    return Task.of(nn.Sequential(*layers), torch.zeros(2, 1, SIDE, SIDE), start=start)


class Tiny:
    """Small images whose class is the bright row, generated on demand."""

    name = "check"
    classes = CLASSES
    augment = None

    def __init__(self) -> None:
        self.pool = [Client(id, 17 + id % 5) for id in range(POOL)]
        self.test = self._make(Key(1).fold("test"), 30)

    def describe(self) -> dict[str, object]:
        return {"name": self.name, "classes": self.classes}

    def client(self, id: int) -> Data:
        key = Key(1).fold("client", id)
        train, valid, test = (
            self._make(key.fold(part), count)
            for part, count in (("train", self.pool[id].examples), ("valid", 5), ("test", 5))
        )
        return Data(train, valid, test)

    def test_rows(self, id: int) -> np.ndarray | None:
        return None

    def _make(self, key: Key, count: int) -> Examples:
        x = torch.randn(count, 1, SIDE, SIDE, generator=key.generator())
        y = torch.randint(CLASSES, (count,), generator=key.fold("labels").generator())
        x[torch.arange(count), 0, 2 * y] += 1
        return Examples(x, y)
