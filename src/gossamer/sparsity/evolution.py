"""Sparse learning on a client: prune the smallest weights, regrow more in stronger layers.

Dettmers, Zettlemoyer: Sparse networks from scratch, 2019, https://arxiv.org/abs/1907.04840, in the
form that FLASH uses (Babakniya et al., TMLR 2023): pruned weights are redistributed by the mean
magnitude of each layer's active weights, and regrown at random positions.
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
"""A strong layer with a smaller inactive fraction prunes no more weights than it can regrow."""


@dataclass(frozen=True)
class Carry:
    """The regrowth debt of the released code after a mask update; reset in every round."""

    owed: float = 0.0
    missing: tuple[float, ...] = ()

    def after(self, missing: float) -> Carry:
        """The debt after another update that left `missing` weights fewer active than intended."""
        every = (*self.missing, missing)
        return Carry(0.25 * self.owed + 0.75 * missing + sum(every) / len(every), every)


def updates_masks(batch: Batch) -> bool:
    """Whether masks are updated after this batch; regrown weights are trained before they are sent.

    In a round of one epoch: once, in the middle; otherwise after every epoch but the last.
    """
    if batch.steps <= batch.per_epoch:
        return batch.step == batch.steps // 2
    return batch.ends_epoch and batch.step + 1 < batch.steps


@dataclass(frozen=True)
class Regrowth:
    """How pruned weights are regrown."""

    redistribution: Redistribution = "magnitude"
    """How regrown weights are shared among layers; `none`: each layer regrows its own number."""
    growth: Growth = "random"
    """Which weights of a layer are grown."""
    exact: bool = True
    """Whether to grow exactly as many as were pruned; else shares are rounded up, as released."""
    carry: Carry = Carry()
    """The debt of the released code, which the caller keeps during a round:
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
        key: The key of random growth.
        params: The weights.
        masks: The current masks.
        rate: The fraction of each layer's active weights that is pruned.
        how: How pruned weights are regrown.
        momentum: Required if `how` uses momentum.
        gradient: Required for growth by gradient.
        among: The coordinates that may be grown and count as room, for example those that are
            not frozen; must include all active ones.
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
    if strong is None:  # every layer regrows as many as it lost
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
    """The number of weights that `evolve` prunes per layer; fewer if strong and nearly full."""
    sizes = {name: mask.numel() for name, mask in masks.items()}
    strong = _strength(redistribution, params, masks, momentum)
    return _removals(as_fraction(rate), count(masks), sizes, strong)


def _strength(
    redistribution: Redistribution, params: Params, masks: Masks, momentum: Params | None
) -> Shares | None:
    """Mean magnitudes of each layer's active weights or momentum; None: no redistribution."""
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
    """As in the released code: shares are rounded up, and the excess is divided equally.

    The released code divides the excess repeatedly; this computes the limit.
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
