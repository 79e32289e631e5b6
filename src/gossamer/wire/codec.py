"""Records to bytes and back: a header, then the leaves, without names and without pickle."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.wire.schema import Leaf, ScalarNode, Schema, TensorNode, flatten, rebuild

VERSION = 1
HEADER = 1 + 8
"""Bytes before the payload: the version and the hash of the schema."""

_STRUCT = {"int": "<q", "float": "<d", "bool": "<?"}
_SAME_SIZE = {torch.bfloat16: torch.int16}


class WireError(ValueError):
    """A message that cannot be what it claims to be."""


def encode(record: object, schema: Schema | None = None) -> bytes:
    """The bytes of a record; `decode` needs its schema."""
    schema = schema or Schema.of(record)
    return b"".join([bytes([VERSION]), schema.hash, *map(_leaf_bytes, flatten(record))])


def decode(data: bytes, schema: Schema) -> Any:
    """The record that was encoded; anything else than exactly that is a `WireError`."""
    if len(data) < HEADER:
        raise WireError(f"a message of {len(data)} bytes is shorter than its header of {HEADER}")
    if data[0] != VERSION:
        raise WireError(f"the message is of version {data[0]}, this is version {VERSION}")
    if data[1:HEADER] != schema.hash:
        raise WireError(
            f"the message has schema {data[1:HEADER].hex()}, {schema.hash.hex()} is expected"
        )
    leaves = list(_read_leaves(memoryview(data)[HEADER:], schema))
    return rebuild(schema, iter(leaves))


def _leaf_bytes(leaf: Leaf) -> bytes:
    match leaf:
        case Tensor():
            tensor = leaf.detach().cpu().contiguous()
            if tensor.dtype == torch.bool:
                return np.packbits(tensor.numpy().reshape(-1), bitorder="little").tobytes()
            return tensor.view(_SAME_SIZE.get(tensor.dtype, tensor.dtype)).numpy().tobytes()
        case bool():
            return struct.pack("<?", leaf)
        case int():
            return struct.pack("<q", leaf)
        case float():
            return struct.pack("<d", leaf)
        case str():
            text = leaf.encode()
            return struct.pack("<I", len(text)) + text


def _read_leaves(data: memoryview, schema: Schema) -> Iterator[Leaf]:
    position = 0
    for path, node in schema.leaves():
        size = _size(data, position, node)
        if position + size > len(data):
            raise WireError(f"{path} needs {size} bytes, but only {len(data) - position} are left")
        yield _read(data[position : position + size], node)
        position += size
    if position != len(data):
        raise WireError(f"{len(data) - position} bytes follow the last leaf of the message")


def _size(data: memoryview, position: int, node: TensorNode | ScalarNode) -> int:
    match node:
        case TensorNode(dtype=torch.bool):
            return (_count(node) + 7) // 8
        case TensorNode():
            return _count(node) * node.dtype.itemsize
        case ScalarNode(kind="str"):
            if position + 4 > len(data):
                return 4
            return 4 + int(struct.unpack("<I", data[position : position + 4])[0])
        case ScalarNode():
            return struct.calcsize(_STRUCT[node.kind])


def _count(node: TensorNode) -> int:
    return int(np.prod(node.shape, dtype=np.int64))


def _read(data: memoryview, node: TensorNode | ScalarNode) -> Leaf:
    match node:
        case TensorNode(dtype=torch.bool):
            bits = np.unpackbits(
                np.frombuffer(data, np.uint8), count=_count(node), bitorder="little"
            )
            return torch.from_numpy(bits.astype(np.bool_)).reshape(node.shape)
        case TensorNode():
            if _count(node) == 0:
                return torch.empty(node.shape, dtype=node.dtype)
            return torch.frombuffer(bytearray(data), dtype=node.dtype).reshape(node.shape)
        case ScalarNode(kind="str"):
            try:
                return str(data[4:], "utf-8")
            except UnicodeDecodeError as damage:
                raise WireError(f"a text of the message is not UTF-8: {damage.reason}") from damage
        case ScalarNode():
            value: int | float | bool = struct.unpack(_STRUCT[node.kind], data)[0]
            return value
