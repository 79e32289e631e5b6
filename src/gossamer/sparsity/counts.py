"""Exact shares of layers, and whole numbers of weights from them.

Shares are fractions rather than floats, so that counts are the same everywhere and never off by
one: 0.3 - 0.15 of 20 weights is 3, although its floor in floating point is 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import floor
from typing import Literal, TypeAlias

from gossamer.sparsity.algebra import Counts
from gossamer.task.layout import Layout

Number: TypeAlias = float | Fraction
Sizes: TypeAlias = Layout | Mapping[str, int]
"""Weights per layer: the prunable ones of a layout, or explicit numbers."""
Rounding = Literal["exact", "floor"]


def as_fraction(value: Number) -> Fraction:
    """The fraction that a float stands for: 0.1 is 1/10, and so is 0.09999999999999998.

    >>> as_fraction(0.3 - 0.15)
    Fraction(3, 20)
    """
    return value if isinstance(value, Fraction) else Fraction(value).limit_denominator(10**9)


def sizes_of(sizes: Sizes) -> Counts:
    """Weights per layer as plain numbers."""
    if isinstance(sizes, Layout):
        return {name: sizes.leaves[name].count for name in sizes.prunable}
    return dict(sizes)


def apportion(
    sizes: Sizes,
    densities: Mapping[str, Number],
    rounding: Rounding = "exact",
    least: int = 1,
) -> Counts:
    """Whole numbers of weights per layer.

    Args:
        rounding: `exact` rounds the total once and distributes it by largest remainder, earlier
            layers first; `floor` rounds every layer down.
        least: the minimum of every layer, taken from the largest layers where necessary.
    """
    plain = sizes_of(sizes)
    shares = {name: clipped(as_fraction(densities[name])) * size for name, size in plain.items()}
    if rounding == "floor":
        counts = {name: floor(share) for name, share in shares.items()}
        return {name: max(counts[name], min(least, size)) for name, size in plain.items()}
    counts = whole_numbers(shares)
    lacking = 0
    for name, size in plain.items():
        more = max(min(least, size) - counts[name], 0)
        counts[name] += more
        lacking += more
    for _ in range(lacking):
        payer = max(counts, key=counts.__getitem__)
        if counts[payer] <= least:
            break
        counts[payer] -= 1
    return counts


def whole_numbers(shares: Mapping[str, Fraction]) -> Counts:
    """Rounds shares by largest remainder, so that they add up to their rounded sum."""
    counts = {name: floor(share) for name, share in shares.items()}
    missing = round(sum(shares.values(), Fraction(0))) - sum(counts.values())
    by_remainder = sorted(shares, key=lambda name: counts[name] - shares[name])
    for name in by_remainder[:missing]:
        counts[name] += 1
    return counts


def share_out(
    total: Fraction,
    weights: Mapping[str, Fraction],
    most: Mapping[str, int] | Mapping[str, Fraction],
) -> dict[str, Fraction]:
    """Divides `total` in proportion to weights, with an upper bound for each share.

    The excess of a share beyond its bound is redistributed to the others; a share of weight zero is
    filled only when all others are full.
    """
    room = sum(most.values())
    if not 0 <= total <= room:
        raise ValueError(f"{float(total):g} weights do not fit into {float(room):g}")
    full: dict[str, Fraction] = {}
    while True:
        open_to = [name for name in most if name not in full]
        rest = total - sum(full.values())
        pull = {name: weights[name] for name in open_to}
        if not any(pull.values()):
            pull = {name: Fraction(most[name]) for name in open_to}
        sum_of_pull = sum(pull.values()) or Fraction(1)
        parts = {name: rest * pull[name] / sum_of_pull for name in open_to}
        over = [name for name in open_to if parts[name] > most[name]]
        if not over:
            return {name: full[name] if name in full else parts[name] for name in most}
        full.update((name, Fraction(most[name])) for name in over)


def clipped(share: Fraction) -> Fraction:
    return min(max(share, Fraction(0)), Fraction(1))
