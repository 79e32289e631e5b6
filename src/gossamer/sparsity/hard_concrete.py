"""Gates with learned thresholds: probabilities, initial thresholds, hard concrete relaxation.

A group of weights is open with probability `sigmoid((norm - threshold) / temperature)`. The code
works with logits: at a temperature of 0.001, probabilities saturate and their logarithms lose all
precision.

>>> norms = torch.tensor([0.5, 1.0])
>>> thresholds = thresholds_for(norms, 0.99, 1e-3)
>>> torch.sigmoid(logits(norms, thresholds, 1e-3))
tensor([0.9900, 0.9900])
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gossamer.core import Key, Params
from gossamer.fields import option
from gossamer.sparsity.groups import Groups

Relaxation = Literal["natural", "matched"]
LEAST_THRESHOLD = 1e-6
"""The minimum threshold, for groups too small to reach the requested probability."""
LEAST_DRAW = 1e-6
"""The minimum distance of uniform draws from 0 and 1, where logits are infinite."""

# thresholds ---------------------------------------------------------------------------------------


def logits(norms: Tensor, raw: Tensor, temperature: float) -> Tensor:
    """Logits of the probabilities that groups are open; thresholds are `softplus(raw)`."""
    result: Tensor = (norms - softplus(raw)) / temperature
    return result


def thresholds_for(norms: Tensor, share: float | Tensor, temperature: float) -> Tensor:
    """Raw thresholds for which groups are open with probability `share`, as far as possible."""
    logit = torch.logit(torch.as_tensor(share, dtype=torch.float64))
    wanted = norms - (temperature * logit).to(norms.dtype)
    threshold = wanted.clamp_min(LEAST_THRESHOLD)
    return threshold + torch.log(-torch.expm1(-threshold))


def infeasible(norms: Tensor, share: float, temperature: float) -> Tensor:
    """Groups too small to be open with probability `share` under any positive threshold."""
    return norms <= temperature * math.log(share / (1 - share))


def first_thresholds(groups: Groups, params: Params, share: float, temperature: float) -> Tensor:
    """Initial raw thresholds, for which all groups are open with probability `share`.

    Groups that are too small start with a lower probability, and a warning is issued.

    Raises:
        ValueError: a group is zero, so its gate would never open.
    """
    norms = groups.norms(params)
    for name, part in groups.split(norms).items():
        if closed := int((part == 0).sum()):
            raise ValueError(
                f"{closed} of {part.numel()} groups of {name} are initialised to zero, and their "
                "gates would never open; change the initialisation, or exclude the tensor with "
                "`prunable=`"
            )
    if small := int(infeasible(norms, share, temperature).sum()):
        warnings.warn(
            f"{small} of {groups.total} groups are too small to be open with probability "
            f"{share:g} under any threshold and start less open; use a smaller `temperature=` "
            "or `theta0=`",
            stacklevel=3,
        )
    return thresholds_for(norms, share, temperature)


def threshold_ascent(opened: Tensor, theta: Tensor, raw: Tensor, temperature: float) -> Tensor:
    """The gradient of `z log theta + (1 - z) log(1 - theta)` with respect to raw thresholds."""
    return -(opened.to(raw.dtype) - theta) * torch.sigmoid(raw) / temperature


# the relaxed gate ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class HardConcrete:
    """A gate that is 0 or 1 with positive probability and differentiable in between.

    Louizos, Welling, Kingma: Learning sparse neural networks through L0 regularization. ICLR 2018.
    https://arxiv.org/abs/1712.01312
    """

    relaxation: Relaxation = option(
        "natural",
        "a gate's probability is that of its zero-temperature limit, or of being positive",
    )
    beta: float = option(2 / 3, "temperature of the relaxed gate", above=0)
    gamma: float = option(-0.1, "lower end of the stretched interval of a relaxed gate", below=0)
    zeta: float = option(1.1, "upper end of the stretched interval of a relaxed gate", above=1)

    @property
    def shift(self) -> float:
        """The location at which a gate is positive with probability one half."""
        return self.beta * math.log(-self.gamma / self.zeta)

    def location(self, logits: Tensor) -> Tensor:
        """The locations of gates from the logits of their probabilities."""
        return logits + self.shift if self.relaxation == "matched" else logits

    def soft(self, location: Tensor, draws: Tensor) -> Tensor:
        """The concrete variable between 0 and 1, from uniform draws."""
        return torch.sigmoid((torch.logit(draws) + location) / self.beta)

    def gate(self, soft: Tensor) -> Tensor:
        """The concrete variable stretched beyond 0 and 1, then clipped to them."""
        return (soft * (self.zeta - self.gamma) + self.gamma).clamp(0, 1)

    def slope(self, soft: Tensor) -> Tensor:
        """The derivative of the gate with respect to its location; zero where it is clipped."""
        stretched = soft * (self.zeta - self.gamma) + self.gamma
        inside = (stretched >= 0) & (stretched <= 1)
        return inside * soft * (1 - soft) * ((self.zeta - self.gamma) / self.beta)

    def positive(self, location: Tensor) -> Tensor:
        """The probability that the gate is above zero: one minus its CDF at zero."""
        return torch.sigmoid(location - self.shift)

    def one(self, location: Tensor) -> Tensor:
        """The probability that the gate is fully open."""
        return torch.sigmoid(location - self.beta * math.log((1 - self.gamma) / (self.zeta - 1)))


def draw(key: Key, count: int) -> Tensor:
    """Uniform numbers with finite logits."""
    return torch.rand(count, generator=key.generator()).clamp_(LEAST_DRAW, 1 - LEAST_DRAW)
