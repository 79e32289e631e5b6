"""A toy federation and small tasks: enough to run every part of the engine in milliseconds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import Batch, Client, Ctx, Data, Examples, FedAvg, Key, Params, Task, Training
from gossamer.cli.wording import flags
from gossamer.engine import events

INPUTS, CLASSES = 5, 3


class Toy:
    """Clients whose labels are a linear function of random inputs; client `id` has `20 + id`."""

    name = "toy"
    classes = CLASSES

    def __init__(
        self,
        pool: int = 6,
        *,
        sizes: Sequence[int] | None = None,
        test: int = 100,
        own_test: int = 10,
        augment: Callable[[Tensor, Key], Tensor] | None = None,
        rows: bool = False,
    ) -> None:
        self.sizes = list(sizes) if sizes is not None else [20 + id for id in range(pool)]
        self.pool = [Client(id, size) for id, size in enumerate(self.sizes)]
        self.augment = augment
        self.rule = torch.randn(INPUTS, CLASSES, generator=Key(9).generator())
        self.test = self.make(Key(5), test)
        self.own_test = own_test
        self.rows = rows
        self.asked: list[int] = []

    def make(self, key: Key, count: int) -> Examples:
        x = torch.randn(count, INPUTS, generator=key.generator())
        return Examples(x, (x @ self.rule).argmax(1))

    def describe(self) -> dict[str, object]:
        return {"name": self.name, "classes": self.classes}

    def client(self, id: int) -> Data:
        self.asked.append(id)
        key = Key(7).fold(id)
        rows = self.test_rows(id)
        test = (
            self.make(key.fold("test"), self.own_test)
            if rows is None
            else Examples(self.test.x[rows], self.test.y[rows])
        )
        return Data(self.make(key, self.sizes[id]), self.make(key.fold("valid"), 0), test)

    def test_rows(self, id: int) -> np.ndarray | None:
        """The clients' test data are a partition of the server's, if `rows` is set."""
        return np.arange(id, len(self.test), len(self.pool)) if self.rows else None


def linear() -> Task:
    return Task.of(nn.Linear(INPUTS, CLASSES), torch.zeros(2, INPUTS), start="seed")


def mlp(dropout: float = 0.0) -> Task:
    parts = [nn.Linear(INPUTS, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, CLASSES)]
    return Task.of(nn.Sequential(*parts), torch.zeros(2, INPUTS), start="seed")


def normed() -> Task:
    """A net with running statistics and dropout."""
    parts = [nn.Linear(INPUTS, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1)]
    return Task.of(
        nn.Sequential(*parts, nn.Linear(8, CLASSES)), torch.zeros(2, INPUTS), start="seed"
    )


def conv() -> Task:
    parts = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten()]
    return Task.of(nn.Sequential(*parts, nn.Linear(96, 2)), torch.zeros(2, 3, 6, 6), start="seed")


def fedavg(clients: int = 3, batch: int = 8, **training: Any) -> FedAvg:
    return FedAvg(clients=clients, training=Training(batch=batch, **training))


def server_ctx(task: Task, round: int = 1, rounds: int = 10, seed: int = 0) -> Ctx:
    key = Key(seed)
    return Ctx(task, round, rounds, key.fold("server", "round", round), key.fold("common"))


def client_ctx(task: Task, train: Examples, round: int = 1, rounds: int = 10, seed: int = 0) -> Ctx:
    nothing = Examples(train.x[:0], train.y[:0])
    key = Key(seed)
    return Ctx(
        task,
        round,
        rounds,
        key.fold("round", round, "client", 0),
        key.fold("common"),
        Data(train, nothing, nothing),
    )


def batch_of(x: Tensor, y: Tensor, key: Key | None = None) -> Batch:
    return Batch(x, y, key or Key(0), step=0, steps=1, epoch=0, epochs=1.0, per_epoch=1)


def lines(path: Path) -> list[str]:
    """The events of a log as canonical text, without the times."""
    found = events.read(path)
    for event in found:
        del event["clock"]
    return [json.dumps(event) for event in found]


def same(left: Params, right: Params) -> bool:
    """Equal names, types, shapes and bits."""
    return list(left) == list(right) and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name])
        for name in left
    )


@contextmanager
def refused(words: str) -> Iterator[None]:
    """The library refuses something, in these words as the command line has them."""
    with pytest.raises(ValueError) as refusal:
        yield
    assert re.search(words, flags(str(refusal.value))), refusal.value
