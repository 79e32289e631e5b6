"""Records of floating-point tensors only, such as whole models: read and written in one piece.

The format is that of any record. What differs is the work: sizes and costs follow from the schema,
so they are computed once, and the values are copied once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gossamer.arithmetic import sums
from gossamer.wire.kinds import TensorNode
from gossamer.wire.mode import Mode
from gossamer.wire.schema import Schema


@dataclass(frozen=True)
class Dense:
    """The tensors of a dense record, which all have one type."""

    dtype: torch.dtype
    counts: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    size: int
    """Of all values, in bytes."""

    def read(self, payload: memoryview, finite: bool) -> Sequence[Tensor] | None:
        """The tensors, which share their memory; None if anything is wrong with them."""
        if len(payload) != self.size:
            return None
        block = torch.empty(sum(self.counts), dtype=self.dtype)
        if not sums.copy(payload, block) and finite:
            return None
        parts = block.split_with_sizes(self.counts)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


@lru_cache(maxsize=256)
def dense(schema: Schema, mode: Mode) -> Dense | None:
    """How to read a record of this schema in one piece; None if that is not possible."""
    nodes = [node for _, node in schema.leaves if isinstance(node, TensorNode)]
    types = {node.dtype for node in nodes}
    if len(nodes) < len(schema.leaves) or len(types) != 1 or mode.half or mode.zstd:
        return None
    (dtype,) = types
    counts = tuple(node.count for node in nodes)
    if not dtype.is_floating_point or not sum(counts):
        return None
    shapes = tuple(node.shape for node in nodes)
    return Dense(dtype, counts, shapes, sum(counts) * dtype.itemsize)
