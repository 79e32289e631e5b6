"""Dealing rows to clients without replacement; everything a partition draws is drawn here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gossamer.data.inputs import Ints

Doubles: TypeAlias = npt.NDArray[np.float64]


def sizes_of(total: int, parts: int) -> Ints:
    """`total` in `parts` that differ by one at most, the larger ones first."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def deal_evenly(rows: Ints, hands: int, draw: np.random.Generator) -> Ints:
    """The hand of every row, such that hands differ by one at most; who gets more is random."""
    hand = np.empty(len(rows), np.int64)
    hand[draw.permutation(len(rows))] = np.arange(len(rows)) % hands
    return draw.permutation(hands)[hand]


def take(mix: Doubles, stock: Ints, count: int, draw: np.random.Generator) -> Ints:
    """How many of each class `count` draws from `mix` give when classes run out.

    The same as drawing one by one and leaving out a class as soon as it is empty: what was drawn
    beyond the stock is drawn again from the classes that still have some.
    """
    taken = np.zeros_like(stock)
    while count > 0:
        chances = np.where(stock > taken, mix, 0.0)
        if chances.sum() <= 0:
            chances = (stock - taken).astype(np.float64)
        drawn = draw.multinomial(count, chances / chances.sum())
        accepted = np.minimum(drawn, stock - taken)
        taken += accepted
        count -= int(accepted.sum())
    return taken


@dataclass(frozen=True)
class Branch:
    """One client's tree: a mix of coarse classes, and for each of them one of fine classes."""

    coarse: Doubles
    fine: Sequence[Doubles]
    members: Sequence[Ints]

    def take(self, stock: Ints, count: int, draw: np.random.Generator) -> Ints:
        """As `take`, but a fine class that runs out is replaced within its coarse class."""
        inside = np.array([stock[members].sum() for members in self.members])
        taken = np.zeros_like(stock)
        for label, number in enumerate(take(self.coarse, inside, count, draw)):
            if number:
                members = self.members[label]
                taken[members] = take(self.fine[label], stock[members], int(number), draw)
        return taken


def hierarchical(
    coarse: Ints, clients: int, coarse_alpha: float, fine_alpha: float, draw: np.random.Generator
) -> list[Branch]:
    """A tree for every client: Dirichlet over coarse classes, Dirichlet over the fine in each."""
    members = [np.flatnonzero(coarse == label) for label in range(int(coarse.max()) + 1)]
    return [
        Branch(
            draw.dirichlet(np.full(len(members), coarse_alpha)),
            [draw.dirichlet(np.full(len(fine), fine_alpha)) for fine in members],
            members,
        )
        for _ in range(clients)
    ]


def deal_like(
    mixes: Doubles | Sequence[Branch], y: Ints, sizes: Ints, draw: np.random.Generator
) -> Ints:
    """The owner of every row when client after client draws `sizes[i]` rows by its own mix."""
    first = mixes[0]
    fine = sum(map(len, first.members)) if isinstance(first, Branch) else len(first)
    stock = np.bincount(y, minlength=fine)
    # Rows of every class in random order; a client takes the next ones.
    order = np.lexsort((draw.random(len(y)), y))
    ahead = np.concatenate([[0], np.cumsum(stock)[:-1]])
    owner = np.full(len(y), -1, np.int64)
    for client, size in enumerate(sizes):
        mix = mixes[client]
        if isinstance(mix, Branch):
            taken = mix.take(stock, int(size), draw)
        else:
            taken = take(mix, stock, int(size), draw)
        for label in np.flatnonzero(taken):
            number = taken[label]
            owner[order[ahead[label] : ahead[label] + number]] = client
            ahead[label] += number
        stock = stock - taken
    return owner
