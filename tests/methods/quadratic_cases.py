"""Losses whose gradients can be worked out by hand: one weight, one example a client."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gossamer import Ctx, Examples, Params, Task
from helpers import client_ctx


class Slope(nn.Module):
    """One weight: the slope of a line through the origin."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


def half_square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum(1).mean() / 2


def slope() -> Task:
    """A loss of x^2 (w - y / x)^2 / 2, whose gradient is x^2 (w - y / x)."""
    return Task.of(Slope(), torch.ones(2, 1), criterion=half_square)


def chain() -> Task:
    """Two weights in a row: the representation `0.weight` and the head `1.weight`."""
    layers = (nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    return Task.of(nn.Sequential(*layers), torch.ones(2, 1), criterion=half_square)


def one(task: Task, optimum: float, scale: float = 1.0) -> Ctx:
    """A client whose loss is scale^2 (w - optimum)^2 / 2."""
    return client_ctx(task, Examples(torch.tensor([[scale]]), torch.tensor([[scale * optimum]])))


def weight(value: float) -> Params:
    return {"w": torch.tensor([value])}
