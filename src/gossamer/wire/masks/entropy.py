"""What a mask is worth: the bits below which no code for masks of its kind can go.

Side information (how many ones there are, or which class a row is of) is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gossamer.wire.masks.bits import Bits
from gossamer.wire.masks.rows import view


def mask_bits(masks: Sequence[Bits]) -> float:
    """The limit if every weight is kept with the same chance, independently: `n H(density)`."""
    return _bits(sum(_ones(mask) for mask in masks), sum(mask.size for mask in masks))


def mask_parts(masks: Sequence[Bits]) -> list[float]:
    """What each mask has of `mask_bits`: its length in the best code for all of them together."""
    ones, sizes = [_ones(mask) for mask in masks], [mask.size for mask in masks]
    return _parts(ones, sizes)


def row_bits(masks: Sequence[Bits]) -> float:
    """The limit if every row has a chance of its own; never more than `mask_bits`."""
    limits = []
    for mask in masks:
        rows, length = view(mask.shape)
        ones = np.count_nonzero(mask.reshape(rows, length), axis=1)
        limits += [_bits(count, length) for count in ones.tolist()]
    return math.fsum(limits)


def conditional_bits(masks: Sequence[Bits], known: Sequence[Bits]) -> float:
    """The limit for a receiver of `known`: one chance to lose a weight, another to gain one."""
    size = sum(mask.size for mask in known)
    held = sum(_ones(old) for old in known)
    pairs = list(zip(masks, known, strict=True))
    lost = sum(_ones(old & ~new) for new, old in pairs)
    gained = sum(_ones(new & ~old) for new, old in pairs)
    return _bits(lost, held) + _bits(gained, size - held)


def conditional_parts(masks: Sequence[Bits], known: Sequence[Bits]) -> list[float]:
    """What each mask has of `conditional_bits`, in the best code for all of them together."""
    pairs = list(zip(masks, known, strict=True))
    held = [_ones(old) for old in known]
    lost = _parts([_ones(old & ~new) for new, old in pairs], held)
    free = [old.size - some for old, some in zip(known, held, strict=True)]
    gained = _parts([_ones(new & ~old) for new, old in pairs], free)
    return [one + other for one, other in zip(lost, gained, strict=True)]


def _parts(ones: Sequence[int], sizes: Sequence[int]) -> list[float]:
    """Bits of each group where a one and a zero cost the same in all of them."""
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
