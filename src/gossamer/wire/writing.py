"""Encoding a message: the bytes of every leaf, and the cost of each field or tensor."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.core import Masks
from gossamer.wire.drawn import Drawn
from gossamer.wire.format import (
    CHANGES,
    LONGEST_TEXT,
    STRUCT,
    WHOLE,
    WIDTHS,
    Detail,
    arrays,
    field_of,
    reference_for,
    rounded,
)
from gossamer.wire.kinds import (
    DrawnNode,
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
    fingerprint_of,
)
from gossamer.wire.masks import ans, entropy, rice
from gossamer.wire.masks.bits import Bits, number
from gossamer.wire.mode import Mode
from gossamer.wire.numbers import floats, levels


class Writer:
    """Collects the bytes of a message and the cost of each field or tensor."""

    def __init__(self, mode: Mode, known: Mapping[str, Tensor], detail: Detail = "field") -> None:
        self.mode = mode
        self.known = known
        self.detail = detail
        self.sent: dict[str, float] = {}
        self.information: dict[str, float] = {}
        self._inline: list[bytes] = []
        self._floats: dict[int, list[tuple[str, bytes | memoryview]]] = {
            width: [] for width in WIDTHS
        }

    def leaf(self, path: str, node: LeafNode, leaf: Leaf) -> None:
        match node, leaf:
            case ScalarNode(), bool() | int() | float():
                self._put(path, struct.pack(STRUCT[node.kind], leaf))
            case ScalarNode(), str():
                text = leaf.encode()
                if len(text) > LONGEST_TEXT:
                    raise TypeError(
                        f"{path} is a text of {len(text)} bytes, {LONGEST_TEXT} at most"
                    )
                self._put(path, number(len(text)) + text)
            case TensorNode(dtype=torch.bool), Tensor():
                mask = leaf.detach().cpu().numpy()
                data = self._masks([mask])
                self._put(path, number(len(data)) + data, entropy.mask_bits([mask]))
            case TensorNode(), Tensor():
                self._numbers(path, node, leaf)
            case PackedNode(), Packed():
                for name, tensor in zip(node.names, node.tensors, strict=True):
                    values = leaf.values[name]
                    where = f"{path}[{name}]"
                    self._put(where, number(values.numel()), 0)
                    self._numbers(where, tensor, values)
            case DrawnNode(), Drawn():
                self._put(path, struct.pack(STRUCT["int"], leaf.seed))
                for name in node.names:
                    self._put(f"{path}[{name}]", number(leaf.kept[name]))
            case LevelsNode(), Levels():
                self._levels(path, leaf)
            case MasksNode(), Revision():
                self._revision(path, leaf)
            case MasksNode(), dict():
                self._set(path, b"", leaf)
            case _:
                raise TypeError(f"{path} is a {type(leaf).__name__}, but the schema has {node}")

    def payload(self) -> list[bytes | memoryview]:
        """Everything after the header, as a list of buffers; floating-point values come last."""
        parts: list[bytes | memoryview] = [*self._inline]
        for width, entries in self._floats.items():
            block: list[bytes | memoryview] = [data for _, data in entries]
            size = sum(map(len, block))
            if not size:
                continue
            taken = size
            if self.mode.zstd:
                packed = floats.squeeze(b"".join(block), width)
                block = [number(len(packed)), packed] if packed else [number(0), *block]
                taken = sum(map(len, block))
            parts += block
            for path, data in entries:
                self._charge(path, 8 * len(data) * (taken / size), 8 * len(data))
        return parts

    def _numbers(self, path: str, node: TensorNode, tensor: Tensor) -> None:
        if not node.dtype.is_floating_point:
            self._put(path, bytes(floats.raw(tensor)))
        elif rounded(node, self.mode):
            reference = reference_for(node, path, tensor.numel(), self.known)
            shaped = None if reference is None else reference.reshape(tensor.shape)
            exponent, data = floats.halves(tensor, shaped)
            self._put(path, struct.pack("<b", exponent))
            self._floats[2].append((path, data))
        else:
            self._floats[node.dtype.itemsize].append((path, floats.raw(tensor)))

    def _levels(self, path: str, leaf: Levels) -> None:
        """Encodes numbers of few bits as one block."""
        arrays = [tensor.detach().cpu().contiguous().numpy() for tensor in leaf.values.values()]
        try:
            data = levels.encode(arrays, leaf.least, leaf.most)
        except ValueError as problem:
            raise TypeError(f"{path}: {problem}") from None
        data = number(len(data)) + data
        limits = [levels.entropy(array, leaf.least) for array in arrays]
        if self.detail == "field" or not arrays:
            self._put(path, data, math.fsum(limits))
            return
        self._inline.append(data)
        for name, share, limit in zip(
            leaf.values, _proportions(limits, arrays), limits, strict=True
        ):
            self._charge(f"{path}[{name}]", 8 * len(data) * share, limit)

    def _revision(self, path: str, leaf: Revision) -> None:
        if leaf.base is None:
            self._set(path, bytes([WHOLE]), leaf.masks)
            return
        for name in leaf.masks:
            if name not in leaf.base:
                raise TypeError(f"{path} builds on masks of {[*leaf.base]}, but has {name!r}")
        base = {name: leaf.base[name] for name in leaf.masks}
        self._set(path, bytes([CHANGES]) + fingerprint_of(leaf.base), leaf.masks, base)

    def _set(self, path: str, prefix: bytes, masks: Masks, base: Masks | None = None) -> None:
        """Encodes masks as one block, complete or as changes to a base."""
        new, old = arrays(masks), None if base is None else arrays(base)
        data = self._masks(new) if old is None else rice.encode_given(new, old)
        data = b"".join([prefix, number(len(data)), data])
        if self.detail == "field" or not masks:
            limit = entropy.mask_bits(new) if old is None else entropy.conditional_bits(new, old)
            self._put(path, data, limit)
            return
        self._inline.append(data)
        limits = entropy.mask_parts(new) if old is None else entropy.conditional_parts(new, old)
        shares = _shares(new, old)
        for name, share, limit in zip(masks, shares, limits, strict=True):
            self._charge(f"{path}[{name}]", 8 * len(data) * share, limit)

    def _masks(self, masks: list[Bits]) -> bytes:
        return ans.encode(masks) if self.mode.ans else rice.encode(masks)

    def _put(self, path: str, data: bytes, information: float | None = None) -> None:
        self._inline.append(data)
        self._charge(path, 8 * len(data), 8 * len(data) if information is None else information)

    def _charge(self, path: str, sent: float, information: float) -> None:
        row = field_of(path) if self.detail == "field" else path
        self.sent[row] = self.sent.get(row, 0) + sent
        self.information[row] = self.information.get(row, 0) + information


def _shares(masks: list[Bits], base: list[Bits] | None) -> list[float]:
    """The share of each mask in the bits of its block: proportional to its own entropy.

    If all entropies are zero, as for empty masks, shares are proportional to sizes.
    """
    if base is None:
        alone = [entropy.mask_bits([mask]) for mask in masks]
    else:
        pairs = zip(masks, base, strict=True)
        alone = [entropy.conditional_bits([new], [old]) for new, old in pairs]
    return _proportions(alone, masks)


def _proportions(alone: Sequence[float], arrays: Sequence[NDArray[Any]]) -> list[float]:
    """Shares in proportion to entropies, or to sizes if all of these are zero."""
    for weights in (alone, [array.size for array in arrays]):
        if total := math.fsum(weights):
            return [weight / total for weight in weights]
    return [1 / len(arrays)] * len(arrays)
