"""Who takes part in a round, how often, and what that counts for: also as released codes have it.

The codes of FedDST and PFFDST draw clients with replacement and weight them by batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from gossamer import merge
from gossamer.core import Client, Ctx, Key, Masks, Params, sample
from gossamer.sparsity.select import uniform_numbers

Weighting = Literal["samples", "uniform", "batches"]
Counted = tuple[Params, Masks, float]
"""A model, its masks, and what they count for."""


def drawn(ctx: Ctx, pool: Sequence[Client], count: int, replacement: bool) -> Sequence[Client]:
    """The clients of a round; with replacement there may be fewer, of whom some count more."""
    if not replacement:
        return sample(ctx.key, pool, count)
    known = {client.id: client for client in pool}
    return [known[id] for id in sorted(set(draws(ctx.key, list(known), count)))]


def repeated(
    ctx: Ctx, replies: Iterable[Counted], ids: Sequence[int], count: int
) -> Iterator[Counted]:
    """Replies that count as often as their clients were drawn; `ids` may fill as they are read.

    All are held at once, since who else was drawn decides how often somebody was.
    """
    held = list(replies)
    times = Counter(draws(ctx.key, ids, count) if held else ())
    for id, (params, masks, share) in zip(ids, held, strict=True):
        yield params, masks, share * max(times[id], 1)


def draws(key: Key, ids: Sequence[int], count: int) -> list[int]:
    """Whom each of `count` draws with replacement hits.

    Everybody has a random number in each draw, and the smallest wins. So those who were drawn at
    all tell by themselves who was drawn how often: a server need not know the pool for it.
    """
    known = np.array(sorted(ids))
    numbers = (uniform_numbers(key.fold("cohort", turn), known[-1] + 1) for turn in range(count))
    return [int(known[np.argmin(each[known])]) for each in numbers]


def weight(client: Client, weighting: Weighting, batch: int) -> float:
    """What a client counts for in a mean, if it was drawn once."""
    if weighting == "batches":
        return float(-(-client.examples // batch))
    return merge.weight(client, weighting)
