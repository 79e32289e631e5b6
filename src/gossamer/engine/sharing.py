"""What many clients of a process have in common: it is encoded and decoded once.

Records are immutable, so clients can share one. That saves a copy of the model for every client,
both the time to write it and the memory until the round is merged. Methods with one mask for all
clients let each of them keep it; such states are shared too, with all that is known of their masks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.wire import (
    Detail,
    Drawn,
    Levels,
    Mode,
    Packed,
    Revision,
    Schema,
    Written,
    decode,
    dump,
    flatten,
    held,
    load,
    write,
)
from gossamer.wire.schema import Types

MESSAGES = 2
"""Messages that are remembered: those of one round, such as with and without a mask."""
STATES = 4
"""States that are remembered."""


# messages to clients -----------------------------------------------------------------------------


class Outbox:
    """Encodes messages, and reuses those already encoded in the same round.

    Two records are the same if they have the same schema and hold the very same tensors, unchanged
    in between. Threads may share an outbox.
    """

    def __init__(self, wire: Mode, detail: Detail) -> None:
        self._wire = wire
        self._detail = detail
        self._encoded: tuple[_Encoded, ...] = ()

    def write(self, round: int, record: Any) -> Written:
        """The encoded record, with its account."""
        schema = Schema.of(record)
        traits = _traits(schema, record)
        for each in self._encoded:
            if traits and each.round == round and each.traits == traits:
                return each.message
        message = write(record, schema, self._wire, detail=self._detail)
        if traits:
            others = [each for each in self._encoded if each.round == round]
            self._encoded = (_Encoded(round, traits, record, message), *others[: MESSAGES - 1])
        return message


@dataclass(frozen=True)
class _Encoded:
    round: int
    traits: tuple[Hashable, ...]
    record: Any
    """Kept so that the ids of its tensors are not reused."""
    message: Written


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


# states of clients -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Known:
    data: bytes
    record: Any
    traits: tuple[Hashable, ...]


class States:
    """Encodes and decodes states. Threads may share it; states are not to be changed."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self._known: tuple[_Known, ...] = ()

    def read(self, data: bytes) -> Any:
        """The state that is encoded in bytes, which are recognised by their identity."""
        for known in self._known:
            if known.data is data and known.traits == _traits_of_masks(known.record):
                return known.record
        record = load(data, self._types)
        self._remember(data, record)
        return record

    def write(self, record: Any) -> bytes:
        """The encoded state."""
        traits = _traits_of_masks(record)
        for known in self._known:
            if traits and known.traits == traits:
                return known.data
        data = dump(record)
        self._remember(data, record)
        return data

    def _remember(self, data: bytes, record: Any) -> None:
        if traits := _traits_of_masks(record):
            self._known = (_Known(data, record, traits), *self._known)[:STATES]


def _traits_of_masks(record: Any) -> tuple[Hashable, ...]:
    """What identifies a state of masks alone; of other states, nothing does."""
    parts = [part for part in _parts(record) if isinstance(part, Tensor)]
    if not parts or any(part.dtype != torch.bool for part in parts):
        return ()
    return _traits(Schema.of(record), record)


# what identifies records -------------------------------------------------------------------------


def _traits(schema: Schema, record: Any) -> tuple[Hashable, ...]:
    """What identifies a record without reading its tensors; empty if nothing does."""
    traits: list[Hashable] = [schema]
    for part in _parts(record):
        match part:
            case Tensor() if not part.is_inference():
                traits += [id(part), part._version]
            case bool() | int() | str():
                traits += [type(part).__name__, part]
            case float():
                traits.append(part.hex())
            case Drawn():  # names and shapes are in the schema
                traits += [part.seed, *part.kept.values()]
            case _:
                return ()
    return tuple(traits)


def _parts(record: Any) -> Iterator[Any]:
    """The tensors and scalars of a record."""
    for leaf in flatten(record):
        match leaf:
            case Packed() | Levels():
                yield from leaf.values.values()
            case dict():
                yield from leaf.values()
            case _:
                yield leaf
