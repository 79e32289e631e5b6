"""Random masks, and nested masks for clients with different budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import floor

import torch

from gossamer.core import Key, Masks, Params
from gossamer.sparsity.algebra import count
from gossamer.sparsity.allocation import Densities, sensitivity
from gossamer.sparsity.counts import Number, as_fraction
from gossamer.sparsity.select import largest, uniform_numbers
from gossamer.task.layout import Layout
from gossamer.wire import Drawn


def random_masks(
    key: Key, layout: Layout, counts: Mapping[str, int], bernoulli: bool = False
) -> Masks:
    """Masks with `counts` active weights at random places.

    Equal to `Drawn.by(key, counts, shapes)`, so only a seed and the counts need to be sent. With
    `bernoulli` weights are drawn independently, and counts are met in expectation only.
    """
    shapes = {name: layout[name].shape for name in counts}
    if not bernoulli:
        return Drawn.by(key, dict(counts), shapes).masks()
    masks = {}
    for name, wanted in counts.items():
        size = layout[name].count
        drawn = uniform_numbers(key.fold(name), size) * size < wanted
        masks[name] = torch.from_numpy(drawn).reshape(shapes[name])
    return masks


def nested(
    source: Masks, densities: Sequence[Number], by: Key | Params, least: int = 1
) -> list[Masks]:
    """One set of masks per density: nested in each other, and all inside `source`.

    A layer keeps the floor of density / (density of the source) times its count.

    Args:
        by: a key selects weights at random, parameters select the largest magnitudes.
        least: the minimum of every layer.
    """
    active = count(source)
    whole = Fraction(sum(active.values()), max(sum(mask.numel() for mask in source.values()), 1))
    if isinstance(by, Key):
        # A random rank for every coordinate, so that a smaller selection is part of a larger one.
        ranks: Params = {
            name: torch.from_numpy(uniform_numbers(by.fold(name), mask.numel())).reshape(mask.shape)
            for name, mask in source.items()
        }
    else:
        ranks = by
    levels = []
    for density in densities:
        ratio = min(as_fraction(density) / whole, Fraction(1)) if whole else Fraction(0)
        counts = {name: max(floor(ratio * n), min(least, n)) for name, n in active.items()}
        levels.append(largest(ranks, counts, source, least=0))
    return levels


def perturbed(
    key: Key, layout: Layout, densities: Densities, spread: Number, density: Number
) -> Densities:
    """Layer densities that differ by up to the fraction `spread`, scaled to a total density."""
    noise, most = 2 * uniform_numbers(key, len(densities)) - 1, as_fraction(spread)
    wanted = {
        name: min(share * (1 + most * as_fraction(float(each))), Fraction(1))
        for (name, share), each in zip(densities.items(), noise, strict=True)
    }
    return sensitivity(layout, wanted, density)


def part_of(source: Masks, density: Number | None, key: Key) -> Masks:
    """The random part of masks that a client of some density has; all of them without one."""
    return source if density is None else nested(source, [density], key)[0]
