"""What partitions have in common: their interface, checks, and cuts by class."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import Index, Labels, Split
from gossamer.data.dealing import Doubles
from gossamer.data.inputs import Ints

TRIES = 1000
"""Maximum draws of `dirichlet` before it gives up on `least`."""


class Partition(Protocol):
    """A partition; its fields are its parameters, and `str()` is its name on the command line."""

    @property
    def default_pool(self) -> int | None: ...
    def __call__(self, labels: Labels, pool: int | None, key: Key, least: int | None) -> Split: ...


def positive(partition: object, name: str, value: float) -> None:
    if not (value > 0 and np.isfinite(value)):
        raise ValueError(f"{type(partition).__name__.lower()} needs {name} above 0, not {value:g}")


def by_class(y: Ints, classes: int) -> list[Ints]:
    order = np.argsort(y, kind="stable")
    return np.split(order, np.cumsum(np.bincount(y, minlength=classes))[:-1])


def class_cuts(bounds: Doubles, totals: Ints) -> Ints:
    """Where each class is cut: classes by clients + 1, from 0 to the size of the class."""
    cuts = np.zeros((bounds.shape[0], bounds.shape[1] + 1), np.int64)
    cuts[:, 1:] = np.minimum(np.floor(bounds * totals[:, None]), totals[:, None])
    cuts[:, -1] = totals
    return cuts


def checked(
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
                f"`pool={max(1, len(train.rows) // max(1, least or 1))}` or fewer"
                if not getattr(partition, "sizes_differ", False)
                else "`least=0` to leave such clients out, fewer clients or a larger alpha"
                if not fewest
                else f"`least={fewest}` or less, fewer clients or a larger alpha"
            )
        )
    return Split(train, test)
