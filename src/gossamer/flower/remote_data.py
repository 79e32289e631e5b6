"""Data that only nodes have: one client at each, with a data set of its own.

The server has a data set too, of which it needs the shape of an input, the classes and, if there is
any, the test set; nobody trains on it. How many examples a client has is what its node says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer import data
from gossamer.config import Config
from gossamer.core import Client, Data, Examples, Key
from gossamer.data.budgets import deal_budgets, facts
from gossamer.data.federation import Augment
from gossamer.data.index import Pool

Whole = data.Tensors | data.Synthetic
"""A data set that is opened by its name."""


@dataclass(frozen=True)
class Distant:
    """A federation as its server sees it."""

    own: Whole
    """The server's data."""
    pool: Sequence[Client]

    @classmethod
    def of(cls, config: Config) -> Distant:
        """Clients of whom only the number is known; sizes come with the roll call."""
        wish = config.experiment
        if not wish.pool:
            raise ValueError("where data are at nodes only, say how many clients there are: --pool")
        key = Key(wish.division_seed).fold("data", "budgets")
        budgets = deal_budgets(wish.budgets or None, wish.pool, key)
        clients = list(Pool(np.zeros(wish.pool, np.int64), budgets))
        return cls(alone(config, wish.data), clients)

    def sized(self, sizes: Mapping[int, int]) -> Distant:
        """With what nodes have said; a client that was never there has nothing."""
        found = [replace(client, examples=sizes.get(client.id, 0)) for client in self.pool]
        return replace(self, pool=found)

    @property
    def name(self) -> str:
        return self.own.name

    @property
    def classes(self) -> int:
        return self.own.classes

    @property
    def test(self) -> Examples:
        return self.own.test

    @property
    def augment(self) -> Augment | None:
        return self.own.augment

    def describe(self) -> Mapping[str, object]:
        """The server's data, and what nodes said of theirs."""
        sizes = [client.examples for client in self.pool]
        told = facts(np.array([client.budget for client in self.pool]))
        return {**self.own.describe(), "at": "nodes", "examples": sizes, **told}

    def client(self, id: int) -> Data:
        """Nothing: it is elsewhere."""
        none = Examples(self.test.x[:0], self.test.y[:0])
        return Data(none, none, none)

    def test_rows(self, id: int) -> np.ndarray | None:
        """Clients have test data of their own."""
        return None


@dataclass(frozen=True)
class Own:
    """A federation as a node sees it: one client of many, with the node's data."""

    own: Whole
    id: int

    @property
    def name(self) -> str:
        return self.own.name

    @property
    def classes(self) -> int:
        return self.own.classes

    @property
    def pool(self) -> Sequence[Client]:
        return [Client(self.id, self.own.pool[0].examples)]

    @property
    def test(self) -> Examples:
        return self.own.test

    @property
    def augment(self) -> Augment | None:
        return self.own.augment

    def describe(self) -> Mapping[str, object]:
        return self.own.describe()

    def client(self, id: int) -> Data:
        """The node's data; an error for anybody else."""
        if id != self.id:
            raise ValueError(f"this node has the data of client {self.id}, not of client {id}")
        found = self.own.client(self.own.pool[0].id)
        return found if len(found.test) else replace(found, test=self.test)

    def test_rows(self, id: int) -> np.ndarray | None:
        """Nothing here is part of the server's test set."""
        return None


def alone(config: Config, name: str) -> Whole:
    """A data set that is not divided."""
    wish = replace(config.experiment, data=name, partition="iid", pool=1, budgets="")
    return replace(config, experiment=wish).build_federation()
