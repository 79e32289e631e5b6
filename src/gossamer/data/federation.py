"""A federation: the clients, the data of each, and the server's test data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from gossamer.core import Client, Data, Examples, Key

Augment = Callable[[Tensor, Key], Tensor]
"""Augments a batch of training inputs by the key of the step."""


class Federation(Protocol):
    """What the engine needs of data; everything is loaded on demand."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> int: ...
    @property
    def pool(self) -> Sequence[Client]: ...
    @property
    def test(self) -> Examples: ...
    @property
    def augment(self) -> Augment | None: ...
    def describe(self) -> Mapping[str, object]:
        """Facts for the event log and the report: name, sizes, partition, scaling."""
        ...

    def client(self, id: int) -> Data: ...

    def test_rows(self, id: int) -> np.ndarray | None:
        """Rows of `test` that are this client's own test data, if they are part of it."""
        ...
