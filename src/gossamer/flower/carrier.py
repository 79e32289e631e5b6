"""What the server's transport needs of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gossamer.flower.messages import Message

Purpose = Literal["train", "evaluate", "query"]


@dataclass(frozen=True)
class Outgoing:
    """A message to a node."""

    node: int
    purpose: Purpose
    message: Message
    round: int
    seconds: float
    """How long it is of use."""


@dataclass(frozen=True)
class Incoming:
    """The answer to a message, or why there is none."""

    id: str
    message: Message | None
    reason: str = ""


class Carrier(Protocol):
    """A network that carries messages to nodes and their answers back."""

    def nodes(self) -> list[int]:
        """The nodes that are connected now."""
        ...

    def names(self) -> Mapping[int, str]:
        """The names under which the keys of nodes are registered, where they are."""
        ...

    def send(self, outgoing: Sequence[Outgoing]) -> list[str]:
        """Sends messages.

        Returns:
            An id for each message, empty if it was not accepted.
        """
        ...

    def collect(self, ids: Sequence[str]) -> list[Incoming]:
        """The answers to these messages that have arrived since the last call."""
        ...
