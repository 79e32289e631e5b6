"""Floating-point operations in the conventions of the papers, which disagree; see `FLOPS`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gossamer.arithmetic.indices import true_count
from gossamer.core import Masks
from gossamer.task.layout import Layout


@dataclass(frozen=True)
class Effort:
    """What a client computed in one round."""

    layout: Layout
    densities: Mapping[str, float]
    """Of prunable tensors; one that is absent is dense."""
    examples: int
    """Trained on, over all epochs."""
    steps: int
    per_epoch: int
    """Steps in one epoch."""

    trained: Mapping[str, float] = field(default_factory=dict)
    """Shares of weights that got a gradient; a tensor that is absent got it where it is active."""
    searched: int = 0
    """Examples that passed once more, with a gradient of all weights."""

    def density(self, name: str) -> float:
        """The active fraction of a tensor."""
        return self.densities.get(name, 1.0)

    def macs(self, factor: Callable[[float], float]) -> float:
        """Multiply-accumulates over all examples, each layer times a function of its density."""
        return self._example(lambda density, trained: factor(density)) * self.examples

    def layers(self, factor: Callable[[float, float], float]) -> float:
        """Like `macs`, for a function of the density and of the trained density.

        Searches for masks count, too.
        """
        total = self._example(factor) * self.examples
        if self.searched:
            total += self._example(lambda density, trained: factor(density, 1.0)) * self.searched
        return total

    def _example(self, factor: Callable[[float, float], float]) -> float:
        """Multiply-accumulates of an example."""
        frozen = self._frozen(factor(1.0, 1.0))
        if not self.densities and not self.trained:
            return self.layout.trained_macs * factor(1.0, 1.0) + frozen
        each = math.fsum(
            leaf.macs * factor(self.density(name), self.trained.get(name, self.density(name)))
            for name, leaf in self.layout.leaves.items()
        )
        return each + frozen

    def _frozen(self, passes: float) -> float:
        """Frozen layers: a forward pass, and one for the gradient of inputs that depend on weights.

        Args:
            passes: of a trained layer, in the convention that is counted by.
        """
        leaves = self.layout.constants.values()
        return sum(leaf.macs * min(passes, 1 + leaf.crossed) for leaf in leaves)

    @property
    def mean_density(self) -> float:
        """The mean over prunable layers, every layer counting the same."""
        names = self.layout.prunable
        return math.fsum(map(self.density, names)) / len(names) if names else 1.0


def _spafl(
    effort: Effort, per_layer: Callable[[float], float], every_weight: bool = False
) -> float:
    """SpaFL's work: passes, updates of weights and thresholds, masks and the importance update."""
    weights = effort.layout.total("count", effort.layout.prunable)
    updated = 1.0 if every_weight else effort.mean_density
    updates = updated * weights * effort.per_epoch
    if not effort.densities:
        return effort.macs(per_layer) + updates
    thresholds = effort.layout.rows
    return effort.macs(per_layer) + updates + 2.5 * weights + thresholds * effort.per_epoch


FLOPS: Mapping[str, Callable[[Effort], float]] = {
    "passes": lambda effort: 2 * effort.layers(lambda d, trained: 2 * d + trained),
    "spafl": lambda effort: _spafl(effort, lambda d: d * (2 + d)),
    "spafl-eq36": lambda effort: _spafl(effort, lambda d: 2 + d, every_weight=True),
    "spafl-text": lambda effort: _spafl(effort, lambda d: 1 + 2 * d),
    "flash": lambda effort: effort.layers(lambda d, trained: 2 * d + trained),
    "flash-dense-gradient": lambda effort: effort.macs(lambda d: 2 * d + 1),
    "swat": lambda effort: effort.macs(lambda d: 3 * d),
    "pffdst": lambda effort: effort.layers(lambda d, trained: 2 * d + trained),
    "forward": lambda effort: effort.macs(lambda d: d),
}
"""Conventions by name. `passes`, the default: a training step is three passes, which cost a layer
its density times the dense cost, the last one by the share of weights that get a gradient; a
multiply-accumulate is two operations. `spafl`: what SpaFL's own figures fit, d(2 + d) a layer plus
updates, in multiply-accumulates; `-eq36` and `-text` are what its equation and its text say.
`flash`: three passes in multiply-accumulates, the last with gradients of all weights where a method
needs them, or in `-dense-gradient` always. `swat`: density on all three passes. `pffdst`: the
gradient of the weights only where they are not frozen. `forward`: the forward pass alone."""

FlopsModel = Literal[
    "passes",
    "spafl",
    "spafl-eq36",
    "spafl-text",
    "flash",
    "flash-dense-gradient",
    "swat",
    "pffdst",
    "forward",
]


def density(layout: Layout, masks: Masks) -> float:
    """The share of prunable weights that a set of masks keeps."""
    if not masks:
        return 1.0
    total = sum(layout.leaves[name].count for name in layout.prunable)
    kept = sum(
        int(_active(masks[name])) if name in masks else layout.leaves[name].count
        for name in layout.prunable
    )
    return kept / total if total else 1.0


def _active(mask: Tensor) -> float:
    """The sum of a mask, whose entries may be shares."""
    return true_count(mask) if mask.dtype == torch.bool else float(mask.sum())


def densities(masks: Mapping[str, Tensor | float]) -> dict[str, float]:
    """The share that each mask keeps; a number is such a share."""
    return {
        name: mask if isinstance(mask, float) else _active(mask) / mask.numel()
        for name, mask in masks.items()
        if isinstance(mask, float) or mask.numel()
    }
