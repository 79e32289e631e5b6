"""Records to bytes and back: a header, then the leaves, without names and without pickle.

    1 byte      version
    8 bytes     hash of the schema and of the way values travel
    in order    numbers, texts, masks (each set behind its length), how many values are packed
    last        all floating-point values, in order

A decoder is told the schema. It checks every length against it before it reserves memory, refuses
values that are not finite, and says which leaf was wrong and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gossamer.wire.errors import WireError
from gossamer.wire.format import (
    HEADER,
    VERSION,
    Detail,
    longest,
    message_hash,
    opened,
    references,
    room,
)
from gossamer.wire.kinds import (
    DictNode,
    DrawnNode,
    Held,
    MasksNode,
    Node,
    NoneNode,
    PackedNode,
    RecordNode,
    ScalarNode,
    TensorNode,
    TupleNode,
    branches,
)
from gossamer.wire.mode import PLAIN, Mode
from gossamer.wire.reading import Reader
from gossamer.wire.schema import Schema, flatten, type_name
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


# which schema a message has ----------------------------------------------------------------------


def choose(
    data: bytes, schemas: Sequence[Schema], mode: Mode = PLAIN, claimed: Schema | None = None
) -> Schema:
    """The schema to decode a message with; a message of none of them is a `WireError`.

    The header decides, nothing else. Where the sender's own schema is at hand (`claimed`, as in a
    simulation), the error says which leaf is another one.
    """
    hashed = opened(data)
    for schema in schemas:
        if message_hash(schema, mode) == hashed:
            return schema
    if claimed is not None and (reason := difference(claimed, schemas)):
        raise WireError(reason)
    wanted = " or ".join(message_hash(schema, mode).hex() for schema in schemas)
    raise WireError(f"the message has schema {hashed.hex()}, {wanted} is expected")


def difference(received: Schema, wanted: Sequence[Schema]) -> str:
    """In one sentence, how a record is none of those wanted; empty if it is one of them.

    Of several it is told from the first of its own type, if there is one.
    """
    if received in wanted:
        return ""
    nearest = min(wanted, key=lambda schema: schema.name != received.name)
    return _difference(received.root, nearest.root, "")


def _difference(received: Node, wanted: Node, path: str) -> str:
    if received == wanted:
        return ""
    where = path or "the message"
    if (one := _told(received)) != (other := _told(wanted)):
        return f"{where} is {one}, {other} is expected"
    there, here = dict(_parts(received, path)), dict(_parts(wanted, path))
    for name in here:
        if name not in there:
            return f"{name} is missing"
    for name in there:
        if name not in here:
            return f"{name} is not expected"
    for name, child in here.items():
        if reason := _difference(there[name], child, name):
            return reason
    return f"{where} has its parts in another order than expected"


def _told(node: Node) -> str:
    """A node without what it holds."""
    match node:
        case NoneNode():
            return "nothing"
        case TensorNode():
            kind = str(node.dtype).removeprefix("torch.")
            return f"{'exact ' * node.exact}{kind} of shape {node.shape}"
        case ScalarNode():
            return f"a number or text of type {node.kind}"
        case MasksNode():
            return "a revision of masks" if node.revises else "masks"
        case DrawnNode():
            return "drawn masks"
        case PackedNode():
            return "packed values"
        case DictNode():
            return "a dictionary"
        case TupleNode():
            return f"a {node.kind.__name__} of {len(node.children)}"
        case RecordNode():
            return f"a {type_name(node.type)}"


def _parts(node: Node, path: str) -> list[tuple[str, Node]]:
    """What a node holds, the tensors of a leaf among it."""
    match node:
        case MasksNode() | DrawnNode():
            masks = [TensorNode(torch.bool, shape) for shape in node.shapes]
            return [(f"{path}[{n}]", mask) for n, mask in zip(node.names, masks, strict=True)]
        case PackedNode():
            return [(f"{path}[{n}]", t) for n, t in zip(node.names, node.tensors, strict=True)]
        case _:
            return list(branches(node, path))
