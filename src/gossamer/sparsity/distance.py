"""How far masks are apart, how dense their layers are, and masks that are a given way apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from gossamer.core import Key, Masks
from gossamer.sparsity.algebra import Change, count, difference, flat
from gossamer.sparsity.allocation import Densities, as_fraction
from gossamer.sparsity.select import grow_random


def layer_densities(masks: Masks) -> Densities:
    """The active share of each layer, exactly: FLASH's sensitivity of layers."""
    return {
        name: Fraction(active, max(masks[name].numel(), 1)) for name, active in count(masks).items()
    }


def density(masks: Masks) -> Fraction:
    """The active share of all layers together."""
    size = sum(mask.numel() for mask in masks.values())
    return Fraction(sum(count(masks).values()), max(size, 1))


def mismatch(first: Masks, second: Masks) -> float:
    """The Jaccard distance of two sets of masks, all layers together; 0 if both are empty."""
    pairs = [_overlap(mask, second[name]) for name, mask in first.items()]
    return _distance(sum(both for both, _ in pairs), sum(either for _, either in pairs))


def layer_mismatch(first: Masks, second: Masks) -> dict[str, float]:
    """The Jaccard distance in each layer; their mean is not that of the whole."""
    return {name: _distance(*_overlap(mask, second[name])) for name, mask in first.items()}


def mismatches(sets: Iterable[Masks]) -> list[list[float]]:
    """The Jaccard distances of all sets of masks from one another, as a symmetric matrix."""
    numbers = [as_number(masks) for masks in sets]
    return [[distance(first, second) for second in numbers] for first in numbers]


def as_number(masks: Masks) -> int:
    """All masks as the bits of one whole number: sets are small so, and quickly compared."""
    packed = b"".join(np.packbits(flat(mask)).tobytes() for mask in masks.values())
    return int.from_bytes(packed, "little")


def distance(first: int, second: int) -> float:
    """The Jaccard distance of two sets of masks that have become numbers."""
    return _distance((first & second).bit_count(), (first | second).bit_count())


def churn(key: Key, masks: Masks, distance: float, layers: Collection[str] | None = None) -> Change:
    """Swaps weights at random until layers are at a Jaccard distance from before, counts unchanged.

    To be `distance` apart, a mask of k weights exchanges k * distance / (2 - distance) of them; a
    layer that has less room than that exchanges what it can.
    """
    share = as_fraction(distance)
    if not 0 <= share <= 1:
        raise ValueError(f"a Jaccard distance is between 0 and 1, not {distance}")
    swaps = {}
    for name, active in count(masks).items():
        moves = layers is None or name in layers
        wanted = round(active * share / (2 - share)) if moves else 0
        swaps[name] = min(wanted, masks[name].numel() - active)
    # What leaves is drawn as what enters is: from the inactive entries of the opposite mask.
    gone = grow_random(key.fold("leave"), {name: ~mask for name, mask in masks.items()}, swaps)
    return Change.of(masks, difference(masks, gone), grow_random(key.fold("enter"), masks, swaps))


def _overlap(first: Tensor, second: Tensor) -> tuple[int, int]:
    return int(torch.count_nonzero(first & second)), int(torch.count_nonzero(first | second))


def _distance(both: int, either: int) -> float:
    return 1 - both / either if either else 0.0
