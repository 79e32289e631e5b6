"""Records to bytes and back: a header, then the leaves, without names and without pickle.

    1 byte      version
    8 bytes     hash of the schema and of the way values travel
    in order    numbers, texts, masks (each set behind its length), how many values are packed
    last        all floating-point values, in order

A decoder is told the schema. It checks every length against it before it reserves memory, refuses
values that are not finite, and says which leaf was wrong and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gossamer.wire.errors import WireError
from gossamer.wire.format import (
    HEADER,
    VERSION,
    Detail,
    longest,
    message_hash,
    references,
    room,
)
from gossamer.wire.forms import choose
from gossamer.wire.kinds import Held
from gossamer.wire.mode import PLAIN, Mode
from gossamer.wire.reading import Reader
from gossamer.wire.schema import Schema, flatten
from gossamer.wire.writing import Writer


@dataclass(frozen=True)
class Row:
    """What a field of a message, or a tensor in it, costs in bits."""

    leaf: str
    sent: float
    information: float
    """The limit: the values as they are, and the entropy of the masks."""


@dataclass(frozen=True)
class Written:
    """A message, and what its bits are for."""

    data: bytes
    schema: Schema
    rows: tuple[Row, ...]

    @property
    def message(self) -> str:
        """What kind of message it is."""
        return self.schema.name


def encode(
    record: object,
    schema: Schema | None = None,
    mode: Mode = PLAIN,
    reference: object = None,
) -> bytes:
    """The bytes of a record; `decode` needs its schema, and the same mode and reference."""
    return write(record, schema, mode, reference).data


def write(
    record: object,
    schema: Schema | None = None,
    mode: Mode = PLAIN,
    reference: object = None,
    detail: Detail = "field",
) -> Written:
    """The bytes of a record with their account, by field or by tensor."""
    schema = schema or Schema.of(record)
    writer = Writer(mode, references(reference) if mode.half else {}, detail)
    for (path, node), leaf in zip(schema.leaves, flatten(record), strict=True):
        writer.leaf(path, node, leaf)
    data = b"".join([bytes([VERSION]), message_hash(schema, mode), *writer.payload()])
    rows = [Row(leaf, bits, writer.information.get(leaf, 0)) for leaf, bits in writer.sent.items()]
    return Written(data, schema, (Row("header", 8 * HEADER, 0), *rows))


def decode(
    data: bytes,
    schema: Schema,
    mode: Mode = PLAIN,
    reference: object = None,
    held: Held | None = None,
    finite: bool = True,
    limit: int | None = None,
) -> Any:
    """The record that was encoded; anything else than exactly that is a `WireError`.

    `held` are the masks that this side has, for masks that come as changes of them. `limit` is the
    memory that reading may be meant to take, in bytes; what the schema allows, if it is not given.
    """
    if limit is not None and room(schema) > limit:
        raise WireError(
            f"reading a {schema.name} is meant to take up to {room(schema)} bytes, "
            f"but {limit} are allowed"
        )
    choose(data, [schema], mode)
    if len(data) > (most := longest(schema)):
        raise WireError(f"a message of {len(data)} bytes is longer than its schema allows, {most}")
    known = references(reference) if mode.half else {}
    reader = Reader(memoryview(data)[HEADER:], mode, known, held or {}, finite)
    leaves = iter(reader.leaves(schema))
    try:
        return schema.rebuild(leaves)
    except (TypeError, ValueError, ArithmeticError, LookupError) as refusal:
        raise WireError(f"{schema.name} refuses its values: {refusal}") from refusal
