"""Partitions with skewed labels: Dirichlet, LDA and shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import Labels, Split
from gossamer.data.dealing import Doubles, deal_evenly, deal_like, sizes_of
from gossamer.data.division import TRIES, by_class, checked, class_cuts, positive
from gossamer.data.inputs import Ints


@dataclass(frozen=True)
class Dirichlet:
    """Each class is divided by a draw from Dirichlet(alpha) over the clients; sizes differ.

    Train and test are cut by the same proportions. The draw is repeated, at most 1,000 times, until
    everyone has `least` training examples (10 unless asked otherwise, or the most that a draw gave)
    and, if a draw gave it, one test example. `least=0` takes the first draw as it comes and leaves
    out the clients without training examples, as the code of FedDST does.
    """

    sizes_differ: ClassVar[bool] = True
    alpha: float
    default_pool: ClassVar[int] = 100

    def __post_init__(self) -> None:
        positive(self, "alpha", self.alpha)

    def __str__(self) -> str:
        return f"dirichlet:{self.alpha:g}"

    def __call__(self, labels: Labels, pool: int | None, key: Key, least: int | None) -> Split:
        pool = pool or self.default_pool
        totals = [np.bincount(y, minlength=labels.classes) for y in (labels.train, labels.test)]
        wanted = min(10, len(labels.train) // pool) if least is None else least
        draw = key.fold("proportions").numpy()
        best: tuple[tuple[int, int], Doubles] | None = None
        possible = 0 < wanted * pool <= len(labels.train)
        for _ in range(TRIES if possible else 1):
            shares = draw.dirichlet(np.full(pool, self.alpha), size=labels.classes)
            bounds = np.cumsum(shares, axis=1)
            train, test = (
                int(np.diff(class_cuts(bounds, total), axis=1).sum(0).min()) for total in totals
            )
            score = (min(train, wanted), min(test, 1))
            if best is None or score > best[0]:
                best = score, bounds
            if score == (wanted, min(len(labels.test) // pool, 1)):
                break
        assert best is not None
        owners = [
            self._owners(y, best[1], total, key.fold(part))
            for part, y, total in zip(
                ("train", "test"), (labels.train, labels.test), totals, strict=True
            )
        ]
        return checked(self, owners, pool, least, drop=least == 0)

    @staticmethod
    def _owners(y: Ints, bounds: Doubles, totals: Ints, key: Key) -> Ints:
        draw, cuts = key.numpy(), class_cuts(bounds, totals)
        owner = np.empty(len(y), np.int64)
        for label, rows in enumerate(by_class(y, len(totals))):
            places = np.searchsorted(cuts[label, 1:], np.arange(len(rows)), side="right")
            owner[draw.permutation(rows)] = places
        return owner


@dataclass(frozen=True)
class LDA:
    """Each client draws its class mix from Dirichlet(alpha); all have equally many examples.

    Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution (2019). Examples are
    drawn without replacement; a class that is used up is left out and the rest renormalised, so the
    last clients get what is left. The client's test examples follow the same mix.
    """

    alpha: float
    default_pool: ClassVar[int] = 100

    def __post_init__(self) -> None:
        positive(self, "alpha", self.alpha)

    def __str__(self) -> str:
        return f"lda:{self.alpha:g}"

    def __call__(self, labels: Labels, pool: int | None, key: Key, least: int | None) -> Split:
        pool = pool or self.default_pool
        mixes = key.fold("mixes").numpy().dirichlet(np.full(labels.classes, self.alpha), size=pool)
        owners = [
            deal_like(mixes, y, sizes_of(len(y), pool), key.fold(part).numpy())
            for part, y in (("train", labels.train), ("test", labels.test))
        ]
        return checked(self, owners, pool, least)


@dataclass(frozen=True)
class Shards:
    """Every client gets exactly `each` classes, and an equal share of each of them.

    The pathological split of McMahan et al. (2017), with classes in the place of label-sorted
    shards, so that no client has one class more because a shard crossed a boundary.
    """

    each: int = 2
    default_pool: ClassVar[int] = 100

    def __post_init__(self) -> None:
        positive(self, "each", self.each)

    def __str__(self) -> str:
        return f"shards:{self.each}"

    def __call__(self, labels: Labels, pool: int | None, key: Key, least: int | None) -> Split:
        pool = pool or self.default_pool
        present = np.flatnonzero(np.bincount(labels.train, minlength=labels.classes))
        if self.each > len(present):
            raise ValueError(
                f"{self} asks for {self.each} classes per client but the training set has "
                f"{len(present)}; use shards:{len(present)} or fewer"
            )
        if self.each * pool < len(present):
            raise ValueError(
                f"{self} hands out {self.each * pool} of {len(present)} classes to {pool} clients "
                f"and would lose the others; use `pool={-(-len(present) // self.each)}` or more"
            )
        held = self._hands(len(present), pool, key.fold("hands").numpy())
        owners = []
        for part, y in (("train", labels.train), ("test", labels.test)):
            draw = key.fold(part).numpy()
            owner = np.empty(len(y), np.int64)
            holders = dict(zip(present.tolist(), held.T, strict=True))
            for label, rows in enumerate(by_class(y, labels.classes)):
                some = np.flatnonzero(holders[label]) if label in holders else np.arange(pool)
                owner[rows] = some[deal_evenly(np.arange(len(rows)), len(some), draw)]
            owners.append(owner)
        return checked(self, owners, pool, least)

    def _hands(self, classes: int, pool: int, draw: np.random.Generator) -> Ints:
        """A 0-1 table of clients by classes with `each` ones per row and even columns."""
        left = sizes_of(pool * self.each, classes)[draw.permutation(classes)]
        held = np.zeros((pool, classes), np.int64)
        for hand in held:
            # Always the classes with most holders still to find: then the deal cannot get stuck.
            hand[np.lexsort((draw.random(classes), -left))[: self.each]] = 1
            left = left - hand
        return held
