"""Random masks that sender and receiver both draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gossamer.core import Key, Masks

Shapes: TypeAlias = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Drawn:
    """Random masks that sender and receiver both draw: only a seed and counts are sent."""

    seed: int
    """A 64-bit integer."""
    kept: dict[str, int]
    """The exact number of weights kept in each tensor."""
    shapes: Shapes
    """Shapes of the tensors; part of the schema, never sent."""

    def __post_init__(self) -> None:
        if type(self.seed) is not int or self.seed not in range(-(2**63), 2**63):
            raise ValueError(f"the seed of drawn masks is a 64-bit integer, not {self.seed!r}")
        if self.kept.keys() != self.shapes.keys():
            odd = ", ".join(sorted(self.kept.keys() ^ self.shapes.keys()))
            raise ValueError(f"drawn masks need a count and a shape for each tensor; check {odd}")
        for name, kept in self.kept.items():
            size = math.prod(self.shapes[name])
            if type(kept) is not int or not 0 <= kept <= size:
                raise ValueError(f"a drawn mask of {name} cannot keep {kept!r} of {size} weights")

    @classmethod
    def by(cls, key: Key, kept: dict[str, int], shapes: Shapes) -> Drawn:
        """Masks whose seed is derived from a key (63 bits)."""
        return cls(key.digest() % 2**63, kept, shapes)

    def masks(self) -> Masks:
        """The masks, uniform among those with `kept` ones; identical on every host.

        Whoever draws them again gets the same tensors, unless they were changed.
        """
        what = (self.seed, tuple(self.kept.items()), tuple(self.shapes.items()))
        masks = _remembered(*what)
        if any(mask._version for mask in masks.values()):
            masks = _all_drawn(*what)
        return dict(masks)


def _all_drawn(
    seed: int,
    kept: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
) -> Masks:
    key, shape_of = Key(seed).fold("mask"), dict(shapes)
    drawn = {name: _drawn(key.fold(name), shape_of[name], count) for name, count in kept}
    return {name: torch.from_numpy(mask) for name, mask in drawn.items()}


_remembered = lru_cache(maxsize=2)(_all_drawn)


def _drawn(key: Key, shape: Sequence[int], kept: int) -> NDArray[np.bool_]:
    """Marks positions from a random sequence until enough distinct ones are marked.

    Only the raw stream of NumPy's bit generator is used: it is guaranteed never to change, while
    the functions built on it may differ between versions.
    """
    size = math.prod(shape)
    swapped = 2 * kept > size
    wanted = size - kept if swapped else kept
    stream = key.numpy().bit_generator
    fair = 2**64 - 2**64 % size if size else 0  # below it, all remainders are equally likely
    mask = np.zeros(size, np.bool_)
    marked = 0
    while marked < wanted:
        raw = np.asarray(stream.random_raw(wanted - marked), np.uint64)
        if fair < 2**64:
            raw = raw[raw < np.uint64(fair)]
        mask[(raw % np.uint64(size)).view(np.int64)] = True
        marked = int(np.count_nonzero(mask))
    if swapped:
        np.logical_not(mask, out=mask)
    return mask.reshape(tuple(shape))
