"""Partitions: how examples are divided among clients, as pure functions of a key.

A partition gives every row exactly one owner, so no example is lost or doubled; `natural` with a
smaller pool, and `least=0`, leave out whole clients and say so.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import Index, Ints, Labels, Split
from gossamer.data.dealing import Doubles, deal_evenly, deal_like, hierarchical, sizes_of

TRIES = 1000
"""Maximum draws of `dirichlet` before it gives up on `least`."""


class Partition(Protocol):
    """A partition; its fields are its parameters, and `str()` is its name on the command line."""

    @property
    def default_pool(self) -> int | None: ...
    def __call__(self, labels: Labels, pool: int | None, key: Key, least: int | None) -> Split: ...


@dataclass(frozen=True)
class IID:
    """Every client gets a random share of the same size (to within one example)."""

    default_pool: ClassVar[int] = 100

    def __str__(self) -> str:
        return "iid"

    def __call__(self, labels: Labels, pool: int | None, key: Key, least: int | None) -> Split:
        pool = pool or self.default_pool
        owners = [
            deal_evenly(np.arange(len(y)), pool, key.fold(part).numpy())
            for part, y in (("train", labels.train), ("test", labels.test))
        ]
        return _checked(self, owners, pool, least)


@dataclass(frozen=True)
class Dirichlet:
    """Each class is divided by a draw from Dirichlet(alpha) over the clients; sizes differ.

    Train and test are cut by the same proportions. The draw is repeated, at most 1,000 times, until
    everyone has `least` training examples (10 unless asked otherwise, or the most that a draw gave)
    and, if a draw gave it, one test example. `least=0` takes the first draw as it comes and leaves
    out the clients without training examples, as the code of FedDST does.
    """

    alpha: float
    default_pool: ClassVar[int] = 100

    def __post_init__(self) -> None:
        _positive(self, "alpha", self.alpha)

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
                int(np.diff(_cuts(bounds, total), axis=1).sum(0).min()) for total in totals
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
        return _checked(self, owners, pool, least, drop=least == 0)

    @staticmethod
    def _owners(y: Ints, bounds: Doubles, totals: Ints, key: Key) -> Ints:
        draw, cuts = key.numpy(), _cuts(bounds, totals)
        owner = np.empty(len(y), np.int64)
        for label, rows in enumerate(_by_class(y, len(totals))):
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
        _positive(self, "alpha", self.alpha)

    def __str__(self) -> str:
        return f"lda:{self.alpha:g}"

    def __call__(self, labels: Labels, pool: int | None, key: Key, least: int | None) -> Split:
        pool = pool or self.default_pool
        mixes = key.fold("mixes").numpy().dirichlet(np.full(labels.classes, self.alpha), size=pool)
        owners = [
            deal_like(mixes, y, sizes_of(len(y), pool), key.fold(part).numpy())
            for part, y in (("train", labels.train), ("test", labels.test))
        ]
        return _checked(self, owners, pool, least)


@dataclass(frozen=True)
class Shards:
    """Every client gets exactly `each` classes, and an equal share of each of them.

    The pathological split of McMahan et al. (2017), with classes in the place of label-sorted
    shards, so that no client has one class more because a shard crossed a boundary.
    """

    each: int = 2
    default_pool: ClassVar[int] = 100

    def __post_init__(self) -> None:
        _positive(self, "each", self.each)

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
                f"and would lose the others; use --pool {-(-len(present) // self.each)} or more"
            )
        held = self._hands(len(present), pool, key.fold("hands").numpy())
        owners = []
        for part, y in (("train", labels.train), ("test", labels.test)):
            draw = key.fold(part).numpy()
            owner = np.empty(len(y), np.int64)
            holders = dict(zip(present.tolist(), held.T, strict=True))
            for label, rows in enumerate(_by_class(y, labels.classes)):
                some = np.flatnonzero(holders[label]) if label in holders else np.arange(pool)
                owner[rows] = some[deal_evenly(np.arange(len(rows)), len(some), draw)]
            owners.append(owner)
        return _checked(self, owners, pool, least)

    def _hands(self, classes: int, pool: int, draw: np.random.Generator) -> Ints:
        """A 0-1 table of clients by classes with `each` ones per row and even columns."""
        left = sizes_of(pool * self.each, classes)[draw.permutation(classes)]
        held = np.zeros((pool, classes), np.int64)
        for hand in held:
            # Always the classes with most holders still to find: then the deal cannot get stuck.
            hand[np.lexsort((draw.random(classes), -left))[: self.each]] = 1
            left = left - hand
        return held


@dataclass(frozen=True)
class Pachinko:
    """Each client draws a mix of coarse classes, then a mix of fine classes within each.

    Reddi et al.: Adaptive Federated Optimization (2021), for CIFAR-100 with 500 clients: coarse
    Dirichlet(0.1), fine Dirichlet(10), without replacement. Test examples follow the same tree.
    """

    coarse: float = 0.1
    fine: float = 10.0
    default_pool: ClassVar[int] = 500

    def __post_init__(self) -> None:
        _positive(self, "coarse", self.coarse)
        _positive(self, "fine", self.fine)

    def __str__(self) -> str:
        standard = self == Pachinko()
        return "pachinko" if standard else f"pachinko:{self.coarse:g},{self.fine:g}"

    def __call__(self, labels: Labels, pool: int | None, key: Key, least: int | None) -> Split:
        pool = pool or self.default_pool
        if labels.coarse is None:
            raise ValueError(
                f"{self} needs coarse classes and this data set has none; use cifar100 or lda:0.1"
            )
        tree = hierarchical(labels.coarse, pool, self.coarse, self.fine, key.fold("tree").numpy())
        owners = [
            deal_like(tree, y, sizes_of(len(y), pool), key.fold(part).numpy())
            for part, y in (("train", labels.train), ("test", labels.test))
        ]
        return _checked(self, owners, pool, least)


@dataclass(frozen=True)
class Natural:
    """One client per writer or speaker; a smaller pool is a random choice of them.

    Groups with fewer than `least` (1) training examples take no part; their test examples stay in
    the server's test set.
    """

    default_pool: ClassVar[None] = None

    def __str__(self) -> str:
        return "natural"

    def __call__(self, labels: Labels, pool: int | None, key: Key, least: int | None) -> Split:
        if labels.groups is None:
            raise ValueError(
                "natural needs writers or speakers and this data set has none; use femnist or "
                "shakespeare, or another partition such as dirichlet:0.3"
            )
        names, numbers = np.unique(np.concatenate(labels.groups), return_inverse=True)
        parts = np.split(numbers, [len(labels.groups[0])])
        train, test = (Index.of(part, len(names)) for part in parts)
        able = np.flatnonzero(train.sizes >= max(1, least or 1))
        if pool is not None and pool > len(able):
            raise ValueError(
                f"natural has {len(able)} clients with {max(1, least or 1)} or more training "
                f"examples, not {pool}; use --pool {len(able)} or fewer"
            )
        if pool is not None:
            able = np.sort(key.fold("groups").numpy().choice(able, size=pool, replace=False))
        return Split(train.keep(able), test.keep(able))


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "lda": LDA,
    "shards": Shards,
    "pachinko": Pachinko,
    "natural": Natural,
}


def parse(text: str) -> Partition:
    """The partition that a string such as `dirichlet:0.2` names."""
    name, _, rest = text.partition(":")
    if name not in PARTITIONS:
        close = difflib.get_close_matches(name, PARTITIONS, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise KeyError(f"no partition {name!r}; {hint}there are {', '.join(PARTITIONS)}")
    kind = PARTITIONS[name]
    expected = fields(kind)  # type: ignore[arg-type]
    given = rest.split(",") if rest else []
    try:
        return kind(*[int(x) if name == "shards" else float(x) for x in given])
    except TypeError:
        pattern = ",".join(f.name.upper() for f in expected)
        example = f"`{name}:{pattern}`" if expected else f"`{name}` alone"
        raise ValueError(f"partition {text!r} does not fit; write {example}") from None
    except ValueError as error:
        if "could not convert" in str(error) or "invalid literal" in str(error):
            raise ValueError(f"partition {text!r} needs numbers after the colon") from None
        raise


def _positive(partition: object, name: str, value: float) -> None:
    if not (value > 0 and np.isfinite(value)):
        raise ValueError(f"{type(partition).__name__.lower()} needs {name} above 0, not {value:g}")


def _by_class(y: Ints, classes: int) -> list[Ints]:
    order = np.argsort(y, kind="stable")
    return np.split(order, np.cumsum(np.bincount(y, minlength=classes))[:-1])


def _cuts(bounds: Doubles, totals: Ints) -> Ints:
    """Where each class is cut: classes by clients + 1, from 0 to the size of the class."""
    cuts = np.zeros((bounds.shape[0], bounds.shape[1] + 1), np.int64)
    cuts[:, 1:] = np.minimum(np.floor(bounds * totals[:, None]), totals[:, None])
    cuts[:, -1] = totals
    return cuts


def _checked(
    partition: Partition, owners: list[Ints], pool: int, least: int | None, drop: bool = False
) -> Split:
    train, test = (Index.of(owner, pool) for owner in owners)
    if drop:
        some = np.flatnonzero(train.sizes)
        return Split(train.keep(some), test.keep(some))
    poorest, fewest = int(train.sizes.argmin()), int(train.sizes.min())
    if fewest < max(1, least or 1):
        has = f"{fewest} training examples, not {least}," if fewest else "no training examples"
        raise ValueError(
            f"client {poorest} has {has} under {partition} with {pool} clients; use "
            + (
                f"--pool {max(1, len(train.rows) // max(1, least or 1))} or fewer"
                if not isinstance(partition, Dirichlet)
                else "--least 0 to leave such clients out, fewer clients or a larger alpha"
                if not fewest
                else f"--least {fewest} or less, fewer clients or a larger alpha"
            )
        )
    return Split(train, test)
