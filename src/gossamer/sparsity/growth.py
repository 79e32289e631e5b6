"""Grow an exact number of weights: at random, or where gradients are largest."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from gossamer.core import Key, Masks, Params
from gossamer.sparsity.algebra import Change, Flags, count, flat, inactive, magnitudes, part, shaped
from gossamer.sparsity.select import largest, top_flags, uniform_numbers
from gossamer.wire import Drawn


def grow_random(
    key: Key,
    masks: Masks,
    added: Mapping[str, int],
    among: Masks | None = None,
    bernoulli: bool = False,
) -> Masks:
    """New coordinates drawn uniformly from the inactive ones, `added` in each layer.

    Only entries of `among` are candidates. With `bernoulli` candidates are drawn independently, and
    the count is met in expectation only, as in FLASH's released code.
    """
    grown = {}
    for name, mask in masks.items():
        allowed = part(among, name)
        free = np.flatnonzero(flat(~mask if allowed is None else ~mask & allowed))
        wanted = added[name]
        _check(name, wanted, len(free))
        if bernoulli:
            chosen = uniform_numbers(key.fold(name), len(free)) * len(free) < wanted
        else:
            chosen = some(key.fold(name), len(free), wanted)
        flags = np.zeros(mask.numel(), np.bool_)
        flags[free[chosen]] = True
        grown[name] = shaped(flags, mask)
    return grown


def grow_largest(
    scores: Params,
    masks: Masks,
    added: Mapping[str, int],
    among: Masks | None = None,
    everywhere: bool = False,
) -> Masks:
    """New coordinates where scores (gradients, momentum) have the largest magnitudes.

    Only inactive entries of `among` are candidates. With `everywhere` active ones are candidates
    too, as in FedDST's released code: they are reset to zero, and the layer ends below its count.
    """
    grown = {}
    for name, mask in masks.items():
        allowed = part(among, name)
        if everywhere:
            free = torch.ones_like(mask) if allowed is None else allowed
        else:
            free = ~mask if allowed is None else ~mask & allowed
        _check(name, added[name], int(torch.count_nonzero(free)))
        grown[name] = shaped(top_flags(magnitudes(scores[name]), added[name], free), mask)
    return grown


def readjust(
    params: Params,
    masks: Masks,
    low: Mapping[str, int],
    high: Mapping[str, int],
    by: Key | Params,
    frozen: Masks | None = None,
    everywhere: bool = False,
) -> Change:
    """Prunes each layer to its count in `low` by magnitude, then grows it to its count in `high`.

    Weights that were just pruned may be regrown, from zero.

    Args:
        by: a key grows at random, scores grow where they are largest.
        frozen: weights that are neither pruned nor grown.
        everywhere: as in FedDST's released code; see `grow_largest`.
    """
    left = largest(params, low, masks, frozen)
    added = {name: max(high[name] - active, 0) for name, active in count(left).items()}
    among = None if frozen is None else inactive(frozen)
    if isinstance(by, Key):
        grown = grow_random(by, left, added, among)
    else:
        grown = grow_largest(by, left, added, among, everywhere)
    return Change.of(masks, left, grown)


def some(key: Key, size: int, wanted: int) -> Flags:
    """A random selection of exactly `wanted` out of `size`, by the stream of seeds on the wire."""
    drawn = Drawn.by(key, {"": wanted}, {"": (size,)}).masks()
    flags: Flags = drawn[""].numpy()
    return flags


def _check(name: str, wanted: int, free: int) -> None:
    if not 0 <= wanted <= free:
        raise ValueError(
            f"{name} is to grow by {wanted} weights, but {free} may be grown; ask for fewer"
        )
