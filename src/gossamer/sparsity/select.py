"""Choosing weights exactly: the largest, the largest gradients, or any, as many as asked for.

Pruning goes *to* a count; `fewer` turns a number to remove into one. Growing tells which
coordinates are new; `Change.of` puts both together.
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
    """True at the largest scores; ties go to the lower index, so the count is exact.

    Only entries of `among` are candidates. What is not a number ranks last.
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

    With `among`, this prunes these masks: a layer that has fewer keeps all it has. `frozen` weights
    are kept first and count like others. No layer is left with fewer than `least`.
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
        # Where weights are on another device than masks, the new ones are where the masks are.
        like = weight if candidates is None else candidates
        mask = shaped(_top(magnitudes(weight), min(more, room), candidates), like)
        found[name] = mask if protected is None else mask | protected
    return found


def largest_of_all(
    params: Params, total: int, among: Masks, frozen: Masks | None = None, least: int = 1
) -> Masks:
    """What is left of masks that keep the `total` largest magnitudes of all layers together.

    `frozen` weights are kept first; a layer keeps at least `least` besides them, if it has so many.
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
    """Takes out of each layer what lies below the percentile of its weights that are not zero.

    `share` is a part of one; between two weights the percentile is interpolated, as NumPy does.
    """
    found = {}
    for name, mask in masks.items():
        sizes = magnitudes(params[name])
        alive = sizes[mask.reshape(-1).cpu().numpy() & (sizes > 0)].astype(np.float64)
        limit = np.quantile(alive, share) if len(alive) else 0.0
        found[name] = mask & shaped(sizes >= limit, mask)
    return found


def counts_after_removal(masks: Masks, removed: Mapping[str, int], least: int = 1) -> Counts:
    """What is left after removing so many, but not below `least` where that much was there."""
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
    """New coordinates, drawn uniformly from the inactive ones, `added` in each layer.

    Only entries of `among` are candidates. With `bernoulli` each candidate is drawn by itself, and
    the count is met in the mean only, as in the code of FLASH.
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
    """New coordinates where scores (gradients, momentum) are largest in magnitude, among inactive.

    Only entries of `among` are candidates. With `everywhere` active ones are candidates too, as in
    the released code of FedDST: chosen, they lose their value and the layer ends below its count.
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

    Grows at random by a key, or where the scores are largest; `everywhere` is FedDST's released way
    (see `grow_largest`). What was just pruned may come back, from zero.
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
    """Which of `size` things are drawn: exactly `wanted`, by the stream that seeds on the wire."""
    drawn = Drawn.by(key, {"": wanted}, {"": (size,)}).masks()
    found: Flags = drawn[""].numpy()
    return found


def uniform_numbers(key: Key, size: int) -> Numbers:
    """Numbers in [0, 1) of 53 bits, from the raw stream, which NumPy promises never to change."""
    raw = np.asarray(key.numpy().bit_generator.random_raw(size), np.uint64)
    return (raw >> np.uint64(11)) * 2.0**-53


def _top(scores: Numbers, wanted: int, among: Tensor | Flags | None = None) -> Flags:
    """A partition finds the cut, ties at the cut are resolved by index: no sort is needed."""
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
