"""Encoding and decoding of records: a header, then the leaves, without names and without pickle.

    1 byte      version
    8 bytes     hash of the schema and the mode
    in order    numbers, texts, masks (each block after its length), counts of packed values
    last        all floating-point values, in order

The receiver knows the schema. It checks every length against the schema before it allocates memory,
rejects values that are not finite, and reports which leaf is invalid and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gossamer.wire.dense import dense
from gossamer.wire.errors import WireError
from gossamer.wire.format import (
    HEADER,
    VERSION,
    Detail,
    field_of,
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
    Leaf,
    LevelsNode,
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
from gossamer.wire.numbers import floats
from gossamer.wire.reading import Reader
from gossamer.wire.schema import Schema, flatten, type_name
from gossamer.wire.writing import Writer


@dataclass(frozen=True)
class Row:
    """The cost of a field of a message, or of a tensor in it, in bits."""

    leaf: str
    sent: float
    information: float
    """The lower bound: uncompressed values, and the entropy of the masks."""


@dataclass(frozen=True)
class Written:
    """An encoded message, and its cost by field or tensor."""

    data: bytes
    schema: Schema
    rows: tuple[Row, ...]

    @property
    def message(self) -> str:
        """The name of the record's type."""
        return self.schema.name


def encode(
    record: object,
    schema: Schema | None = None,
    mode: Mode = PLAIN,
    reference: object = None,
) -> bytes:
    """Encodes a record; `decode` needs its schema, and the same mode and reference."""
    return write(record, schema, mode, reference).data


def write(
    record: object,
    schema: Schema | None = None,
    mode: Mode = PLAIN,
    reference: object = None,
    detail: Detail = "field",
) -> Written:
    """Encodes a record and accounts for its bits, by field or by tensor."""
    schema = schema or Schema.of(record)
    leaves = flatten(record)
    payload: list[bytes | memoryview]
    if dense(schema, mode):
        rows = _dense_rows(schema, detail)
        payload = [floats.raw(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
    else:
        writer = Writer(mode, references(reference) if mode.half else {}, detail)
        payload, rows = _written(writer, schema, leaves)
    data = b"".join([bytes([VERSION]), message_hash(schema, mode), *payload])
    return Written(data, schema, rows)


def _written(
    writer: Writer, schema: Schema, leaves: Sequence[Leaf]
) -> tuple[list[bytes | memoryview], tuple[Row, ...]]:
    """What follows the header, and the cost of each field or tensor."""
    for (path, node), leaf in zip(schema.leaves, leaves, strict=True):
        writer.leaf(path, node, leaf)
    payload = writer.payload()
    rows = [Row(leaf, bits, writer.information.get(leaf, 0)) for leaf, bits in writer.sent.items()]
    return payload, (Row("header", 8 * HEADER, 0), *rows)


@lru_cache(maxsize=256)
def _dense_rows(schema: Schema, detail: Detail) -> tuple[Row, ...]:
    """The cost of a dense record, which does not depend on its values."""
    bits: dict[str, int] = {}
    for path, node in schema.leaves:
        assert isinstance(node, TensorNode)
        leaf = field_of(path) if detail == "field" else path
        bits[leaf] = bits.get(leaf, 0) + 8 * node.count * node.dtype.itemsize
    rows = [Row(leaf, float(each), each) for leaf, each in bits.items()]
    return (Row("header", 8 * HEADER, 0), *rows)


def decode(
    data: bytes,
    schema: Schema,
    mode: Mode = PLAIN,
    reference: object = None,
    held: Held | None = None,
    finite: bool = True,
    limit: int | None = None,
) -> Any:
    """The record that was encoded; any other input raises a `WireError`.

    `held` are the masks that this side holds, by fingerprint; revisions refer to them. `limit`
    bounds the memory of decoding, in bytes (see `room`); by default only the schema bounds it.
    """
    if limit is not None and room(schema) > limit:
        raise WireError(
            f"decoding a {schema.name} takes up to {room(schema)} bytes, but {limit} are allowed"
        )
    choose(data, [schema], mode)
    if len(data) > (most := longest(schema)):
        raise WireError(f"a message of {len(data)} bytes is longer than its schema allows, {most}")
    payload = memoryview(data)[HEADER:]
    form = dense(schema, mode)
    leaves: Sequence[Leaf] | None = form.read(payload, finite) if form else None
    if leaves is None:
        known = references(reference) if mode.half else {}
        leaves = Reader(payload, mode, known, held or {}, finite).leaves(schema)
    try:
        return schema.rebuild(iter(leaves))
    except (TypeError, ValueError, ArithmeticError, LookupError) as refusal:
        raise WireError(f"{schema.name} rejects its values: {refusal}") from refusal


# the schema of a message -------------------------------------------------------------------------


def choose(
    data: bytes, schemas: Sequence[Schema], mode: Mode = PLAIN, claimed: Schema | None = None
) -> Schema:
    """The schema of a message; a message that has none of them raises a `WireError`.

    Only the hash in the header decides. If the sender's own schema is known (`claimed`, as in a
    simulation), the error names the leaf that differs.
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
    """How a schema differs from those expected, in one sentence; empty if it is one of them.

    It is compared with the first of the same record type, if there is one.
    """
    if received in wanted:
        return ""
    nearest = min(wanted, key=lambda schema: schema.name != received.name)
    return _difference(received.root, nearest.root, "")


def _difference(received: Node, wanted: Node, path: str) -> str:
    if received == wanted:
        return ""
    where = path or "the message"
    if (one := _described(received)) != (other := _described(wanted)):
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


def _described(node: Node) -> str:
    """A node in words, without its children."""
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
        case LevelsNode():
            return f"levels from {node.least} to {node.most}"
        case DictNode():
            return "a dictionary"
        case TupleNode():
            return f"a {node.kind.__name__} of {len(node.children)}"
        case RecordNode():
            return f"a {type_name(node.type)}"


def _parts(node: Node, path: str) -> list[tuple[str, Node]]:
    """The children of a node; the tensors of a leaf count as children."""
    match node:
        case MasksNode() | DrawnNode():
            masks = [TensorNode(torch.bool, shape) for shape in node.shapes]
            return [(f"{path}[{n}]", mask) for n, mask in zip(node.names, masks, strict=True)]
        case LevelsNode():
            parts = [TensorNode(torch.int16, shape) for shape in node.shapes]
            return [(f"{path}[{n}]", part) for n, part in zip(node.names, parts, strict=True)]
        case PackedNode():
            return [(f"{path}[{n}]", t) for n, t in zip(node.names, node.tensors, strict=True)]
        case _:
            return list(branches(node, path))
