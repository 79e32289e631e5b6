"""Synthetic(alpha, beta): clients whose data are drawn when asked for, a hundred thousand or more.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020, https://arxiv.org/abs/1812.06127. Every client has its own linear classifier and its own
mean of 60 features; alpha says how much classifiers differ, beta how much inputs do.

Differs from the authors' code:
- sizes are capped by `largest` (their log-normal sizes reach hundreds of thousands);
- the server's test set is drawn from clients that take no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from gossamer.core import Client, Data, Examples, Key
from gossamer.data.arrays import Pool
from gossamer.data.budgets import deal_budgets, facts
from gossamer.data.federation import Augment
from gossamer.data.inputs import Floats, Ints
from gossamer.data.origin import Origin


@dataclass(frozen=True)
class Synthetic:
    """60 features, 10 classes; client `id` is a function of the key and its number alone."""

    key: Key
    clients: int = 100
    alpha: float = 1.0
    beta: float = 1.0
    valid: float = 0.0
    tested: float = 0.1
    """The fraction of a client's examples that is its test data."""
    largest: int = 1000
    budgets: Sequence[float] | None = None
    augment: Augment | None = field(default=None, init=False)
    origin: Origin | None = field(default=None, compare=False)
    """How `data.federation` made it, if it did."""

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ValueError(f"a pool of {self.clients} clients is empty; use `pool=1` or more")
        if self.alpha < 0 or self.beta < 0:
            raise ValueError(
                f"synthetic:{self.alpha:g},{self.beta:g} has a negative number; use 0 or more"
            )
        if not 0 <= self.valid < 1:
            raise ValueError(f"valid is {self.valid}, but must be a fraction from 0 up to 1")

    def __repr__(self) -> str:
        return f"Synthetic({self.alpha:g}, {self.beta:g}: {self.clients:,} clients, 10 classes)"

    @property
    def name(self) -> str:
        return f"synthetic:{self.alpha:g},{self.beta:g}"

    @property
    def classes(self) -> int:
        return 10

    @property
    def shape(self) -> tuple[int, ...]:
        return (60,)

    @cached_property
    def _sizes(self) -> Ints:
        """Examples of every client, test and validation included."""
        drawn = self.key.fold("sizes").numpy().lognormal(4.0, 2.0, size=self.clients)
        return np.minimum(drawn, self.largest).astype(np.int64) + 50

    def _parts(self, sizes: Ints) -> tuple[Ints, Ints, Ints]:
        test = (sizes * self.tested).astype(np.int64)
        valid = ((sizes - test) * self.valid).astype(np.int64)
        return sizes - test - valid, valid, test

    @cached_property
    def pool(self) -> Sequence[Client]:
        return Pool(self._parts(self._sizes)[0], self._budgets)

    @cached_property
    def _budgets(self) -> Floats:
        return deal_budgets(self.budgets, self.clients, self.key.fold("budgets"))

    @cached_property
    def test(self) -> Examples:
        """2,000 examples of 20 clients that take no part."""
        parts = [self._draw(self.key.fold("held-out", id), 100) for id in range(20)]
        return Examples(
            torch.from_numpy(np.concatenate([x for x, _ in parts])),
            torch.from_numpy(np.concatenate([y for _, y in parts])),
        )

    def client(self, id: int) -> Data:
        if not 0 <= id < self.clients:
            raise IndexError(f"no client {id}; the pool has clients 0 to {self.clients - 1}")
        size = self._sizes[id]
        x, y = self._draw(self.key.fold("client", id), int(size))
        train, valid, _ = (int(part) for part in self._parts(size))
        cuts = [0, train, train + valid, int(size)]
        parts = [
            Examples(torch.from_numpy(x[start:end]), torch.from_numpy(y[start:end]))
            for start, end in pairwise(cuts)
        ]
        return Data(*parts)

    def test_rows(self, id: int) -> np.ndarray | None:
        """None: a client's own test data are not part of the server's."""
        return None

    def describe(self) -> dict[str, object]:
        """Facts for a report: sizes, and how the data were drawn."""
        sizes = self._parts(self._sizes)[0]
        return {
            "name": self.name,
            "partition": "natural",
            "pool": self.clients,
            "classes": self.classes,
            "shape": self.shape,
            "train": int(sizes.sum()),
            "valid": int(self._parts(self._sizes)[1].sum()),
            "test": 2000,
            "smallest": int(sizes.min()),
            "median": float(np.median(sizes)),
            "largest": int(sizes.max()),
            "scale": "raw",
            "augment": False,
            **facts(self._budgets),
        }

    def _draw(self, key: Key, count: int) -> tuple[Floats, Ints]:
        draw = key.numpy()
        # The authors' code uses alpha and beta as standard deviations.
        model, place = draw.normal(0, self.alpha), draw.normal(0, self.beta)
        weight, bias = draw.normal(model, 1, (60, 10)), draw.normal(model, 1, 10)
        centre = draw.normal(place, 1, 60)
        spread = np.arange(1, 61) ** -0.6  # variances fall as j ** -1.2
        x = centre + spread * draw.standard_normal((count, 60))
        return x.astype(np.float32), np.argmax(x @ weight + bias, axis=1).astype(np.int64)
