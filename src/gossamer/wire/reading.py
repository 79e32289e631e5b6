"""Decoding a message: every length is checked against the schema before memory is allocated."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.core import Masks
from gossamer.wire.drawn import Drawn
from gossamer.wire.errors import NOT_FINITE, UnknownMask, WireError
from gossamer.wire.format import (
    CHANGES,
    LONGEST_TEXT,
    NUMBER,
    SEED,
    STRUCT,
    WHOLE,
    WIDTHS,
    arrays,
    reference_for,
    rounded,
)
from gossamer.wire.kinds import (
    DrawnNode,
    Held,
    Leaf,
    LeafNode,
    Levels,
    LevelsNode,
    MasksNode,
    Packed,
    PackedNode,
    Revision,
    ScalarNode,
    TensorNode,
)
from gossamer.wire.masks import ans, rice
from gossamer.wire.masks.bits import Bits
from gossamer.wire.mode import Mode
from gossamer.wire.numbers import floats, levels
from gossamer.wire.schema import Schema


class Reader:
    """Decodes an untrusted message."""

    def __init__(
        self,
        data: memoryview,
        mode: Mode,
        known: Mapping[str, Tensor],
        held: Held,
        finite: bool,
    ) -> None:
        self.data = data
        self.mode = mode
        self.known = known
        self.held = held
        self.finite = finite
        self.position = 0

    def leaves(self, schema: Schema) -> list[Leaf]:
        """All leaves in order; floating-point values are filled in last, as they come last."""
        first = [(path, node, self._inline(path, node)) for path, node in schema.leaves]
        blocks = self._blocks(first)
        leaves = [self._value(path, node, part, blocks) for path, node, part in first]
        if self.position != len(self.data):
            raise WireError(f"{len(self.data) - self.position} bytes follow the last leaf")
        return leaves

    def _inline(self, path: str, node: LeafNode) -> Any:
        """The inline part of a leaf: all of it, or the counts and exponents of its values."""
        match node:
            case TensorNode() if node.dtype.is_floating_point:
                return [(node.count, self._exponent(path, node))]
            case ScalarNode(kind="str"):
                return self._text(path)
            case ScalarNode():
                kind = STRUCT[node.kind]
                data = self._take(struct.calcsize(kind), path)
                if node.kind == "bool" and data[0] > 1:
                    raise WireError(f"{path} is {data[0]}, which is neither true nor false")
                value = struct.unpack(kind, data)[0]
                if self.finite and isinstance(value, float) and not math.isfinite(value):
                    raise WireError(f"{path} is {value}, which is {NOT_FINITE}")
                return value
            case TensorNode(dtype=torch.bool):
                (mask,) = self._masks(path, [node.shape])
                return torch.from_numpy(mask)
            case TensorNode():
                size = node.count * node.dtype.itemsize
                return floats.from_raw(self._take(size, path), node.dtype, node.shape)
            case PackedNode():
                pairs = zip(node.names, node.tensors, strict=True)
                return [self._packed(f"{path}[{name}]", tensor) for name, tensor in pairs]
            case MasksNode():
                return self._mask_set(path, node)
            case DrawnNode():
                return self._drawn(path, node)
            case LevelsNode():
                return self._levels(path, node)

    def _packed(self, path: str, tensor: TensorNode) -> tuple[int, int]:
        count = self._number(path)
        if count > tensor.count:
            raise WireError(f"{path} has {count} values, {tensor.count} at most")
        return count, self._exponent(path, tensor)

    def _drawn(self, path: str, node: DrawnNode) -> Drawn:
        (seed,) = struct.unpack(STRUCT["int"], self._take(SEED, path))
        shapes = dict(zip(node.names, node.shapes, strict=True))
        kept = {}
        for name, shape in shapes.items():
            kept[name] = self._number(f"{path}[{name}]")
            if kept[name] > (most := math.prod(shape)):
                raise WireError(f"{path}[{name}] keeps {kept[name]} weights, {most} at most")
        return Drawn(seed, kept, shapes)

    def _levels(self, path: str, node: LevelsNode) -> Levels:
        data = self._sized(path)
        try:
            arrays = levels.decode(data, node.shapes, node.least, node.most)
        except WireError as problem:
            raise WireError(f"{path}: {problem}") from problem
        values = {n: torch.from_numpy(each) for n, each in zip(node.names, arrays, strict=True)}
        return Levels(values, node.least, node.most)

    def _value(self, path: str, node: LeafNode, part: Any, blocks: _Blocks) -> Leaf:
        match node:
            case TensorNode() if node.dtype.is_floating_point:
                ((count, exponent),) = part
                return self._numbers(path, node, count, exponent, node.shape, blocks)
            case PackedNode():
                values = {}
                for name, tensor, (count, exponent) in zip(
                    node.names, node.tensors, part, strict=True
                ):
                    where = f"{path}[{name}]"
                    values[name] = self._numbers(where, tensor, count, exponent, (count,), blocks)
                shapes = {n: t.shape for n, t in zip(node.names, node.tensors, strict=True)}
                return Packed(values, shapes)
            case _:
                leaf: Leaf = part
                return leaf

    def _numbers(
        self,
        path: str,
        node: TensorNode,
        count: int,
        exponent: int,
        shape: tuple[int, ...],
        blocks: _Blocks,
    ) -> Tensor:
        if rounded(node, self.mode):
            reference = reference_for(node, path, count, self.known)
            shaped = None if reference is None else reference.reshape(shape)
            tensor = floats.from_halves(blocks.take(2, 2 * count), exponent, shape, shaped)
        else:
            width = node.dtype.itemsize
            tensor = floats.from_raw(blocks.take(width, width * count), node.dtype, shape)
        if self.finite and not _finite(tensor):
            raise WireError(f"{path} holds values that are {NOT_FINITE}")
        return tensor

    def _blocks(self, parts: list[tuple[str, LeafNode, Any]]) -> _Blocks:
        """The blocks of values; their sizes follow from the inline parts."""
        leaves: dict[int, list[tuple[str, int]]] = {width: [] for width in WIDTHS}
        for path, node, part in parts:
            tensors: list[tuple[str, TensorNode]] = []
            match node:
                case PackedNode():
                    pairs = zip(node.names, node.tensors, strict=True)
                    tensors = [(f"{path}[{name}]", tensor) for name, tensor in pairs]
                case TensorNode() if node.dtype.is_floating_point:
                    tensors = [(path, node)]
                case _:
                    continue
            for (where, tensor), (count, _) in zip(tensors, part, strict=True):
                width = 2 if rounded(tensor, self.mode) else tensor.dtype.itemsize
                if count:
                    leaves[width].append((where, width * count))
        return _Blocks({width: self._block(width, some) for width, some in leaves.items() if some})

    def _block(self, width: int, leaves: list[tuple[str, int]]) -> memoryview:
        """The values of leaves of one width, given their sizes in bytes."""
        first, last, size = leaves[0][0], leaves[-1][0], sum(size for _, size in leaves)
        where = first if len(leaves) == 1 else f"{first} to {last}"
        packed = self._number(where) if self.mode.zstd else 0
        if not packed:
            start = self.position
            for path, part in leaves:
                self._take(part, path)
            return self.data[start : self.position]
        if packed >= size:
            raise WireError(f"{where} is compressed to {packed} bytes, but holds only {size}")
        data = self._take(packed, where)
        try:
            return floats.unsqueeze(data, width, size)
        except WireError as problem:
            raise WireError(f"{where}: {problem}") from problem

    def _exponent(self, path: str, node: TensorNode) -> int:
        if not rounded(node, self.mode):
            return 0
        return int(struct.unpack("<b", self._take(1, path))[0])

    def _mask_set(self, path: str, node: MasksNode) -> Masks | Revision:
        if not node.revises:
            return _tensors(node, self._masks(path, node.shapes))
        kind = self._take(1, path)[0]
        if kind == WHOLE:
            return Revision(_tensors(node, self._masks(path, node.shapes)))
        if kind != CHANGES:
            raise WireError(f"{path} has an unknown encoding, {kind}")
        label = bytes(self._take(8, path))
        base = self.held.get(label)
        if base is None:
            raise UnknownMask(f"{path} builds on mask {label.hex()}, which is not held here")
        base = {name: base[name] for name in node.names if name in base}
        if [(name, tuple(mask.shape)) for name, mask in base.items()] != [
            *zip(node.names, node.shapes, strict=True)
        ]:
            raise WireError(f"{path} builds on mask {label.hex()}, which has other tensors")
        data = self._sized(path)
        try:
            return Revision(_tensors(node, rice.decode_given(data, arrays(base))), base)
        except WireError as problem:
            raise WireError(f"{path}: {problem}") from problem

    def _masks(self, path: str, shapes: Any) -> list[Bits]:
        data = self._sized(path)
        try:
            return ans.decode(data, shapes) if self.mode.ans else rice.decode(data, shapes)
        except WireError as problem:
            raise WireError(f"{path}: {problem}") from problem

    def _sized(self, path: str) -> memoryview:
        return self._take(self._number(path), path)

    def _text(self, path: str) -> str:
        size = self._number(path)
        if size > LONGEST_TEXT:
            raise WireError(f"{path} is a text of {size} bytes, {LONGEST_TEXT} at most")
        try:
            return str(self._take(size, path), "utf-8")
        except UnicodeDecodeError as damage:
            raise WireError(f"{path} is not UTF-8: {damage.reason}") from damage

    def _number(self, path: str) -> int:
        value = 0
        for place in range(NUMBER):
            byte = self._take(1, path)[0]
            value |= (byte & 127) << (7 * place)
            if byte < 128:
                if byte == 0 and place:
                    raise WireError(f"{path} has a length in more bytes than it needs")
                return value
        raise WireError(f"{path} has a length of more than {NUMBER} bytes")

    def _take(self, size: int, path: str) -> memoryview:
        left = len(self.data) - self.position
        if size > left:
            raise WireError(f"{path} needs {size} bytes, but only {left} are left")
        self.position += size
        return self.data[self.position - size : self.position]


class _Blocks:
    """Blocks of values by width, consumed from the front."""

    def __init__(self, blocks: dict[int, memoryview]) -> None:
        self._blocks = blocks
        self._positions = dict.fromkeys(blocks, 0)

    def take(self, width: int, size: int) -> memoryview:
        if not size:
            return memoryview(b"")
        start = self._positions[width]
        self._positions[width] = start + size
        return self._blocks[width][start : start + size]


def _tensors(node: MasksNode, arrays: list[Bits]) -> Masks:
    pairs: Iterator[tuple[str, Bits]] = zip(node.names, arrays, strict=True)
    return {name: torch.from_numpy(mask) for name, mask in pairs}


def _finite(values: Tensor) -> bool:
    """Whether all numbers are finite, without a copy of the tensor.

    If the sum is finite, so are its terms; an infinite sum may also be an overflow.
    """
    if not values.numel() or math.isfinite(values.sum().item()):
        return True
    return all(math.isfinite(end) for end in values.aminmax())
