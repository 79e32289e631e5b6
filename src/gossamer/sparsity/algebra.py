"""Sets of masks as plain values: count, combine and apply them, and describe how they change.

A mask is a bool tensor of its weight's shape. The mask, not the weight, defines what is active: a
weight that was just grown is active and zero. Wherever order matters it is row-major, whatever the
strides of a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.arithmetic.indices import true_count
from gossamer.core import Masks, Params

Counts: TypeAlias = dict[str, int]
"""A number of weights for each layer."""
Flags: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[Any]

SAMPLE = 1024
"""Size of the sample that is searched for a frequent value."""
FREQUENT = 1 / 16
"""A value is frequent if it makes up at least this fraction of the sample."""


@dataclass(frozen=True)
class Change:
    """A change of masks. A coordinate that is pruned and grown at once restarts from zero."""

    masks: Masks
    """The new masks."""
    kept: Masks
    """Where weights and their momentum survive; `masked(params, change.kept)` zeroes the rest."""
    pruned: Masks
    grown: Masks
    """Where weights start from zero."""

    @classmethod
    def of(cls, before: Masks, left: Masks, grown: Masks) -> Change:
        """From the old masks, what pruning left of them, and what was then grown."""
        return cls(
            masks=union(left, grown),
            kept=difference(left, grown),
            pruned=difference(before, left),
            grown=grown,
        )


def count(masks: Masks) -> Counts:
    """The number of active entries of each mask."""
    return {name: true_count(mask) for name, mask in masks.items()}


def union(first: Masks, second: Masks) -> Masks:
    """Entries that are active in at least one of two sets."""
    return {name: mask | second[name] for name, mask in first.items()}


def difference(first: Masks, second: Masks) -> Masks:
    """Entries that are active in the first set and not in the second."""
    return {name: mask & ~second[name] for name, mask in first.items()}


def inactive(masks: Masks) -> Masks:
    """The complement: entries that could be grown."""
    return {name: ~mask for name, mask in masks.items()}


def masked(params: Params, masks: Masks) -> Params:
    """Parameters set to zero outside their masks; a tensor without a mask is returned as it is.

    Strides are preserved, because fused optimisers pair weights and momentum by address.
    """
    return {
        name: tensor.clone().masked_fill_(~masks[name], 0) if name in masks else tensor
        for name, tensor in params.items()
    }


def replaced(params: Params, masks: Masks, source: Params) -> Params:
    """Parameters with the values of others where masks are true."""
    return {
        **params,
        **{name: torch.where(mask, source[name], params[name]) for name, mask in masks.items()},
    }


def numbers(masks: Masks, like: Params) -> Params:
    """Masks as zeros and ones, with the strides of the tensors they will multiply.

    This is the fast way to mask gradients at every step.
    """
    return {name: torch.empty_like(like[name]).copy_(mask) for name, mask in masks.items()}


# between tensors and arrays -----------------------------------------------------------------------


def flat(tensor: Tensor) -> Numbers:
    """The entries in row-major order; may share the tensor's memory."""
    values = tensor.detach().reshape(-1)
    if values.dtype in (torch.bfloat16, torch.float16):
        values = values.float()  # NumPy has no bfloat16 and is slow with float16
    array: Numbers = values.cpu().numpy()
    return array


def magnitudes(tensor: Tensor) -> Numbers:
    """Absolute values in row-major order, always a copy."""
    sizes: Numbers = np.abs(flat(tensor))
    return sizes


def ranked(values: Numbers, place: int) -> float:
    """The value at index `place` of the sorted values; NaNs sort last.

    NumPy's partition is up to 20 times slower when many values are equal, such as the zeros of a
    sparse layer, so a value that is frequent in a sample first splits the others in two.

    >>> ranked(np.array([3.0, 0.0, 2.0, 0.0]), 2)
    2.0
    """
    often = _frequent(values) if len(values) > SAMPLE else None
    if often is None:
        return float(np.partition(values, place)[place])
    below, above = values[values < often], ~(values <= often)
    if place < len(below):
        return ranked(below, place)
    equal = len(values) - len(below) - int(np.count_nonzero(above))
    if place < len(below) + equal:
        return often
    return ranked(values[above], place - len(below) - equal)


def _frequent(values: Numbers) -> float | None:
    """A value that many entries are equal to, if a sample has one."""
    sample, times = np.unique(values[:: len(values) // SAMPLE], return_counts=True)
    often = float(sample[times.argmax()])
    return None if times.max() < FREQUENT * times.sum() or np.isnan(often) else often


def shaped(flags: Flags, like: Tensor) -> Tensor:
    """A mask from its entries in row-major order."""
    return torch.from_numpy(flags).reshape(like.shape).to(like.device)


def part(masks: Mapping[str, Tensor] | None, name: str) -> Tensor | None:
    """One layer's mask, or None if there are no masks."""
    return None if masks is None else masks[name]
