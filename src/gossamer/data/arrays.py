"""A data set as arrays kept once: how rows become inputs, and which client owns which rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from gossamer.core import Client, Levels
from gossamer.data.inputs import Floats, Ints, Kind, Rows


@dataclass(frozen=True)
class Labels:
    """All a partition may look at: labels, and groups and coarse classes where there are any."""

    train: Ints
    test: Ints
    classes: int
    groups: tuple[Ints, Ints] | None = None
    """For every training and every test row, the number of its writer or speaker."""
    coarse: Ints | None = None
    """For every class, the number of its coarse class."""


@dataclass(frozen=True)
class Arrays:
    """A whole data set in memory, before anyone has divided it."""

    name: str
    kind: Kind
    train: Rows
    test: Rows
    labels: Labels

    def __repr__(self) -> str:
        labels = self.labels
        return (
            f"Arrays({self.name}: {len(labels.train):,} training and {len(labels.test):,} test "
            f"examples of shape {self.kind.shape}, {labels.classes} classes)"
        )

    def __post_init__(self) -> None:
        labels = self.labels
        for split, x, y in (
            ("training", self.train, labels.train),
            ("test", self.test, labels.test),
        ):
            if len(x) != len(y):
                raise ValueError(
                    f"{self.name} has {len(x)} {split} examples but {len(y)} labels; "
                    f"give every example one label"
                )
            if len(y) and not 0 <= int(y.min()) <= int(y.max()) < labels.classes:
                raise ValueError(
                    f"{self.name} has {split} labels from {y.min()} to {y.max()} for "
                    f"{labels.classes} classes; number the classes from 0"
                )
        for split, group, y in zip(
            ("training", "test"), labels.groups or (), (labels.train, labels.test), strict=False
        ):
            if len(group) != len(y):
                raise ValueError(
                    f"{self.name} has {len(y)} {split} examples but groups of {len(group)}; "
                    f"give every example its writer or speaker"
                )
        if not len(labels.train):
            raise ValueError(f"{self.name} has no training examples; check its files")


# who owns which rows, in two arrays however many clients there are --------------------------------


@dataclass(frozen=True)
class Index:
    """Row numbers by client: those of client i are `rows[offsets[i] : offsets[i + 1]]`."""

    rows: Ints
    offsets: Ints

    @staticmethod
    def of(owner: Ints, pool: int) -> Index:
        """From the owner of every row; rows owned by -1 belong to nobody."""
        order = np.argsort(owner, kind="stable")
        sizes = np.bincount(owner + 1, minlength=pool + 1)
        return Index(order[sizes[0] :], np.concatenate([[0], np.cumsum(sizes[1:])]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, id: int) -> Ints:
        if not 0 <= id < len(self):
            raise IndexError(f"no client {id}; the pool has clients 0 to {len(self) - 1}")
        return self.rows[self.offsets[id] : self.offsets[id + 1]]

    @property
    def sizes(self) -> Ints:
        """How many rows each client owns."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> Ints:
        """The owner of every entry of `rows`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def keep(self, clients: Ints) -> Index:
        """The same rows for some of the clients, renumbered in the order given."""
        parts = [self[int(id)] for id in clients]
        rows = np.concatenate([*parts, np.empty(0, np.int64)])
        return Index(rows, np.concatenate([[0], np.cumsum(self.sizes[clients])]))

    def counts(self, labels: Ints, classes: int) -> Ints:
        """A table of clients by classes: how many examples of each class everyone owns."""
        cells = self.owners * classes + labels[self.rows]
        return np.bincount(cells, minlength=len(self) * classes).reshape(len(self), classes)


@dataclass(frozen=True)
class Split:
    """A partition drawn: the training and the test rows of every client."""

    train: Index
    test: Index

    def __len__(self) -> int:
        return len(self.train)


@dataclass(frozen=True)
class Pool(Sequence[Client]):
    """All clients, made when looked at: 100,000 of them are two small arrays."""

    examples: Ints
    budgets: Floats

    def __len__(self) -> int:
        return len(self.examples)

    @overload
    def __getitem__(self, index: int) -> Client: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Client]: ...
    def __getitem__(self, index: int | slice) -> Client | Sequence[Client]:
        if isinstance(index, slice):
            return [self[id] for id in range(*index.indices(len(self)))]
        id = range(len(self))[index]
        return Client(id, int(self.examples[id]), as_asked(float(self.budgets[id])))

    def levels(self) -> Levels:
        """Each budget once, as clients have it, and who has it."""
        return self._levels

    @cached_property
    def _levels(self) -> Levels:
        values, level = np.unique(self.budgets, return_inverse=True)
        return Levels.of(np.array([as_asked(value) for value in values.tolist()])[level])


def as_asked(budget: float) -> float:
    """A float32 budget such as 0.15 rounded back to the decimal that was asked for."""
    return round(budget, 6)
