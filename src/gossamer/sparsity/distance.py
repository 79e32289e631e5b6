"""Jaccard distances between masks, layer densities, and masks at a given distance."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from gossamer.core import Key, Masks
from gossamer.sparsity.algebra import Change, count, difference, flat
from gossamer.sparsity.allocation import Densities
from gossamer.sparsity.counts import as_fraction
from gossamer.sparsity.growth import grow_random


def layer_densities(masks: Masks) -> Densities:
    """The exact active fraction of each layer: FLASH's layer sensitivity."""
    return {
        name: Fraction(active, max(masks[name].numel(), 1)) for name, active in count(masks).items()
    }


def density(masks: Masks) -> Fraction:
    """The active share of all layers together."""
    size = sum(mask.numel() for mask in masks.values())
    return Fraction(sum(count(masks).values()), max(size, 1))


def mismatch(first: Masks, second: Masks) -> float:
    """The Jaccard distance between two sets of masks over all layers; 0 if both are empty."""
    pairs = [_overlap(mask, second[name]) for name, mask in first.items()]
    return _distance(sum(both for both, _ in pairs), sum(total for _, total in pairs))


def layer_mismatch(first: Masks, second: Masks) -> dict[str, float]:
    """The Jaccard distance of each layer; their mean is not that of the whole model."""
    return {name: _distance(*_overlap(mask, second[name])) for name, mask in first.items()}


def mismatches(sets: Iterable[Masks]) -> list[list[float]]:
    """The symmetric matrix of Jaccard distances between sets of masks."""
    numbers = [as_number(masks) for masks in sets]
    return [[distance(first, second) for second in numbers] for first in numbers]


def as_number(masks: Masks) -> int:
    """All masks as the bits of one integer: compact, and fast to compare."""
    packed = b"".join(np.packbits(flat(mask)).tobytes() for mask in masks.values())
    return int.from_bytes(packed, "little")


def distance(first: int, second: int) -> float:
    """The Jaccard distance between two sets of masks given as integers."""
    return _distance((first & second).bit_count(), (first | second).bit_count())


def churn(key: Key, masks: Masks, distance: float, layers: Collection[str] | None = None) -> Change:
    """Swaps random weights so that each layer moves by a Jaccard distance; counts stay the same.

    For a distance of `distance`, a mask of k weights exchanges k * distance / (2 - distance) of
    them; a layer with less room than that exchanges as many as it can.
    """
    share = as_fraction(distance)
    if not 0 <= share <= 1:
        raise ValueError(f"a Jaccard distance is between 0 and 1, not {distance}")
    swaps = {}
    for name, active in count(masks).items():
        moves = layers is None or name in layers
        wanted = round(active * share / (2 - share)) if moves else 0
        swaps[name] = min(wanted, masks[name].numel() - active)
    # Drawing what leaves is growing in the complement.
    gone = grow_random(key.fold("leave"), {name: ~mask for name, mask in masks.items()}, swaps)
    return Change.of(masks, difference(masks, gone), grow_random(key.fold("enter"), masks, swaps))


def _overlap(first: Tensor, second: Tensor) -> tuple[int, int]:
    return int(torch.count_nonzero(first & second)), int(torch.count_nonzero(first | second))


def _distance(intersection: int, union: int) -> float:
    return 1 - intersection / union if union else 0.0
