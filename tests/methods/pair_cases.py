"""One tensor of two weights and three clients: the numbers of oracles O5 and O6."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

START = (1.0, -1.0)
CLIENTS = ((1.2, -1.0), (0.9, -0.6), (1.2, -1.1))


def vector(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Two(nn.Module):
    """A module whose only tensor is the pair of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(vector(START))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w
