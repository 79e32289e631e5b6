"""A federation of tensors and index arrays: data are in memory once, clients are row numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gossamer.core import Client, Data, Examples, Key
from gossamer.data.arrays import Arrays, Index, Labels, Pool, Split, outputs
from gossamer.data.budgets import deal_budgets, facts
from gossamer.data.federation import Augment
from gossamer.data.inputs import Floats, Inputs, Ints, Rows, Scale
from gossamer.data.origin import Origin


@dataclass(frozen=True)
class Tensors:
    """Gathers a client's rows when they are asked for and makes them ready for the module.

    Images come as float32 NCHW in the channels-last memory format, text as int64 tokens.
    """

    arrays: Arrays
    train: Index
    valid: Index
    own_test: Index
    budgets: Floats
    partition: str
    scale: Scale = "normalised"
    augment: Augment | None = None
    origin: Origin | None = field(default=None, compare=False)
    """How `data.federation` made it, if it did and can do so again."""

    def __repr__(self) -> str:
        return (
            f"Tensors({self.name}, {self.partition}: {len(self.train):,} clients, "
            f"{len(self.train.rows):,} training and {len(self.arrays.labels.test):,} test examples "
            f"of shape {self.shape}, {outputs(self.arrays.labels)})"
        )

    @property
    def name(self) -> str:
        return self.arrays.name

    @property
    def classes(self) -> int:
        return self.arrays.labels.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """One input without the batch dimension: (channels, height, width) or (length,)."""
        return self.arrays.kind.shape

    @cached_property
    def pool(self) -> Sequence[Client]:
        return Pool(self.train.sizes, self.budgets)

    @cached_property
    def test(self) -> Examples:
        labels = self.arrays.labels.test
        return self._examples(self.arrays.test, labels, np.arange(len(labels)))

    def client(self, id: int) -> Data:
        arrays, labels = self.arrays, self.arrays.labels
        train, valid, test = self.train[id], self.valid[id], self.own_test[id]
        return Data(
            self._examples(arrays.train, labels.train, train),
            self._examples(arrays.train, labels.train, valid),
            self._examples(arrays.test, labels.test, test),
        )

    def test_rows(self, id: int) -> np.ndarray | None:
        """Rows of `test` that are this client's own test data."""
        return self.own_test[id]

    def counts(self) -> Ints:
        """A table of clients by classes: how many training examples of each class everyone has."""
        strata = self.arrays.labels.strata
        return self.train.counts(strata.train, strata.classes)

    def describe(self) -> dict[str, object]:
        """Facts for a report: sizes, and how inputs were scaled."""
        sizes = self.train.sizes
        return {
            "name": self.name,
            "partition": self.partition,
            "pool": len(sizes),
            "classes": self.classes,
            "shape": self.shape,
            "train": len(self.train.rows),
            "valid": len(self.valid.rows),
            "test": len(self.arrays.labels.test),
            "smallest": int(sizes.min()),
            "median": float(np.median(sizes)),
            "largest": int(sizes.max()),
            "scale": self.scale,
            "augment": self.augment is not None,
            **self.arrays.kind.facts(self.scale),
            **target_facts(self.arrays.labels, self.scale),
            **facts(self.budgets),
        }

    def _examples(self, x: Rows, y: np.ndarray, rows: Ints) -> Examples:
        def load(order: Ints | None) -> Tensor:
            return self.arrays.kind.tensor(x, rows if order is None else rows[order], self.scale)

        return Examples(load, torch.from_numpy(y[rows]))


def target_facts(labels: Labels, scale: Scale) -> dict[str, object]:
    """What labels are, if they are no classes; and the scale on which targets are learned."""
    if labels.task == "classification":
        return {}
    if labels.task != "regression" or scale != "normalised":
        return {"task": labels.task}
    rows = labels.train.reshape(len(labels.train), -1).astype(np.float64)
    spread = rows.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    known = {"target_mean": rows.mean(0).tolist(), "target_std": spread.tolist()}
    return {"task": labels.task, **known}


def federate(
    arrays: Arrays,
    split: Split,
    partition: str,
    key: Key,
    valid: float = 0.0,
    inputs: Inputs = Inputs(),
    budgets: str | Sequence[float] | None = None,
) -> Tensors:
    """The federation that a split of the arrays makes; see `gossamer.data.federation`."""
    change = arrays.kind.augment(inputs.scale) if inputs.augment else None
    if inputs.augment and change is None:
        raise ValueError(
            f"{arrays.name} has no augmentation (a mirrored example would not be of its class); "
            f"leave out augment"
        )
    train, held = hold_out(split.train, valid, key.fold("valid"))
    dealt = deal_budgets(budgets, len(split), key.fold("budgets"))
    return Tensors(arrays, train, held, split.test, dealt, partition, inputs.scale, change)


def hold_out(train: Index, fraction: float, key: Key) -> tuple[Index, Index]:
    """Moves a random `fraction` of every client's rows to validation; one row always stays."""
    if not 0 <= fraction < 1:
        raise ValueError(f"valid is {fraction}, but must be a fraction from 0 up to 1, e.g. 0.1")
    sizes, owners = train.sizes, train.owners
    moved = np.minimum(np.floor(sizes * fraction + 0.5).astype(np.int64), np.maximum(sizes - 1, 0))
    if not moved.any():
        return train, Index(np.empty(0, np.int64), np.zeros(len(train) + 1, np.int64))
    order = np.lexsort((key.numpy().random(len(owners)), owners))
    rank = np.arange(len(owners)) - train.offsets[owners]
    held = np.zeros(len(owners), bool)
    held[order[rank < moved[owners]]] = True
    kept, taken = (
        Index(train.rows[chosen], np.concatenate([[0], np.cumsum(number)]))
        for chosen, number in ((~held, sizes - moved), (held, moved))
    )
    return kept, taken
