"""What a run costs: bits and floating-point operations, in one arithmetic for all methods.

Conventions: a training step costs three forward passes (forward, gradient of the inputs, gradient
of the weights); a multiply-accumulate is two FLOPs; a masked layer costs its density times the
dense cost. The papers count 32 bits for a number and one for a mask entry, and no header.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import Masks
from gossamer.layout import Layout
from gossamer.wire import flatten

FLOPS_PER_MAC = 2
PASSES = 3


@dataclass(frozen=True)
class Cost:
    """Bits each way, as sent and as the papers count, and floating-point operations."""

    up: int = 0
    down: int = 0
    paper_up: int = 0
    paper_down: int = 0
    flops: int = 0
    examples: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.up + other.up,
            self.down + other.down,
            self.paper_up + other.paper_up,
            self.paper_down + other.paper_down,
            self.flops + other.flops,
            self.examples + other.examples,
        )


def paper_bits(record: object) -> int:
    """The bits of a record as papers count them."""
    return sum(
        leaf.numel() * (1 if leaf.dtype == torch.bool else 32) if isinstance(leaf, Tensor) else 32
        for leaf in flatten(record)
    )


def density(layout: Layout, masks: Masks) -> float:
    """The share of prunable weights that a set of masks keeps."""
    total = sum(layout.leaves[name].count for name in layout.prunable)
    kept = sum(
        int(masks[name].sum()) if name in masks else layout.leaves[name].count
        for name in layout.prunable
    )
    return kept / total if total else 1.0


def training_flops(layout: Layout, masks: Masks, examples: int) -> int:
    """Floating-point operations of training once on each of `examples` examples."""
    macs = 0.0
    for name, leaf in layout.leaves.items():
        kept = float(masks[name].float().mean()) if name in masks else 1.0
        macs += leaf.macs * kept
    return round(FLOPS_PER_MAC * PASSES * macs * examples)
