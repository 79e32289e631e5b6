"""Which version of the masks each client holds, so that the server sends masks only when needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from gossamer.core import Client, Missing

T = TypeVar("T")

NOBODY = torch.zeros(0, dtype=torch.int32)
"""By client id, the version a client holds, or -1: at first, nobody holds any."""


def holds(held: Tensor, client: Client, version: int) -> bool:
    """Whether a client holds this version."""
    return client.id < len(held) and int(held[client.id]) == version


def updated(held: Tensor, clients: Sequence[int], version: int | Sequence[int]) -> Tensor:
    """The versions held after some clients received `version`, or lost theirs (-1)."""
    found = torch.full((max([len(held), *(id + 1 for id in clients)]),), -1, dtype=torch.int32)
    found[: len(held)] = held
    found[list(clients)] = torch.tensor(version, dtype=torch.int32)
    return found


def received(sent: T | None, held: T | None, what: str = "mask") -> T:
    """What a client was sent or, if nothing was, what it holds.

    Raises:
        Missing: it holds nothing, and the server has to send it.
    """
    if sent is not None:
        return sent
    if held is None:
        raise Missing(f"the server sent no {what}, and none is held here")
    return held
