"""Messages that are read once: in a simulation, many clients of a round are sent the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gossamer.engine.outbox import parts
from gossamer.wire import Mode, Schema, decode


@dataclass(frozen=True)
class Received:
    """A message as it was decoded, and how its tensors were then."""

    data: bytes
    record: Any
    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]

    def intact(self) -> bool:
        """Whether nobody has changed a tensor in place since."""
        return tuple(tensor._version for tensor in self.tensors) == self.versions


class Inbox:
    """Reads messages; the bytes that were read last are not read again. Threads may share it."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._last: Received | None = None

    def read(self, data: bytes, schema: Schema, held: Any) -> Received:
        """`held` are masks that the receiver has; a message that may build on them is its own."""
        last = self._last
        if last is not None and last.data is data:
            return last
        record = decode(data, schema, self._mode, held=held)
        tensors = tuple(part for part in parts(record) if isinstance(part, Tensor))
        found = Received(data, record, tensors, tuple(tensor._version for tensor in tensors))
        if not schema.revises:
            self._last = found
        return found
