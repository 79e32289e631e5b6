"""Rows of masks: the input weights of a neuron or filter; rows differ in density."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossamer.wire.masks.bits import Bits, Whole

Shape: TypeAlias = tuple[int, ...]

SHORTEST = 8
"""The minimum row length in bits; a tensor with shorter rows is a single row."""


@dataclass(frozen=True)
class Rows:
    """The division of a bit vector into rows, and of the rows into groups (tensors)."""

    lengths: Whole
    """The length of each row in bits."""
    groups: Whole
    """The first row of each group, then the number of rows."""

    @staticmethod
    @lru_cache(maxsize=16)
    def of(shapes: tuple[Shape, ...]) -> Rows:
        """The rows of tensors of these shapes; empty tensors are omitted."""
        views = [view(shape) for shape in shapes if math.prod(shape)]
        lengths = [np.full(rows, length, np.int64) for rows, length in views]
        return Rows(np.concatenate([*lengths, np.empty(0, np.int64)]), edges([*map(len, lengths)]))

    def as_long_as(self, lengths: Whole) -> Rows:
        """The same rows with other lengths; empty groups are omitted."""
        if not len(lengths):
            return self
        present = np.add.reduceat(lengths, self.groups[:-1]) > 0
        if present.all():
            return Rows(lengths, self.groups)
        rows_of = np.diff(self.groups)[present]
        return Rows(lengths[present[self.owners]], edges(rows_of))

    @cached_property
    def edges(self) -> Whole:
        """The offset of each row, then the end of the last one."""
        return edges(self.lengths)

    @cached_property
    def owners(self) -> Whole:
        """The group of each row."""
        return np.repeat(np.arange(len(self.groups) - 1), np.diff(self.groups))

    @cached_property
    def spans(self) -> list[slice]:
        """The range of bits of each group."""
        ends = self.edges[self.groups].tolist()
        return [slice(a, b) for a, b in pairwise(ends)]


def edges(lengths: Whole | Sequence[int]) -> Whole:
    """Cumulative sums, starting at zero."""
    sums = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=sums[1:])
    return sums


def view(shape: Shape) -> tuple[int, int]:
    """Number and length of a tensor's rows; one row if it is a vector or has short rows."""
    total = math.prod(shape)
    if len(shape) < 2 or total < SHORTEST * shape[0] or total == 0:
        return 1, total
    return shape[0], total // shape[0]


def line(masks: Sequence[Bits]) -> Bits:
    """All masks as one new bit vector."""
    for index, mask in enumerate(masks):
        if mask.dtype != np.bool_:
            raise TypeError(f"mask {index} has dtype {mask.dtype}; masks have dtype bool")
    return np.concatenate([*(mask.reshape(-1) for mask in masks), np.empty(0, np.bool_)])


def split(bits: Bits, shapes: Sequence[Shape]) -> list[Bits]:
    """Splits a bit vector into masks, which share its memory."""
    ends = edges([math.prod(shape) for shape in shapes]).tolist()
    pairs = zip(shapes, pairwise(ends), strict=True)
    return [bits[start:end].reshape(shape) for shape, (start, end) in pairs]


def counts(ones: NDArray[np.int64], cuts: Whole) -> Whole:
    """The number of sorted positions between each two consecutive cuts."""
    return np.diff(np.searchsorted(ones, cuts))
