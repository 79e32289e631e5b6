"""A federation: the clients, the data of each, and the server's test data."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

from gossamer.core import Client, Data, Examples, Key

Augment = Callable[[Tensor, Key], Tensor]
"""Augments a batch of training inputs by the key of the step."""


MAKERS = ("from_arrays", "from_torch", "from_clients", "from_hugging_face")

if TYPE_CHECKING:
    from gossamer.data import makers

    class _Makers(ABCMeta):
        from_arrays = staticmethod(makers.from_arrays)
        from_torch = staticmethod(makers.from_torch)
        from_clients = staticmethod(makers.from_clients)
        from_hugging_face = staticmethod(makers.from_hugging_face)

else:

    class _Makers(type(Protocol)):
        """Functions of the class `Federation` itself, which federations need not have."""

        def __getattr__(cls, name):
            if name not in MAKERS:
                raise AttributeError(f"{cls.__name__} has no {name!r}")
            return getattr(import_module("gossamer.data.makers"), name)

        def __dir__(cls):
            return [*super().__dir__(), *MAKERS]


class Federation(Protocol, metaclass=_Makers):
    """What the engine needs of data; everything is loaded on demand.

    `Federation.from_arrays`, `from_torch`, `from_clients` and `from_hugging_face` make one.
    """

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
