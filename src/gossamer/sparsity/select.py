"""Select an exact number of weights: the largest, those of the largest gradients, or random ones.

Pruning goes *to* a count; `counts_after_removal` turns a number to remove into one. Growing returns
the new coordinates; `Change.of` combines the two.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from gossamer.core import Key, Masks, Params
from gossamer.sparsity.algebra import (
    Change,
    Counts,
    Flags,
    Numbers,
    count,
    flat,
    inactive,
    magnitudes,
    part,
    ranked,
    shaped,
)
from gossamer.wire import Drawn


def top(score: Tensor, wanted: int, among: Tensor | None = None) -> Tensor:
    """True at the `wanted` largest scores; ties go to the lower index, so the count is exact.

    Only entries of `among` are candidates. NaNs rank last.
    """
    return shaped(_top(flat(score), wanted, among), score if among is None else among)


# pruning ------------------------------------------------------------------------------------------


def largest(
    params: Params,
    counts: Mapping[str, int],
    among: Masks | None = None,
    frozen: Masks | None = None,
    least: int = 1,
) -> Masks:
    """Masks of the largest magnitudes, `counts` of them in each layer.

    Args:
        among: masks to prune; a layer that has fewer weights keeps all of them.
        frozen: weights that are always kept, and count like others.
        least: the minimum that every layer keeps.
    """
    found = {}
    for name, wanted in counts.items():
        weight, candidates, protected = params[name], part(among, name), part(frozen, name)
        fixed = 0
        if protected is not None:
            candidates = ~protected if candidates is None else candidates & ~protected
            fixed = int(torch.count_nonzero(protected))
        room = weight.numel() if candidates is None else int(torch.count_nonzero(candidates))
        more = max(wanted, min(least, fixed + room)) - fixed
        if more < 0 or (among is None and more > room):
            raise ValueError(
                f"{name} is to keep {wanted} weights, but has {weight.numel()}, {fixed} of them "
                f"frozen; ask for a number between these"
            )
        # Masks stay on the device of the masks, also if weights are on another one.
        like = weight if candidates is None else candidates
        mask = shaped(_top(magnitudes(weight), min(more, room), candidates), like)
        found[name] = mask if protected is None else mask | protected
    return found


def largest_of_all(
    params: Params, total: int, among: Masks, frozen: Masks | None = None, least: int = 1
) -> Masks:
    """Prunes masks to the `total` largest magnitudes across all layers.

    `frozen` weights are always kept; a layer keeps at least `least` more, if it has that many.
    """
    sure = largest(params, dict.fromkeys(among, 0), among, None, least)
    if frozen is not None:
        sure = {name: mask | frozen[name] for name, mask in sure.items()}
    candidates = np.concatenate([flat(mask & ~sure[name]) for name, mask in among.items()])
    scores = np.concatenate([magnitudes(params[name]) for name in among])
    more = max(total - sum(count(sure).values()), 0)
    chosen = _top(scores, min(more, int(np.count_nonzero(candidates))), candidates)
    ends = np.cumsum([mask.numel() for mask in among.values()])[:-1]
    parts = zip(sure.items(), np.split(chosen, ends), strict=True)
    return {name: mask | shaped(flags.copy(), mask) for (name, mask), flags in parts}


def above_percentile(params: Params, masks: Masks, share: float) -> Masks:
    """Prunes the weights of each layer below a percentile of its non-zero weights.

    `share` is a fraction of one; the percentile is interpolated as in NumPy.
    """
    found = {}
    for name, mask in masks.items():
        sizes = magnitudes(params[name])
        alive = sizes[mask.reshape(-1).cpu().numpy() & (sizes > 0)].astype(np.float64)
        limit = np.quantile(alive, share) if len(alive) else 0.0
        found[name] = mask & shaped(sizes >= limit, mask)
    return found


def counts_after_removal(masks: Masks, removed: Mapping[str, int], least: int = 1) -> Counts:
    """The counts after removing `removed` weights, but not below `least`."""
    return {
        name: max(active - removed[name], min(least, active))
        for name, active in count(masks).items()
    }


# growing ------------------------------------------------------------------------------------------


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
    found = {}
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
        found[name] = shaped(flags, mask)
    return found


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
    found = {}
    for name, mask in masks.items():
        allowed = part(among, name)
        if everywhere:
            free = torch.ones_like(mask) if allowed is None else allowed
        else:
            free = ~mask if allowed is None else ~mask & allowed
        _check(name, added[name], int(torch.count_nonzero(free)))
        found[name] = shaped(_top(magnitudes(scores[name]), added[name], free), mask)
    return found


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


# parts --------------------------------------------------------------------------------------------


def some(key: Key, size: int, wanted: int) -> Flags:
    """A random selection of exactly `wanted` out of `size`, by the stream of seeds on the wire."""
    drawn = Drawn.by(key, {"": wanted}, {"": (size,)}).masks()
    found: Flags = drawn[""].numpy()
    return found


def uniform_numbers(key: Key, size: int) -> Numbers:
    """53-bit numbers in [0, 1) from the raw stream, which NumPy guarantees never to change."""
    raw = np.asarray(key.numpy().bit_generator.random_raw(size), np.uint64)
    return (raw >> np.uint64(11)) * 2.0**-53


def _top(scores: Numbers, wanted: int, among: Tensor | Flags | None = None) -> Flags:
    """A partition finds the cut and ties are resolved by index, so no sort is needed."""
    if among is not None:
        candidates = np.flatnonzero(flat(among) if isinstance(among, Tensor) else among)
        flags = np.zeros(len(scores), np.bool_)
        flags[candidates[_top(scores[candidates], wanted)]] = True
        return flags
    size = len(scores)
    if not 0 <= wanted <= size:
        raise ValueError(f"the largest {wanted} of {size} were asked for; ask for {size} at most")
    if wanted in (0, size):
        return np.full(size, wanted > 0)
    unknown = np.isnan(scores)
    if unknown.any():
        scores = np.where(unknown, -np.inf, scores)
    cut = ranked(scores, size - wanted)
    found: Flags = scores > cut
    missing = wanted - int(np.count_nonzero(found))
    found[np.flatnonzero(scores == cut)[:missing]] = True
    return found


def _check(name: str, wanted: int, free: int) -> None:
    if not 0 <= wanted <= free:
        raise ValueError(
            f"{name} is to grow by {wanted} weights, but {free} may be grown; ask for fewer"
        )
