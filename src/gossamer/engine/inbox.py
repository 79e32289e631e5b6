"""Reading requests: a message that many clients of one process are sent is decoded once.

Records are immutable, so clients can share one. That saves a copy of the model for every client,
both the time to write it and the memory until the round is merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gossamer.wire import Levels, Mode, Packed, Revision, Schema, decode, flatten, held


@dataclass(frozen=True)
class Received:
    """A request as a client decoded it."""

    data: bytes
    record: Any
    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]
    """torch's counts of in-place changes, when the record was decoded."""

    def check(self) -> None:
        """Raises an error if someone changed the record, which other clients may share."""
        for tensor, version in zip(self.tensors, self.versions, strict=True):
            if tensor._version != version:
                raise RuntimeError(
                    "the method changed in place what the server sent; let begin copy it first, "
                    "for example by ctx.task.own(down.params)"
                )


class Inbox:
    """Decodes requests. Threads may share an inbox."""

    def __init__(self, wire: Mode, remembers: int) -> None:
        self._wire = wire
        self._remembers = remembers
        self._known: tuple[Received, ...] = ()

    def read(self, data: bytes, schema: Schema, local: Any) -> Received:
        """The request, decoded now or earlier.

        Args:
            data: The message; it is recognised by its identity.
            schema: Of the message.
            local: What the client kept, for messages that revise its masks.

        Raises:
            WireError: The message is malformed.
        """
        for known in self._known:
            if known.data is data:
                return known
        record = decode(data, schema, self._wire, held=held(local) if schema.revises else {})
        tensors = tuple(_tensors(record))
        received = Received(data, record, tensors, tuple(each._version for each in tensors))
        if not schema.revises:  # what those mean depends on the client
            self._known = (received, *self._known)[: self._remembers]
        return received


def _tensors(record: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    for leaf in flatten(record):
        match leaf:
            case Tensor():
                tensors.append(leaf)
            case Packed() | Levels():
                tensors += leaf.values.values()
            case Revision():
                tensors += leaf.masks.values()
            case dict():
                tensors += leaf.values()
            case _:
                pass
    return tensors
