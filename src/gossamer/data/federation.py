"""A federation: who takes part, what each client holds, and what the server may test on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from gossamer.core import Client, Data, Examples, Key

Augment = Callable[[Tensor, Key], Tensor]
"""Changes a batch of training inputs, drawing from the key of the step."""


class Federation(Protocol):
    """What an engine needs of data: nothing is read before it is asked for."""

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
