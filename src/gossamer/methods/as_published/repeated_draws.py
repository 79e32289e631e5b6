"""Sampling with replacement and weighting by batches, as the codes of FedDST and PFFDST do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from gossamer import merge
from gossamer.core import Client, Ctx, Key, Masks, Params, sample
from gossamer.sparsity.select import uniform_numbers

Weighting = Literal["samples", "uniform", "batches"]
Weighted = tuple[Params, Masks, float]
"""A model, its masks, and their weight in the mean."""


def cohort(ctx: Ctx, pool: Sequence[Client], count: int, replacement: bool) -> Sequence[Client]:
    """The clients of a round; with replacement there may be fewer, some of which weigh more."""
    if not replacement:
        return sample(ctx.key, pool, count)
    clients = {client.id: client for client in pool}
    return [clients[id] for id in sorted(set(draws(ctx.key, list(clients), count)))]


def repeated(
    ctx: Ctx, replies: Iterable[Weighted], ids: Sequence[int], count: int
) -> Iterator[Weighted]:
    """Replies weighted by how often their clients were drawn; `ids` may fill as they are read.

    All replies are held at once, since who else was drawn decides how often a client was.
    """
    held = list(replies)
    times = Counter(draws(ctx.key, ids, count) if held else ())
    for id, (params, masks, share) in zip(ids, held, strict=True):
        yield params, masks, share * max(times[id], 1)


def draws(key: Key, ids: Sequence[int], count: int) -> list[int]:
    """The client that each of `count` draws with replacement selects.

    Every client has a random number in each draw, and the smallest wins. So the clients that were
    drawn at all determine how often each was: a server need not know the pool.
    """
    known = np.array(sorted(ids))
    numbers = (uniform_numbers(key.fold("cohort", turn), known[-1] + 1) for turn in range(count))
    return [int(known[np.argmin(each[known])]) for each in numbers]


def weight(client: Client, weighting: Weighting, batch: int) -> float:
    """The weight of a client's update, if it was drawn once."""
    if weighting == "batches":
        return float(-(-client.examples // batch))
    return merge.weight(client, weighting)
