"""A data set as arrays kept once: how rows become inputs, and which client owns which rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from gossamer.core import Client, Levels
from gossamer.data.inputs import Floats, Ints, Kind, Rows

DECILES = 10
"""Classes that partitions divide the targets of a regression into."""


@dataclass(frozen=True)
class Labels:
    """All a partition may look at: labels, and groups and coarse classes where there are any."""

    train: np.ndarray
    """Numbers of classes; for other tasks a number, a row of numbers or a row of tokens each."""
    test: np.ndarray
    classes: int
    """Outputs that a model needs: classes, targets, labels, or the vocabulary."""
    groups: tuple[Ints, Ints] | None = None
    """For every training and every test row, the number of its writer or speaker."""
    coarse: Ints | None = None
    """For every class, the number of its coarse class."""
    task: str = "classification"
    """What labels are: one class each, or what another task needs."""

    @property
    def strata(self) -> Labels:
        """The same examples with classes that partitions can divide by.

        Targets of a regression are in ten classes of equal size, by the first target. An example
        with several labels is of the rarest of them, or of a last class if it has none. A row of
        tokens is of the only class.
        """
        match self.task:
            case "regression":
                first = [part.reshape(len(part), -1)[:, 0] for part in (self.train, self.test)]
                edges = np.quantile(first[0], np.arange(1, DECILES) / DECILES)
                train, test = (np.searchsorted(edges, part, "right") for part in first)
                classes = DECILES
            case "multilabel":
                rarest = np.argsort(self.train.sum(0), kind="stable")
                train, test = (_rarest(part, rarest) for part in (self.train, self.test))
                classes = self.classes + 1
            case "language":
                train, test = (np.zeros(len(part), np.int64) for part in (self.train, self.test))
                classes = 1
            case _:
                return self
        return Labels(train, test, classes, self.groups)


def _rarest(labels: np.ndarray, order: np.ndarray) -> Ints:
    """For every row the first label, in an order, that is true; the number of labels if none is."""
    ranked = labels[:, order] > 0
    found: Ints = np.where(ranked.any(1), order[ranked.argmax(1)], labels.shape[1])
    return found


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
            f"examples of shape {self.kind.shape}, {outputs(labels)})"
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
            by_class = labels.task == "classification"
            if by_class and len(y) and not 0 <= int(y.min()) <= int(y.max()) < labels.classes:
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


def outputs(labels: Labels) -> str:
    """How many classes, targets, labels or tokens there are, in words."""
    words = {"regression": "target", "multilabel": "label", "language": "token"}
    word = words.get(labels.task)
    if word is None:
        return f"{labels.classes} classes"
    return f"{labels.classes} {word}{'s' * (labels.classes != 1)}"


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
