"""Sparse learning on a client: prune the smallest weights, regrow where layers are strong.

Dettmers, Zettlemoyer: Sparse networks from scratch, 2019, https://arxiv.org/abs/1907.04840, in the
form that FLASH uses (Babakniya et al., TMLR 2023): layers share what was pruned by the mean
magnitude of their active weights, and places are random.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, isfinite
from typing import Literal

import numpy as np

from gossamer.core import Batch, Key, Masks, Params
from gossamer.sparsity.algebra import Change, Counts, count, flat, magnitudes
from gossamer.sparsity.counts import as_fraction, share_out, whole_numbers
from gossamer.sparsity.growth import grow_largest, grow_random
from gossamer.sparsity.select import counts_after_removal, largest

Redistribution = Literal["magnitude", "momentum", "none"]
Growth = Literal["random", "bernoulli", "momentum", "gradient"]
Shares = dict[str, Fraction]

CROWDED = Fraction(1, 5)
"""A strong layer with fewer free places than this prunes no more than it can take back."""


@dataclass(frozen=True)
class Carry:
    """What the released code still owes after a mask update; it begins anew in every round."""

    owed: float = 0.0
    missing: tuple[float, ...] = ()

    def after(self, missing: float) -> Carry:
        """Once more, with so many weights fewer active than intended."""
        every = (*self.missing, missing)
        return Carry(0.25 * self.owed + 0.75 * missing + sum(every) / len(every), every)


def updates_masks(batch: Batch) -> bool:
    """Whether masks are updated after this batch, so that what is regrown trains before it travels.

    In a round of one epoch that is once, in the middle; else after every epoch but the last.
    """
    if batch.steps <= batch.per_epoch:
        return batch.step == batch.steps // 2
    return batch.ends_epoch and batch.step + 1 < batch.steps


@dataclass(frozen=True)
class Regrowth:
    """How pruned weights are regrown."""

    redistribution: Redistribution = "magnitude"
    """By what layers share the weights that are grown; `none`: each grows what it lost."""
    growth: Growth = "random"
    """Which weights of a layer are grown."""
    exact: bool = True
    """Whether as many are grown as were pruned; else shares are rounded up as in released code."""
    carry: Carry = Carry()
    """What the released code still owes, kept by the caller for the length of a round:
    `carry = carry.after(intended - sum(count(change.masks).values()))`."""


def evolve(
    key: Key,
    params: Params,
    masks: Masks,
    rate: float,
    how: Regrowth = Regrowth(),
    *,
    momentum: Params | None = None,
    gradient: Params | None = None,
    among: Masks | None = None,
) -> Change:
    """Prunes `rate` of each layer's weights and grows as many, shared among layers by strength.

    Args:
        key: Of random growth.
        params: The weights.
        masks: The masks that are evolved.
        rate: The fraction of each layer's active weights that is pruned.
        how: How pruned weights are regrown.
        momentum: Needed where `how` goes by momentum.
        gradient: Needed for growth by gradient.
        among: Coordinates outside of it, such as frozen ones, are neither grown nor counted as
            room; active ones must be inside.
    """
    active = count(masks)
    sizes = {name: mask.numel() for name, mask in masks.items()} if among is None else count(among)
    strong = _strength(how.redistribution, params, masks, momentum)
    removed = _removals(as_fraction(rate), active, sizes, strong)
    left = largest(
        params, counts_after_removal(masks, removed, least=int(how.exact)), masks, least=0
    )
    remaining = count(left)
    room = {name: sizes[name] - n for name, n in remaining.items()}
    if strong is None:  # every layer gets back what it lost
        strong = {name: Fraction(active[name] - n) for name, n in remaining.items()}
    lost = sum(active.values()) - sum(remaining.values())
    if how.exact:
        added = whole_numbers(share_out(Fraction(lost), strong, room))
    else:
        added = _rounded_up(_shares(strong), lost + as_fraction(how.carry.owed), room)
    if how.growth in ("random", "bernoulli"):
        grown = grow_random(key, left, added, among, bernoulli=how.growth == "bernoulli")
    else:
        scores = momentum if how.growth == "momentum" else gradient
        grown = grow_largest(_needed(scores, f"growth by {how.growth}"), left, added, among)
    return Change.of(masks, left, grown)


def removals(
    params: Params,
    masks: Masks,
    rate: float,
    redistribution: Redistribution = "magnitude",
    momentum: Params | None = None,
) -> Counts:
    """How many weights of each layer `evolve` prunes: fewer of a strong one that is nearly full."""
    sizes = {name: mask.numel() for name, mask in masks.items()}
    strong = _strength(redistribution, params, masks, momentum)
    return _removals(as_fraction(rate), count(masks), sizes, strong)


def _strength(
    redistribution: Redistribution, params: Params, masks: Masks, momentum: Params | None
) -> Shares | None:
    """What layers claim: the mean magnitude of what is active; None where there is no sharing."""
    if redistribution == "none":
        return None
    values = params
    if redistribution == "momentum":
        values = _needed(momentum, "redistribution by momentum")
    means = {}
    for name, mask in masks.items():
        chosen = magnitudes(values[name])[flat(mask)]
        mean = float(np.mean(chosen, dtype=np.float64)) if len(chosen) else 0.0
        means[name] = Fraction(mean) if isfinite(mean) else Fraction(0)
    return means


def _removals(
    rate: Fraction, active: Counts, sizes: Mapping[str, int], strong: Shares | None
) -> Counts:
    removed = {}
    shares = None if strong is None else _shares(strong)
    for name, kept in active.items():
        free = Fraction(sizes[name] - kept, max(sizes[name], 1))
        crowded = shares is not None and free < CROWDED and shares[name] * len(active) > 1
        removed[name] = ceil((min(free, rate) if crowded else rate) * kept)
    return removed


def _rounded_up(shares: Shares, budget: Fraction, room: Mapping[str, int]) -> Counts:
    """The released way: shares rounded up, and what does not fit is divided equally.

    The released code divides again and again what still does not fit; this is where that ends.
    """
    most = {name: Fraction(99, 100) * free for name, free in room.items()}
    asked = {name: Fraction(max(ceil(share * budget), 0)) for name, share in shares.items()}
    fits = {name: min(number, most[name]) for name, number in asked.items()}
    rest = {name: most[name] - number for name, number in fits.items()}
    over = sum((asked[name] - number for name, number in fits.items()), Fraction(0))
    more = share_out(
        min(over, sum(rest.values(), Fraction(0))), dict.fromkeys(rest, Fraction(1)), rest
    )
    return {name: floor(number + more[name]) for name, number in fits.items()}


def _shares(strong: Shares) -> Shares:
    total = sum(strong.values(), Fraction(0))
    equal = Fraction(1, max(len(strong), 1))
    return {name: each / total if total else equal for name, each in strong.items()}


def _needed(scores: Params | None, purpose: str) -> Params:
    if scores is None:
        name = purpose.rpartition(" ")[2]
        raise ValueError(f"{purpose} needs {name}={name} of every masked tensor; none was passed")
    return scores
