"""Sampling with replacement and weighting by batches, as the codes of FedDST and PFFDST do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gossamer import merge
from gossamer.core import Client, Ctx, Key, Masks, Params, sample
from gossamer.fields import option
from gossamer.sparsity.select import uniform_numbers

Weighted = tuple[Params, Masks, float]
"""A model, its masks, and their weight in the mean."""


@dataclass(frozen=True)
class Sampling:
    """Which clients take part in a round, and how much their updates count."""

    weighting: Literal["samples", "uniform", "batches"] = option(
        "samples", "how client updates are weighted"
    )
    replacement: bool = option(
        False, "draw clients with replacement; one drawn twice trains once and counts twice"
    )

    def cohort(self, ctx: Ctx, pool: Sequence[Client], count: int) -> Sequence[Client]:
        """The clients of a round; with replacement there may be fewer than `count`."""
        if not self.replacement:
            return sample(ctx.key, pool, count)
        clients = {client.id: client for client in pool}
        return [clients[id] for id in sorted(set(draws(ctx.key, list(clients), count)))]

    def weight(self, client: Client, batch: int) -> float:
        """The weight of a client's update, if it was drawn once."""
        if self.weighting == "batches":
            return float(-(-client.examples // batch))
        return merge.weight(client, self.weighting)

    def repeated(
        self, ctx: Ctx, replies: Iterable[Weighted], ids: Sequence[int], count: int
    ) -> Iterable[Weighted]:
        """Replies weighted by how often their clients were drawn; `ids` may fill as they are read.

        With replacement all replies are held at once, since who else was drawn decides how often
        a client was.
        """
        return _repeated(ctx, replies, ids, count) if self.replacement else replies


def draws(key: Key, ids: Sequence[int], count: int) -> list[int]:
    """The client that each of `count` draws with replacement selects.

    Every client has a random number in each draw, and the smallest wins. So the clients that were
    drawn at all determine how often each was: a server need not know the pool.
    """
    known = np.array(sorted(ids))
    numbers = (uniform_numbers(key.fold("cohort", turn), known[-1] + 1) for turn in range(count))
    return [int(known[np.argmin(each[known])]) for each in numbers]


def _repeated(
    ctx: Ctx, replies: Iterable[Weighted], ids: Sequence[int], count: int
) -> Iterator[Weighted]:
    held = list(replies)
    times = Counter(draws(ctx.key, ids, count) if held else ())
    for id, (params, masks, share) in zip(ids, held, strict=True):
        yield params, masks, share * max(times[id], 1)
