"""N:M masks: every group of `size` consecutive inputs has its share of active weights.

A group is `size` consecutive input channels at one output and one kernel position. Where the number
of input channels is not a multiple of `size` (first convolutions), groups run over the flattened
inputs of each output, and the last group is short. Groups have the floor or the ceiling of their
share, such that the count of the layer is exact; which ones have more depends on the count alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.core import Key, Masks, Params
from gossamer.sparsity.algebra import Change, Counts, Flags, Numbers, flat, magnitudes, shaped
from gossamer.sparsity.select import counts_after_removal, largest, uniform_numbers
from gossamer.task.layout import Layout
from gossamer.wire import Drawn


def random_groups(key: Key, layout: Layout, counts: Mapping[str, int], size: int = 16) -> Masks:
    """Random masks with `counts` active weights in each layer, evenly spread over its groups."""
    masks = {}
    for name, wanted in counts.items():
        blocks = _Blocks(layout[name].shape, size)
        scores = blocks.split(uniform_numbers(key.fold(name), layout[name].count), -np.inf)
        chosen = blocks.join(_top_rows(scores, blocks.spread(wanted)))
        masks[name] = torch.from_numpy(chosen).reshape(layout[name].shape)
    return masks


def drawn_masks(drawn: Drawn, layout: Layout, size: int = 0) -> Masks:
    """The masks that a seed stands for; unstructured, or in groups of some size."""
    return random_groups(Key(drawn.seed), layout, drawn.kept, size) if size else drawn.masks()


def largest_in_groups(params: Params, counts: Mapping[str, int], size: int = 16) -> Masks:
    """Masks of the largest magnitudes in each group; layers keep `counts` weights."""
    masks = {}
    for name, wanted in counts.items():
        weight = params[name]
        blocks = _Blocks(tuple(weight.shape), size)
        scores = blocks.split(magnitudes(weight), -np.inf)
        masks[name] = shaped(blocks.join(_top_rows(scores, blocks.spread(wanted))), weight)
    return masks


def largest_masks(params: Params, counts: Mapping[str, int], among: Masks, size: int = 0) -> Masks:
    """Masks of the largest magnitudes of each layer `among` some or, with a size, of each group."""
    return largest_in_groups(params, counts, size) if size else largest(params, counts, among)


def regrow_in_groups(
    by: Key | Params, params: Params, masks: Masks, removed: Mapping[str, int], size: int = 16
) -> Change:
    """Prunes the smallest weights of each layer and grows as many in the groups that lost them.

    The smallest weight of a layer is the smallest of its group, so this prunes within groups at the
    rate of the layer, and every group keeps its count.

    Args:
        by: a key grows at random, scores (gradients, momentum) grow where they are largest.
    """
    left = largest(params, counts_after_removal(masks, removed), masks)
    grown = {}
    for name, mask in masks.items():
        blocks = _Blocks(tuple(mask.shape), size)
        stays = blocks.split(flat(left[name]), True)
        lost = blocks.split(flat(mask & ~left[name]), False).sum(1)
        if isinstance(by, Key):
            values = uniform_numbers(by.fold(name), mask.numel())
        else:
            values = magnitudes(by[name])
        scores = blocks.split(values, -np.inf)
        scores[stays] = -np.inf
        grown[name] = shaped(blocks.join(_top_rows(scores, lost)), mask)
    return Change.of(masks, left, grown)


def group_counts(masks: Masks, size: int = 16) -> dict[str, Tensor]:
    """The number of active weights in each group of each layer."""
    return {
        name: torch.from_numpy(_Blocks(tuple(mask.shape), size).split(flat(mask), False).sum(1))
        for name, mask in masks.items()
    }


def pattern(layout: Layout, counts: Mapping[str, int], size: int = 16) -> Counts:
    """The N of each layer, if it has groups: no group has more active weights."""
    if not size:
        return {}
    return {name: -(-wanted * size // layout[name].count) for name, wanted in counts.items()}


@dataclass(frozen=True)
class _Blocks:
    """A tensor divided into groups: one row per group, in the order of outputs."""

    shape: tuple[int, ...]
    size: int

    @property
    def by_channel(self) -> bool:
        return len(self.shape) > 1 and self.shape[1] % self.size == 0

    @property
    def rows(self) -> int:
        return self.shape[0] if len(self.shape) > 1 else 1

    def split(self, values: Numbers, fill: float | bool) -> Numbers:
        """The groups as rows; short ones are padded with `fill`."""
        if self.by_channel:
            channels_last = np.moveaxis(values.reshape(self.shape), 1, -1)
            return channels_last.reshape(-1, self.size)
        rows = values.reshape(self.rows, -1)
        lacking = -rows.shape[1] % self.size
        padded = np.pad(rows, ((0, 0), (0, lacking)), constant_values=fill)
        return padded.reshape(-1, self.size)

    def join(self, groups: Flags) -> Flags:
        """The inverse of `split`: entries in row-major order."""
        flags: Flags
        if self.by_channel:
            outputs, inputs, *kernel = self.shape
            flags = np.moveaxis(groups.reshape(outputs, *kernel, inputs), -1, 1)
        else:
            flags = groups.reshape(self.rows, -1)[:, : prod(self.shape) // self.rows]
        return np.ascontiguousarray(flags).reshape(-1)

    def spread(self, total: int) -> NDArray[np.int64]:
        """The counts of the groups, if the layer keeps `total` weights."""
        count = prod(self.shape)
        if not 0 <= total <= count:
            raise ValueError(f"a layer of {count} weights cannot keep {total}; ask for fewer")
        ends = np.cumsum(self.split(np.ones(count, np.bool_), False).sum(1), dtype=np.int64)
        counts: NDArray[np.int64] = np.diff(total * ends // max(count, 1), prepend=np.int64(0))
        return counts


def _top_rows(scores: Numbers, wanted: NDArray[np.int64]) -> Flags:
    """True at the `wanted` largest scores of each row; ties go to the lower index."""
    ranked = np.arange(scores.shape[1])[None, :] < wanted[:, None]
    order = np.argsort(-scores, axis=1, kind="stable")
    flags = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(flags, order, ranked, axis=1)
    return flags
