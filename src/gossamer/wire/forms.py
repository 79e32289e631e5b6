"""Which form a message has: a receiver that accepts several tells them apart by the header."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gossamer.wire.errors import WireError
from gossamer.wire.format import message_hash, opened
from gossamer.wire.mode import PLAIN, Mode
from gossamer.wire.nodes import (
    DictNode,
    DrawnNode,
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
from gossamer.wire.schema import Schema, type_name


def choose(
    data: bytes, schemas: Sequence[Schema], mode: Mode = PLAIN, claimed: Schema | None = None
) -> Schema:
    """The schema to decode a message with; a message of none of them is a `WireError`.

    The header decides, nothing else. Where the sender's own schema is at hand (`claimed`, as in a
    simulation), the error says which leaf is another one.
    """
    found = opened(data)
    for schema in schemas:
        if message_hash(schema, mode) == found:
            return schema
    if claimed is not None and (reason := difference(claimed, schemas)):
        raise WireError(reason)
    wanted = " or ".join(message_hash(schema, mode).hex() for schema in schemas)
    raise WireError(f"the message has schema {found.hex()}, {wanted} is expected")


def difference(found: Schema, wanted: Sequence[Schema]) -> str:
    """In one sentence, how a record is none of those wanted; empty if it is one of them.

    Of several it is told from the first of its own type, if there is one.
    """
    if found in wanted:
        return ""
    nearest = min(wanted, key=lambda schema: schema.name != found.name)
    return _difference(found.root, nearest.root, "")


def _difference(found: Node, wanted: Node, path: str) -> str:
    if found == wanted:
        return ""
    where = path or "the message"
    if (one := _told(found)) != (other := _told(wanted)):
        return f"{where} is {one}, {other} is expected"
    there, here = dict(_parts(found, path)), dict(_parts(wanted, path))
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
