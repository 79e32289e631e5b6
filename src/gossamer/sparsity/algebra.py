"""Sets of masks as plain values: counting, combining and applying them, and what a change is.

A mask is a bool tensor of its weight's shape. It, and not the weight, says what is active: a weight
that was just grown is active and zero. Wherever order matters, entries count row by row, whatever
the strides of a tensor are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.core import Masks, Params

Counts: TypeAlias = dict[str, int]
"""How many weights of each layer."""
Flags: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[Any]

SAMPLE = 1024
"""Numbers in which one that is frequent is looked for."""
FREQUENT = 1 / 16
"""The part of a sample from which on a number is frequent."""


@dataclass(frozen=True)
class Change:
    """How masks change: a coordinate may be pruned and grown at once, and then it starts anew."""

    masks: Masks
    """What is active from now on."""
    kept: Masks
    """Where weights and their momentum live on; `masked(params, change.kept)` forgets the rest."""
    pruned: Masks
    grown: Masks
    """Where weights start from zero."""

    @classmethod
    def of(cls, before: Masks, left: Masks, grown: Masks) -> Change:
        """The change from masks to what pruning left of them, and what then was grown."""
        return cls(
            masks=union(left, grown),
            kept=difference(left, grown),
            pruned=difference(before, left),
            grown=grown,
        )


def count(masks: Masks) -> Counts:
    """How many entries of each mask are active."""
    return {name: int(torch.count_nonzero(mask)) for name, mask in masks.items()}


def union(first: Masks, second: Masks) -> Masks:
    """What at least one of two sets keeps."""
    return {name: mask | second[name] for name, mask in first.items()}


def difference(first: Masks, second: Masks) -> Masks:
    """What only the first of two sets keeps."""
    return {name: mask & ~second[name] for name, mask in first.items()}


def inactive(masks: Masks) -> Masks:
    """What is free to be grown."""
    return {name: ~mask for name, mask in masks.items()}


def masked(params: Params, masks: Masks) -> Params:
    """Parameters that are zero outside their masks; one without a mask is handed on as it is.

    Strides stay as they are, since fused optimisers pair weights and momentum by address.
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
    """Masks of zeros and ones, laid out like the tensors they will be multiplied with.

    This is the fast way to mask gradients at every step.
    """
    return {name: torch.empty_like(like[name]).copy_(mask) for name, mask in masks.items()}


# between tensors and arrays -----------------------------------------------------------------------


def flat(tensor: Tensor) -> Numbers:
    """The entries row by row, whatever the strides; it may share the tensor's memory."""
    values = tensor.detach().reshape(-1)
    if values.dtype in (torch.bfloat16, torch.float16):
        values = values.float()  # NumPy has no bfloat16 and is slow with float16
    found: Numbers = values.cpu().numpy()
    return found


def magnitudes(tensor: Tensor) -> Numbers:
    """Absolute values row by row, in memory of their own."""
    found: Numbers = np.abs(flat(tensor))
    return found


def ranked(values: Numbers, place: int) -> float:
    """The number that stands at `place` once they are sorted; those that are none come last.

    NumPy's partition takes up to 20 times longer where many numbers are equal, as the zeros of a
    sparse layer are: a number that is frequent in a sample divides the others first.

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
    """A number that a large part of them is equal to, if a sample has one."""
    sample, times = np.unique(values[:: len(values) // SAMPLE], return_counts=True)
    often = float(sample[times.argmax()])
    return None if times.max() < FREQUENT * times.sum() or np.isnan(often) else often


def shaped(flags: Flags, like: Tensor) -> Tensor:
    """A mask from its entries row by row."""
    return torch.from_numpy(flags).reshape(like.shape).to(like.device)


def part(masks: Mapping[str, Tensor] | None, name: str) -> Tensor | None:
    """One layer's mask, where there are masks at all."""
    return None if masks is None else masks[name]
