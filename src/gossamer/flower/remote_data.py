"""Data that only the nodes have: each hosts one client, with a data set of its own.

The server has a data set too, for the shape of an input, the classes and a test set, if any; nobody
trains on it. How many examples a client has is what its node reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer import data
from gossamer.config import Config
from gossamer.core import Client, Data, Examples, Key
from gossamer.data.arrays import Pool
from gossamer.data.budgets import deal_budgets, facts
from gossamer.data.federation import Augment

Whole = data.Tensors | data.Synthetic
"""A data set that is opened by its name."""


@dataclass(frozen=True)
class RemoteData:
    """A federation as its server sees it."""

    own: Whole
    """The server's data."""
    pool: Sequence[Client]
    claimed: ClassVar[bool] = True
    """Sizes are what nodes say: the engine caps the weights that follow from them."""

    @classmethod
    def of(cls, config: Config) -> RemoteData:
        """Clients of whom only the number is known; their sizes come with registration."""
        experiment = config.experiment
        if not experiment.pool:
            raise ValueError("with data at the nodes only, give the number of clients with --pool")
        key = Key(experiment.division_seed).fold("data", "budgets")
        budgets = deal_budgets(experiment.budgets or None, experiment.pool, key)
        clients = list(Pool(np.zeros(experiment.pool, np.int64), budgets))
        return cls(alone(config, experiment.data), clients)

    def sized(self, sizes: Mapping[int, int]) -> RemoteData:
        """With the sizes that nodes reported; a client that never registered has none."""
        clients = [replace(client, examples=sizes.get(client.id, 0)) for client in self.pool]
        return replace(self, pool=clients)

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
        """The server's data, and what nodes reported of theirs."""
        sizes = [client.examples for client in self.pool]
        budgets = facts(np.array([client.budget for client in self.pool]))
        return {**_common(self.own), "at": "nodes", "examples": sizes, **budgets}

    def client(self, id: int) -> Data:
        """Nothing: the data are at the client's node."""
        none = Examples(self.test.x[:0], self.test.y[:0])
        return Data(none, none, none)

    def test_rows(self, id: int) -> np.ndarray | None:
        """None: clients have test data of their own."""
        return None


@dataclass(frozen=True)
class NodeData:
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
        return _common(self.own)

    def client(self, id: int) -> Data:
        """The node's data; an error for anybody else."""
        if id != self.id:
            raise ValueError(f"this node has the data of client {self.id}, not of client {id}")
        mine = self.own.client(self.own.pool[0].id)
        return mine if len(mine.test) else replace(mine, test=self.test)

    def test_rows(self, id: int) -> np.ndarray | None:
        """None: nothing here is part of the server's test set."""
        return None


def _common(own: Whole) -> dict[str, object]:
    """Facts without the scale of targets: every node has another, and all must learn the same."""
    facts = own.describe()
    return {name: facts[name] for name in facts if name not in ("target_mean", "target_std")}


def alone(config: Config, name: str) -> Whole:
    """A data set that is not divided."""
    experiment = replace(config.experiment, data=name, partition="iid", pool=1, budgets="")
    made = replace(config, experiment=experiment).build_federation()
    if isinstance(made, Whole):
        return made
    raise ValueError(f"{name} makes a federation; nodes need one data set each")
