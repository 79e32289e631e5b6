"""Select an exact number of weights by magnitude or by a score.

Pruning goes *to* a count; `counts_after_removal` turns a number to remove into one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from gossamer.core import Key, Masks, Params
from gossamer.sparsity.algebra import (
    Counts,
    Flags,
    Numbers,
    count,
    flat,
    magnitudes,
    part,
    ranked,
    shaped,
)


def top(score: Tensor, wanted: int, among: Tensor | None = None) -> Tensor:
    """True at the `wanted` largest scores; ties go to the lower index, so the count is exact.

    Only entries of `among` are candidates. NaNs rank last.
    """
    return shaped(top_flags(flat(score), wanted, among), score if among is None else among)


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
    masks = {}
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
        mask = shaped(top_flags(magnitudes(weight), min(more, room), candidates), like)
        masks[name] = mask if protected is None else mask | protected
    return masks


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
    chosen = top_flags(scores, min(more, int(np.count_nonzero(candidates))), candidates)
    ends = np.cumsum([mask.numel() for mask in among.values()])[:-1]
    parts = zip(sure.items(), np.split(chosen, ends), strict=True)
    return {name: mask | shaped(flags.copy(), mask) for (name, mask), flags in parts}


def above_percentile(params: Params, masks: Masks, share: float) -> Masks:
    """Prunes the weights of each layer below a percentile of its non-zero weights.

    `share` is a fraction of one; the percentile is interpolated as in NumPy.
    """
    kept = {}
    for name, mask in masks.items():
        sizes = magnitudes(params[name])
        alive = sizes[mask.reshape(-1).cpu().numpy() & (sizes > 0)].astype(np.float64)
        limit = np.quantile(alive, share) if len(alive) else 0.0
        kept[name] = mask & shaped(sizes >= limit, mask)
    return kept


def counts_after_removal(masks: Masks, removed: Mapping[str, int], least: int = 1) -> Counts:
    """The counts after removing `removed` weights, but not below `least`."""
    return {
        name: max(active - removed[name], min(least, active))
        for name, active in count(masks).items()
    }


# parts --------------------------------------------------------------------------------------------


def uniform_numbers(key: Key, size: int) -> Numbers:
    """53-bit numbers in [0, 1) from the raw stream, which NumPy guarantees never to change."""
    raw = np.asarray(key.numpy().bit_generator.random_raw(size), np.uint64)
    return (raw >> np.uint64(11)) * 2.0**-53


def top_flags(scores: Numbers, wanted: int, among: Tensor | Flags | None = None) -> Flags:
    """A partition finds the cut and ties are resolved by index, so no sort is needed."""
    if among is not None:
        candidates = np.flatnonzero(flat(among) if isinstance(among, Tensor) else among)
        flags = np.zeros(len(scores), np.bool_)
        flags[candidates[top_flags(scores[candidates], wanted)]] = True
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
    chosen: Flags = scores > cut
    missing = wanted - int(np.count_nonzero(chosen))
    chosen[np.flatnonzero(scores == cut)[:missing]] = True
    return chosen
