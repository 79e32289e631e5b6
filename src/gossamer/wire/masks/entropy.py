"""Entropy of masks: lower bounds on the length of any code for them.

Side information (the number of ones, or the classes of rows) is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gossamer.wire.masks.bits import Bits
from gossamer.wire.masks.rows import view


def mask_bits(masks: Sequence[Bits]) -> float:
    """The bound for independent weights of equal probability: `n H(density)`."""
    return _bits(sum(_ones(mask) for mask in masks), sum(mask.size for mask in masks))


def mask_parts(masks: Sequence[Bits]) -> list[float]:
    """The share of each mask in `mask_bits`: its length in an optimal joint code."""
    ones, sizes = [_ones(mask) for mask in masks], [mask.size for mask in masks]
    return _parts(ones, sizes)


def row_bits(masks: Sequence[Bits]) -> float:
    """The bound if each row has its own probability; at most `mask_bits`."""
    limits = []
    for mask in masks:
        rows, length = view(mask.shape)
        ones = np.count_nonzero(mask.reshape(rows, length), axis=1)
        limits += [_bits(count, length) for count in ones.tolist()]
    return math.fsum(limits)


def conditional_bits(masks: Sequence[Bits], known: Sequence[Bits]) -> float:
    """The bound given `known`: one probability of losing a weight, another of gaining one."""
    size = sum(mask.size for mask in known)
    held = sum(_ones(old) for old in known)
    pairs = list(zip(masks, known, strict=True))
    lost = sum(_ones(old & ~new) for new, old in pairs)
    gained = sum(_ones(new & ~old) for new, old in pairs)
    return _bits(lost, held) + _bits(gained, size - held)


def conditional_parts(masks: Sequence[Bits], known: Sequence[Bits]) -> list[float]:
    """The share of each mask in `conditional_bits`: its length in an optimal joint code."""
    pairs = list(zip(masks, known, strict=True))
    held = [_ones(old) for old in known]
    lost = _parts([_ones(old & ~new) for new, old in pairs], held)
    free = [old.size - some for old, some in zip(known, held, strict=True)]
    gained = _parts([_ones(new & ~old) for new, old in pairs], free)
    return [one + other for one, other in zip(lost, gained, strict=True)]


def _parts(ones: Sequence[int], sizes: Sequence[int]) -> list[float]:
    """The bits of each group if a one and a zero cost the same in all groups."""
    total, size = sum(ones), sum(sizes)
    if total in (0, size):
        return [0.0] * len(ones)
    one, zero = math.log2(size / total), math.log2(size / (size - total))
    return [count * one + (n - count) * zero for count, n in zip(ones, sizes, strict=True)]


def _ones(mask: Bits) -> int:
    return int(np.count_nonzero(mask))


def _bits(ones: int, size: int) -> float:
    """`size` times the binary entropy of `ones / size`."""
    few = min(ones, size - ones)
    if few == 0:
        return 0.0
    return (few * math.log(size / few) - (size - few) * math.log1p(-few / size)) / math.log(2)
