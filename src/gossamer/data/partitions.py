"""Partitions: how examples are divided among clients, as pure functions of a key.

A partition gives every row exactly one owner, so no example is lost or doubled; `natural` with a
smaller pool, and `least=0`, leave out whole clients and say so.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import Index, Labels, Split
from gossamer.data.dealing import deal_evenly, deal_like, hierarchical, sizes_of
from gossamer.data.division import Partition, checked, positive
from gossamer.data.label_skew import LDA, Dirichlet, Shards


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
        return checked(self, owners, pool, least)


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
        positive(self, "coarse", self.coarse)
        positive(self, "fine", self.fine)

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
        return checked(self, owners, pool, least)


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
                f"examples, not {pool}; use `pool={len(able)}` or fewer"
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
