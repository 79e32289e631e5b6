"""Importance of weights: PruneFL's criterion for adjusting masks.

The importance of a weight is its squared gradient, which approximates how much faster the loss
decreases with it. Its cost is the time it adds to a round. Masks maximise importance per second:
weights are added in the order of that ratio, as long as the ratio of the whole model increases.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import fsum

import torch

from gossamer.core import Params


@dataclass(frozen=True)
class Importance:
    """The importance of each prunable weight, and of all other parameters together."""

    weights: Params
    rest: float

    def any(self) -> bool:
        """Whether any importance is not zero."""
        return bool(self.rest) or any(bool(tensor.any()) for tensor in self.weights.values())

    def negative(self) -> bool:
        """Whether any importance is negative, which is invalid for a sum of squares."""
        return self.rest < 0 or any(bool((tensor < 0).any()) for tensor in self.weights.values())

    def times(self, factor: float) -> Importance:
        """The product with a number, in double precision."""
        weights = {name: tensor.double() * factor for name, tensor in self.weights.items()}
        return Importance(weights, self.rest * factor)

    def plus(self, other: Importance | None) -> Importance:
        """The sum of two; weights that `other` does not have are zero in it."""
        if other is None:
            return self
        weights = {name: x + other.weights.get(name, 0) for name, x in self.weights.items()}
        return Importance(weights, self.rest + other.rest)


@dataclass
class Gathered:
    """Gradients of all parameters, or their squares, summed over the steps of a client."""

    sums: Params
    squared: bool

    @classmethod
    def zeros(cls, params: Params, squared: bool) -> Gathered:
        """The sums before the first step."""
        return cls({name: torch.zeros_like(tensor) for name, tensor in params.items()}, squared)

    def add(self, grads: Params) -> None:
        """Adds the gradients of a step."""
        sums, new = list(self.sums.values()), [grads[name] for name in self.sums]
        if self.squared:
            torch._foreach_addcmul_(sums, new, new)
        else:
            torch._foreach_add_(sums, new)

    def importance(self, prunable: Collection[str], examples: int) -> Importance:
        """The sum of squares; or the squared sum times `examples`, so that rounds can be summed."""
        squares, factor = self.sums, 1
        if not self.squared:
            squares = {name: tensor.square() for name, tensor in self.sums.items()}
            factor = examples
        weights = {name: factor * squares[name] for name in prunable}
        rest = fsum(float(each.sum()) for name, each in squares.items() if name not in weights)
        return Importance(weights, factor * rest)
