"""Gates on groups of weights: thresholds on norms, a relaxed draw, and what opens or closes them.

A group is a filter, a neuron, or a single weight. It is open with the probability that the norm of
its weights stands above a learned threshold; all gates of a model are one vector. Clients minimise

    mean loss(w * z) + rho * sum over groups of
        R (drift of the group + lambda0 * size) - c (R log theta + (1 - R) log(1 - theta))

where z is the relaxed gate, R the probability that it is above zero, and theta the server's
probability, a constant of the round. Logits are kept throughout: at a temperature of a thousandth a
probability has no digits left to take a logarithm of.

>>> norms = torch.tensor([0.5, 1.0])
>>> thresholds = thresholds_for(norms, 0.99, 1e-3)
>>> torch.sigmoid(logits(norms, thresholds, 1e-3))
tensor([0.9900, 0.9900])
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from gossamer.core import Key, Masks
from gossamer.fields import option
from gossamer.task.layout import Layout

LEAST_THRESHOLD = 1e-6
"""Thresholds are above zero; a group too small to be as open as asked for has this one."""
LEAST_DRAW = 1e-6
"""Uniform draws stay so far from 0 and 1, whose logits are infinite."""

Granularity = Literal["groups", "weights"]
LinearAxis = Literal["out", "in"]
Head = Literal["auto", "gated", "dense"]
Relaxation = Literal["natural", "matched"]


# groups -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Groups:
    """Which weights share a gate: slices of tensors, or single weights."""

    names: tuple[str, ...]
    axes: tuple[int | None, ...]
    """The dimension whose slices are the groups of a tensor; None: every weight is one."""
    shapes: tuple[tuple[int, ...], ...]
    """Of the gates of each tensor."""
    weights: tuple[int, ...]
    """In each group of a tensor."""

    @classmethod
    def of(
        cls, layout: Layout, granularity: Granularity, linear_axis: LinearAxis, head: Head
    ) -> Groups:
        """Filters and neurons of all that may be pruned; the last linear layer as `head` says.

        By itself it has gates only where they close inputs or weights: gates on its rows would take
        whole classes away.
        """
        linear = [name for name, leaf in layout.leaves.items() if leaf.kind == "linear"]
        whole_rows = granularity == "groups" and linear_axis == "out"
        ungated = set(linear[-1:]) if head == "dense" or (head == "auto" and whole_rows) else set()
        names, axes, shapes, weights = [], list[int | None](), [], []
        for name in layout.prunable:
            if name in ungated:
                continue
            leaf = layout.leaves[name]
            axis: int | None = None
            if granularity == "groups":
                axis = 1 if leaf.kind == "linear" and linear_axis == "in" else 0
            names.append(name)
            axes.append(axis)
            shapes.append(leaf.shape if axis is None else (leaf.shape[axis],))
            weights.append(1 if axis is None else leaf.count // leaf.shape[axis])
        if not names:
            raise ValueError(
                "this model has no layer with gates: the last linear one is left out, and there is "
                "no other; use --gate-head gated, or see --prunable"
            )
        return cls(tuple(names), tuple(axes), tuple(shapes), tuple(weights))

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Gates of each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def total(self) -> int:
        """How many gates there are."""
        return sum(self.counts)

    def sizes(self) -> Tensor:
        """How many weights each group has."""
        counts = torch.tensor(self.counts, dtype=torch.int64)
        return torch.tensor(self.weights, dtype=torch.float64).repeat_interleave(counts)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Each tensor's part of a vector of all gates; parts share its memory."""
        parts = torch.split_with_sizes(vector, list(self.counts))
        shaped = (part.view(shape) for part, shape in zip(parts, self.shapes, strict=True))
        return dict(zip(self.names, shaped, strict=True))

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The vector of all gates from the parts of tensors."""
        return torch.cat([parts[name].flatten() for name in self.names])

    def spread(self, vector: Tensor, over: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A number per gate as tensors that combine with the weights `over` which they stand."""
        found = {}
        for (name, part), axis in zip(self.split(vector).items(), self.axes, strict=True):
            sizes = [-1 if place == axis else 1 for place in range(over[name].dim())]
            found[name] = part if axis is None else part.view(sizes)
        return found

    def sums(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The sum over each group."""
        return torch.cat([_summed(tensors[n], axis) for n, axis in self._pairs])

    def squares(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The squared norm of each group."""
        return torch.cat([_summed(tensors[n].square(), axis) for n, axis in self._pairs])

    def norms(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The Euclidean norm of each group."""
        return self.squares(tensors).sqrt()

    def masks(self, vector: Tensor, over: Mapping[str, Sequence[int]]) -> Masks:
        """A truth value per gate, repeated for each of its weights; `over` has their shapes."""
        blank = {name: torch.empty(1).expand(tuple(over[name])) for name in self.names}
        spread = self.spread(vector, blank)
        return {name: part.expand(tuple(over[name])) for name, part in spread.items()}

    def places(self, inside: Masks) -> Tensor:
        """Which gates have weights in a part of the model, told by masks of its tensors."""
        return torch.cat([_slices(inside[n], axis) for n, axis in self._pairs]).nonzero().flatten()

    def within(self, inside: Masks) -> Groups:
        """The gates of a part of the model."""
        counts = [(int(_slices(inside[name], axis).sum()),) for name, axis in self._pairs]
        return replace(self, shapes=tuple(counts))

    @cached_property
    def _pairs(self) -> tuple[tuple[str, int | None], ...]:
        return tuple(zip(self.names, self.axes, strict=True))


def _summed(tensor: Tensor, axis: int | None) -> Tensor:
    if axis is None:
        return tensor.flatten()
    others = [place for place in range(tensor.dim()) if place != axis]
    return tensor.sum(others) if others else tensor


def _slices(mask: Tensor, axis: int | None) -> Tensor:
    """Where a slice of a mask has anything."""
    return _summed(mask, axis) > 0


# thresholds ---------------------------------------------------------------------------------------


def logits(norms: Tensor, raw: Tensor, temperature: float) -> Tensor:
    """Of the probability that a group is open; `raw` thresholds become positive by softplus."""
    found: Tensor = (norms - softplus(raw)) / temperature
    return found


def thresholds_for(norms: Tensor, share: float | Tensor, temperature: float) -> Tensor:
    """Raw thresholds with which groups are open with probability `share`, or nearly."""
    logit = torch.logit(torch.as_tensor(share, dtype=torch.float64))
    wanted = norms - (temperature * logit).to(norms.dtype)
    threshold = wanted.clamp_min(LEAST_THRESHOLD)
    return threshold + torch.log(-torch.expm1(-threshold))


def infeasible(norms: Tensor, share: float, temperature: float) -> Tensor:
    """Groups too small to be open with probability `share` under any threshold above zero."""
    return norms <= temperature * math.log(share / (1 - share))


# the relaxed gate ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class HardConcrete:
    """A gate that is 0 or 1 with positive probability and differentiable in between.

    Louizos, Welling, Kingma: Learning sparse neural networks through L0 regularization. ICLR 2018.
    https://arxiv.org/abs/1712.01312
    """

    relaxation: Relaxation = option(
        "natural", "probabilities are those of the gate's limit, or of its being above zero"
    )
    beta: float = option(2 / 3, "temperature of the relaxed gate", above=0)
    gamma: float = option(-0.1, "lower end that a relaxed gate is stretched to", below=0)
    zeta: float = option(1.1, "upper end that a relaxed gate is stretched to", above=1)

    @property
    def shift(self) -> float:
        """By which the logit of being above zero is less than that of the gate."""
        return self.beta * math.log(-self.gamma / self.zeta)

    def location(self, logits: Tensor) -> Tensor:
        """The gate's own logit, from that of the probability it stands for."""
        return logits + self.shift if self.relaxation == "matched" else logits

    def soft(self, location: Tensor, draws: Tensor) -> Tensor:
        """The concrete variable between 0 and 1, from uniform draws."""
        return torch.sigmoid((torch.logit(draws) + location) / self.beta)

    def gate(self, soft: Tensor) -> Tensor:
        """The variable stretched beyond 0 and 1, and cut there."""
        return (soft * (self.zeta - self.gamma) + self.gamma).clamp(0, 1)

    def slope(self, soft: Tensor) -> Tensor:
        """Of the gate, by its location: none where it is cut."""
        stretched = soft * (self.zeta - self.gamma) + self.gamma
        inside = (stretched >= 0) & (stretched <= 1)
        return inside * soft * (1 - soft) * ((self.zeta - self.gamma) / self.beta)

    def positive(self, location: Tensor) -> Tensor:
        """The probability that the gate is above zero."""
        return torch.sigmoid(location - self.shift)

    def one(self, location: Tensor) -> Tensor:
        """The probability that the gate is fully open."""
        return torch.sigmoid(location - self.beta * math.log((1 - self.gamma) / (self.zeta - 1)))


def draw(key: Key, count: int) -> Tensor:
    """Uniform numbers that have a logit."""
    return torch.rand(count, generator=key.generator()).clamp_(LEAST_DRAW, 1 - LEAST_DRAW)


# the clients' objective ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Objective:
    """What clients minimise beside the loss of their data."""

    lambda0: float = option(5e-6, "price of a weight of an open group", least=0)
    lambda0_per: Literal["weight", "gate"] = option(
        "weight", "whether groups pay for each of their weights, or once"
    )
    cross_entropy: float = option(1e-4, "pull of gates towards the server's", least=0)
    drift: float = option(0.0, "pull of open weights towards the server's", least=0)
    drift_factor: Literal["half", "whole"] = option(
        "half", "half the squared distance, as in equation 9, or all of it, as in 30 and 31"
    )
    regulariser: Literal["whole", "per-example"] = option(
        "whole", "beside the mean loss: all of it, or divided by the client's examples"
    )

    def scale(self, examples: int) -> float:
        """What all terms are multiplied with."""
        return 1.0 if self.regulariser == "whole" else 1 / max(examples, 1)

    def strength(self, examples: int) -> float:
        """Of the drift: its gradient is this times R times the distance."""
        return self.scale(examples) * self.drift * (1 if self.drift_factor == "half" else 2)

    def price(self, sizes: Tensor, logits: Tensor, examples: int) -> Tensor:
        """What opening a gate adds: `lambda0 * size - c * logit`, without the drift.

        It changes its sign where the server's logit is `lambda0 * size / c`: gates below are pushed
        shut, those above open.
        """
        paid = sizes if self.lambda0_per == "weight" else torch.ones_like(sizes)
        return self.scale(examples) * (self.lambda0 * paid - self.cross_entropy * logits)

    def value(
        self, positive: Tensor, sizes: Tensor, logits: Tensor, squares: Tensor, examples: int
    ) -> Tensor:
        """The whole term, where groups are `squares` (of the distance) away from the server's."""
        paid = sizes if self.lambda0_per == "weight" else torch.ones_like(sizes)
        half = 0.5 if self.drift_factor == "half" else 1.0
        opened = positive * (half * self.drift * squares + self.lambda0 * paid)
        agreed = positive * logsigmoid(logits) + (1 - positive) * logsigmoid(-logits)
        return self.scale(examples) * (opened - self.cross_entropy * agreed).sum()


# the server's step --------------------------------------------------------------------------------


def threshold_ascent(opened: Tensor, theta: Tensor, raw: Tensor, temperature: float) -> Tensor:
    """The gradient of `z log theta + (1 - z) log(1 - theta)` by the raw thresholds."""
    return -(opened - theta) * torch.sigmoid(raw) / temperature


def mean_of_open(old: Tensor, change: Tensor, opened: Tensor) -> Tensor:
    """The best weights of one round in closed form: the mean over clients that have them open.

    `change` is the sum over clients of gate times difference from the old weights, and `opened`
    that of gates, which may be probabilities; what nobody has open stays as it was.
    """
    return torch.where(opened > 0, old + change / opened.clamp_min(1e-38), old)
