"""Writing a message: the parts of every leaf, and what each field costs."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import torch
from torch import Tensor

from gossamer.wire import ans, entropy, floats, rice
from gossamer.wire.bits import Bits, number
from gossamer.wire.format import (
    CHANGES,
    LONGEST_TEXT,
    STRUCT,
    WHOLE,
    WIDTHS,
    arrays,
    field_of,
    reference_for,
    rounded,
)
from gossamer.wire.kinds import Packed, Revision, fingerprint_of
from gossamer.wire.mode import Mode
from gossamer.wire.schema import Leaf, LeafNode, MasksNode, PackedNode, ScalarNode, TensorNode


class Writer:
    """Collects the parts of a message and what each field costs."""

    def __init__(self, mode: Mode, known: Mapping[str, Tensor]) -> None:
        self.mode = mode
        self.known = known
        self.sent: dict[str, float] = {}
        self.information: dict[str, float] = {}
        self._inline: list[bytes] = []
        self._floats: dict[int, list[tuple[str, bytes]]] = {width: [] for width in WIDTHS}

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
                self._block(path, self._masks([mask]), entropy.mask_bits([mask]))
            case TensorNode(), Tensor():
                self._numbers(path, node, leaf)
            case PackedNode(), Packed():
                for name, tensor in zip(node.names, node.tensors, strict=True):
                    values = leaf.values[name]
                    self._put(path, number(values.numel()), 0)
                    self._numbers(f"{path}[{name}]", tensor, values)
            case MasksNode(), Revision():
                self._revision(path, leaf)
            case MasksNode(), dict():
                masks = arrays(leaf)
                self._block(path, self._masks(masks), entropy.mask_bits(masks))
            case _:
                raise TypeError(f"{path} is a {type(leaf).__name__}, the schema has {node}")

    def payload(self) -> bytes:
        """Everything after the header; values last."""
        parts = list(self._inline)
        for width, entries in self._floats.items():
            block = b"".join(data for _, data in entries)
            if not block:
                continue
            packed = floats.squeeze(block, width) if self.mode.zstd else b""
            prefix = number(len(packed)) if self.mode.zstd else b""
            parts += [prefix, packed or block]
            share = (len(prefix) + len(packed or block)) / len(block)
            for path, data in entries:
                self._charge(path, 8 * len(data) * share, 8 * len(data))
        return b"".join(parts)

    def _numbers(self, path: str, node: TensorNode, tensor: Tensor) -> None:
        if not node.dtype.is_floating_point:
            self._put(path, floats.raw(tensor))
        elif rounded(node, self.mode):
            reference = reference_for(node, path, tensor.numel(), self.known)
            shaped = None if reference is None else reference.reshape(tensor.shape)
            exponent, data = floats.halves(tensor, shaped)
            self._put(path, struct.pack("<b", exponent))
            self._floats[2].append((path, data))
        else:
            self._floats[node.dtype.itemsize].append((path, floats.raw(tensor)))

    def _revision(self, path: str, leaf: Revision) -> None:
        masks = arrays(leaf.masks)
        if leaf.base is None:
            self._put(path, bytes([WHOLE]), 0)
            self._block(path, self._masks(masks), entropy.mask_bits(masks))
            return
        for name in leaf.masks:
            if name not in leaf.base:
                raise TypeError(f"{path} builds on masks of {[*leaf.base]}, but has {name!r}")
        base = arrays({name: leaf.base[name] for name in leaf.masks})
        self._put(path, bytes([CHANGES]) + fingerprint_of(leaf.base), 0)
        self._block(path, rice.encode_given(masks, base), entropy.conditional_bits(masks, base))

    def _masks(self, masks: list[Bits]) -> bytes:
        return ans.encode(masks) if self.mode.ans else rice.encode(masks)

    def _block(self, path: str, data: bytes, information: float) -> None:
        self._put(path, number(len(data)) + data, information)

    def _put(self, path: str, data: bytes, information: float | None = None) -> None:
        self._inline.append(data)
        self._charge(path, 8 * len(data), 8 * len(data) if information is None else information)

    def _charge(self, path: str, sent: float, information: float) -> None:
        field = field_of(path)
        self.sent[field] = self.sent.get(field, 0) + sent
        self.information[field] = self.information.get(field, 0) + information
