"""One threshold per neuron: masks, gradients and importance, as functions of plain tensors.

A prunable tensor is a matrix of rows, one per neuron or filter. All thresholds of a model are one
vector, in the order of the layers and their rows; `Rows` says which part is whose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import Masks, Params
from gossamer.fields import option
from gossamer.task.layout import Layout

Ste = Literal["identity", "longtail", "dead"]
Regulariser = Literal["exp", "inv", "inv_l1"]
RegStep = Literal["loss", "eq5", "eq7"]
Warmup = Literal["none", "first", "logistic"]
Rule = Literal["signed", "xor01", "xorpm", "none"]
Divisor = Literal["fan_in", "kernel"]


@dataclass(frozen=True)
class Rows:
    """The layers that have thresholds, and where theirs are in the vector of all."""

    names: tuple[str, ...]
    counts: tuple[int, ...]
    """Thresholds of each layer."""
    fan_in: tuple[int, ...]
    kernel: tuple[int, ...]
    """Weights of a filter in one input channel; the fan-in of other layers."""

    @classmethod
    def of(cls, layout: Layout, classifier: bool = True) -> Rows:
        """Every prunable layer, with or without the last linear one."""
        linear = [name for name, leaf in layout.leaves.items() if leaf.kind == "linear"]
        left_out = set() if classifier else set(linear[-1:])
        leaves = [layout.leaves[name] for name in layout.prunable if name not in left_out]
        return cls(
            tuple(leaf.name for leaf in leaves),
            tuple(leaf.rows for leaf in leaves),
            tuple(leaf.fan_in for leaf in leaves),
            tuple(
                math.prod(leaf.shape[2:]) if len(leaf.shape) > 2 else leaf.fan_in for leaf in leaves
            ),
        )

    @property
    def total(self) -> int:
        """How many thresholds there are."""
        return sum(self.counts)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Each layer's part of a vector; parts share its memory."""
        return dict(zip(self.names, torch.split_with_sizes(vector, list(self.counts)), strict=True))

    def spread(self, numbers: Sequence[float]) -> Tensor:
        """A number per layer, repeated for each of its rows."""
        return torch.tensor(numbers, dtype=torch.float64).repeat_interleave(
            torch.tensor(self.counts, dtype=torch.int64)
        )

    def sums(self, params: Params) -> Tensor:
        """The sum of every row."""
        return torch.cat([rowwise_sum(params[name]) for name in self.names])


def column(vector: Tensor, like: Tensor) -> Tensor:
    """A number per row, shaped to be combined with a tensor of these rows."""
    return vector.view(-1, *[1] * (like.dim() - 1))


def rowwise_sum(tensor: Tensor) -> Tensor:
    """The sum of each row; a row may be a single number, as in a bias."""
    return tensor.sum(tuple(range(1, tensor.dim()))) if tensor.dim() > 1 else tensor


def rowwise_mean(tensor: Tensor) -> Tensor:
    """The mean of each row."""
    return tensor.mean(tuple(range(1, tensor.dim()))) if tensor.dim() > 1 else tensor


# masks --------------------------------------------------------------------------------------------


def distance(weight: Tensor, thresholds: Tensor, structured: bool) -> Tensor:
    """How far each weight is above its threshold; structured: each row, by its mean magnitude."""
    if structured:
        return column(rowwise_mean(weight.abs()) - thresholds, weight)
    return weight.abs() - column(thresholds, weight)


def mask(weight: Tensor, thresholds: Tensor, structured: bool = False) -> Tensor:
    """True where a weight, or the mean magnitude of its row, is above the threshold."""
    if structured:
        return (distance(weight, thresholds, True) > 0).expand_as(weight)
    return weight.abs() > column(thresholds, weight)


def below(density: float, least: float, inclusive: bool) -> bool:
    """Whether so few weights are left that a layer is given back all of them."""
    return density <= least if inclusive else density < least


def slope(distance: Tensor, ste: Ste) -> Tensor | None:
    """What stands for the derivative of the step; None for one everywhere.

    The long tail is that of dynamic sparse training (Liu et al., ICLR 2020). The dead gate passes
    gradients only beyond one, where no weight is: the inverse of a clipped step.
    """
    match ste:
        case "identity":
            return None
        case "longtail":
            far = distance.abs()
            tail = torch.where(far <= 1, torch.full_like(far, 0.4), torch.zeros_like(far))
            return torch.where(far <= 0.4, 2 - 4 * far, tail)
        case "dead":
            return (distance.abs() > 1).to(distance.dtype)


# gradients ----------------------------------------------------------------------------------------


def threshold_gradient(gradient: Tensor, weight: Tensor, factor: Tensor | None = None) -> Tensor:
    """The loss's gradient of each threshold, from that of the masked weights.

    A threshold moves every weight of its row, also the masked ones: `-sum_j G_ij W_ij`, times the
    slope where it is not one. This equals autograd through the straight-through step.
    """
    product = gradient * weight
    return -rowwise_sum(product if factor is None else product * factor)


def weight_gradient_through_mask(
    gradient: Tensor, weight: Tensor, factor: Tensor | None, structured: bool
) -> Tensor:
    """What autograd would add to the gradient of the weights because the mask depends on them."""
    if not structured:
        found = gradient * weight.abs()
        return found if factor is None else found * factor
    row = column(rowwise_sum(gradient * weight), weight)
    if factor is not None:
        row = row * factor
    return weight.sign() * row / weight[0].numel()


@dataclass(frozen=True)
class Regularisation:
    """What drives thresholds up: without it nothing would be pruned."""

    alpha: float = option(0.002, "weight of the regulariser that raises thresholds", least=0)
    regulariser: Regulariser = option(
        "exp", "exp: sum of exp(-t); inv: sum of 1/(t + 0.1); inv_l1: 1/(sum of t + 0.1)"
    )
    reg_step: RegStep = option(
        "loss", "its step: as the loss says, or as equation 5 or 7 of the paper has it"
    )
    reg_warmup: Warmup = option(
        "none", "a logistic factor: of no round, of the first round only, or of every round"
    )
    reg_off_density: float = option(
        0.0, "no regulariser once the mean density of layers is at most this", least=0, most=1
    )

    def gradient(self, thresholds: Tensor) -> Tensor:
        """Of the regulariser, to be descended with the learning rate."""
        if self.reg_step == "eq5":
            return -thresholds
        match self.regulariser:
            case "exp":
                return -torch.exp(-thresholds)
            case "inv":
                return -1 / (thresholds.abs() + 0.1) ** 2
            case "inv_l1":
                return torch.full_like(thresholds, -1) / (thresholds.abs().sum() + 0.1) ** 2

    def strength(self, round: int, mean_density: float) -> float:
        """Alpha in a round, for layers that have so much left."""
        if self.reg_off_density and mean_density <= self.reg_off_density:
            return 0.0
        passed = round - 1
        if self.reg_warmup == "logistic" or (self.reg_warmup == "first" and passed == 0):
            return self.alpha / (1 + math.exp(min(5 - 10 * passed, 700)))
        return self.alpha


# importance ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Importance:
    """How weights follow the thresholds that others changed."""

    importance_rule: Rule = option(
        "signed", "signed, the readings xor01 and xorpm of equation 12, or none"
    )
    importance_divisor: Divisor = option(
        "fan_in", "what a change is divided by: all inputs of a neuron, or those of one channel"
    )

    def moves(self, sums: Tensor, changes: Tensor) -> Tensor:
        """What is added to each row together, before dividing, as its threshold changes."""
        signs = sums.sign()
        differ = signs * changes.sign() < 0
        match self.importance_rule:
            case "signed":
                return -signs * changes
            case "xor01":
                return changes * differ
            case "xorpm":
                return torch.where(differ, changes, -changes) * signs.abs()
            case "none":
                return torch.zeros_like(changes)

    def apply(self, rows: Rows, params: Params, versions: Tensor, clamp: bool) -> Params:
        """The weights after the thresholds went through `versions`, the first of which is old.

        However many versions there are, weights are touched once: what a version adds is the same
        for a whole row, so only the sums of rows are carried from one version to the next. Where
        clamping could bind in between, it is done version by version.
        """
        changes = versions.double().diff(dim=0)
        if self.importance_rule == "none" or not changes.any():
            return params
        sizes = rows.spread(rows.fan_in)
        divisors = rows.spread(rows.fan_in if self.importance_divisor == "fan_in" else rows.kernel)
        sums = rows.sums(params).double()
        shifts, farthest = self._shifts(sums, changes, sizes / divisors)
        shifts, farthest = shifts / divisors, farthest / divisors
        found = dict(params)
        far, by = rows.split(farthest), rows.split(divisors)
        for name, shift in rows.split(shifts).items():
            weight = params[name]
            if clamp and float(weight.abs().max()) + float(far[name].max()) > 1:
                steps = torch.stack([rows.split(change)[name] for change in changes])
                found[name] = self._one_by_one(weight, steps, by[name])
            else:
                found[name] = weight + column(shift.to(weight.dtype), weight)
        return found

    def _shifts(self, sums: Tensor, changes: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        """What all changes together add to a row, and how far they take it on the way, at most."""
        reach = changes.cumsum(0)
        farthest = changes.abs().sum(0)
        shifts = -sums.sign() * reach[-1]
        # A sum that keeps its sign moves by the sum of all changes; the others go step by step.
        steady = (sums.abs() > gain * reach.amax(0)) & (self.importance_rule == "signed")
        rest = torch.nonzero(~steady).squeeze(1)
        here, total = sums[rest].clone(), torch.zeros(len(rest), dtype=sums.dtype)
        for change in changes[:, rest] if len(rest) else ():
            move = self.moves(here, change)
            here += gain[rest] * move
            total += move
        return shifts.index_copy(0, rest, total), farthest

    def _one_by_one(self, weight: Tensor, changes: Tensor, divisors: Tensor) -> Tensor:
        for change in changes:
            move = self.moves(rowwise_sum(weight).double(), change) / divisors
            weight = (weight + column(move.to(weight.dtype), weight)).clamp_(-1, 1)
        return weight


def masks_of(
    rows: Rows, params: Params, thresholds: Tensor, structured: bool
) -> Iterator[tuple[str, Tensor]]:
    """The mask of every layer."""
    for name, part in rows.split(thresholds).items():
        yield name, mask(params[name], part, structured)


def pruned(params: Params, masks: Mapping[str, Tensor]) -> Params:
    """Parameters with zeros where a mask has them."""
    return {**params, **{name: params[name] * kept for name, kept in masks.items()}}


def mean_density(masks: Masks) -> float:
    """The mean over layers, every layer counting the same."""
    if not masks:
        return 1.0
    return math.fsum(float(kept.float().mean()) for kept in masks.values()) / len(masks)
