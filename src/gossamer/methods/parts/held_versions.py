"""Which version of the masks each client holds, so that the server sends masks only when needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import Client, Masks, Missing
from gossamer.wire import Revision

NOBODY = torch.zeros(0, dtype=torch.int32)
"""By client id, the version a client holds, or -1: at first, nobody holds any."""


@dataclass(frozen=True)
class Local:
    """The masks that a client keeps between its rounds."""

    masks: Masks


def holds(held: Tensor, client: Client, version: int) -> bool:
    """Whether a client holds this version."""
    return client.id < len(held) and int(held[client.id]) == version


def updated(held: Tensor, clients: Sequence[int], version: int | Sequence[int]) -> Tensor:
    """The versions held after some clients received `version`, or lost theirs (-1)."""
    versions = torch.full((max([len(held), *(id + 1 for id in clients)]),), -1, dtype=torch.int32)
    versions[: len(held)] = held
    versions[list(clients)] = torch.tensor(version, dtype=torch.int32)
    return versions


def received(sent: Revision | None, held: Masks | None) -> Masks:
    """The masks that a client was sent or, if the server sent none, those that it holds.

    Raises:
        Missing: it holds none.
    """
    if sent is not None:
        return sent.masks
    if held is None:
        raise Missing("the server sent no mask, and none is held here")
    return held
