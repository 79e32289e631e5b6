"""Constants of the message format, and bounds on length and memory."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gossamer.core import Masks
from gossamer.wire.errors import WireError
from gossamer.wire.kinds import (
    DrawnNode,
    LeafNode,
    LevelsNode,
    MasksNode,
    Packed,
    PackedNode,
    ScalarNode,
    TensorNode,
)
from gossamer.wire.masks.bits import Bits
from gossamer.wire.masks.rows import view
from gossamer.wire.mode import PLAIN, Mode
from gossamer.wire.numbers import levels
from gossamer.wire.schema import Schema, flatten

Detail: TypeAlias = Literal["field", "tensor"]
"""The granularity of the accounting: a row per field of the record, or per tensor in it."""

VERSION = 3
HEADER = 1 + 8
"""Bytes before the payload: the version and the hash."""
LONGEST_TEXT = 1 << 16
"""The maximum length of a text in a record, in bytes."""

STRUCT = {"int": "<q", "float": "<d", "bool": "<?"}
WHOLE, CHANGES = 0, 1
WIDTHS = (8, 4, 2)
PLACE, ROW = 8, 48
"""Bytes of memory for decoding a mask: per weight, for its position if it is encoded, and per row,
for its length, class and offset."""
TABLE = 1 << 17
"""Bytes of memory for a table of levels."""
LEVEL = 4
"""Bytes of memory for decoding a level, besides its bits."""
SEED = 8
"""The size of the seed of drawn masks, in bytes."""
NUMBER = 10
"""The maximum size of an encoded length, in bytes."""


@lru_cache(maxsize=256)
def longest(schema: Schema) -> int:
    """The maximum length of a message with this schema, in bytes, for any masks and texts."""
    return HEADER + 2 * NUMBER * len(WIDTHS) + sum(_most(node) for _, node in schema.leaves)


def room(schema: Schema) -> int:
    """The memory estimate for decoding a message, in bytes; actual use is at most twice that."""
    total = longest(schema)
    for _, node in schema.leaves:
        match node:
            case TensorNode(dtype=torch.bool):
                total += _mask_room(node.shape)
            case MasksNode():
                total += sum(map(_mask_room, node.shapes))
            case LevelsNode():
                total += (LEVEL + levels.width(node.count)) * node.total + TABLE
            case _:
                pass
    return total


def _mask_room(shape: tuple[int, ...]) -> int:
    return PLACE * math.prod(shape) + ROW * view(shape)[0]


def opened(data: bytes) -> bytes:
    """Checks the version of a message, and returns the hash in its header."""
    if len(data) < HEADER:
        raise WireError(f"a message of {len(data)} bytes is shorter than its header of {HEADER}")
    if data[0] != VERSION:
        raise WireError(f"the message has version {data[0]}, this is version {VERSION}")
    return bytes(data[1:HEADER])


def references(record: object) -> dict[str, Tensor]:
    """The float32 tensors of a record by path: the references of half-precision differences."""
    if record is None:
        return {}
    tensors: dict[str, Tensor] = {}
    for (path, _), leaf in zip(Schema.of(record).leaves, flatten(record), strict=True):
        match leaf:
            case Tensor() if leaf.dtype == torch.float32:
                tensors[path] = leaf
            case Packed():
                tensors |= {
                    f"{path}[{name}]": value
                    for name, value in leaf.values.items()
                    if value.dtype == torch.float32
                }
            case _:
                pass
    return tensors


@lru_cache(maxsize=256)
def message_hash(schema: Schema, mode: Mode) -> bytes:
    if mode == PLAIN:
        return schema.hash
    return hashlib.blake2b(schema.hash + str(mode).encode(), digest_size=8).digest()


def _most(node: LeafNode) -> int:
    match node:
        case TensorNode(dtype=torch.bool):
            return NUMBER + 2 + (node.count + 7) // 8
        case TensorNode():
            return 1 + node.count * node.dtype.itemsize
        case ScalarNode(kind="str"):
            return NUMBER + LONGEST_TEXT
        case ScalarNode():
            return struct.calcsize(STRUCT[node.kind])
        case MasksNode():
            total = sum(map(math.prod, node.shapes))
            return NUMBER + 1 + 8 + 2 + (total + 7) // 8
        case DrawnNode():
            return SEED + NUMBER * len(node.names)
        case LevelsNode():
            return NUMBER + levels.longest(node.count, node.total)
        case PackedNode():
            return sum(NUMBER + 1 + t.count * t.dtype.itemsize for t in node.tensors)


def field_of(path: str) -> str:
    """The field of the record that a leaf belongs to."""
    return path.partition("[")[0] or "record"


def rounded(node: TensorNode, mode: Mode) -> bool:
    return mode.half and node.dtype == torch.float32 and not node.exact


def reference_for(
    node: TensorNode, path: str, size: int, known: Mapping[str, Tensor]
) -> Tensor | None:
    reference = known.get(path)
    return reference if reference is not None and reference.numel() == size else None


def arrays(masks: Masks) -> list[Bits]:
    return [mask.detach().cpu().numpy() for mask in masks.values()]
