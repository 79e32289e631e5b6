"""Ways of combining what clients sent, one at a time and in float64, in the order they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import torch

from gossamer.core import Client, Params

Weighting = Literal["samples", "uniform"]


def weight(client: Client, weighting: Weighting) -> float:
    """What a client counts for in a mean."""
    return float(client.examples) if weighting == "samples" else 1.0


def mean(updates: Iterable[tuple[Params, float]]) -> Params:
    """The weighted mean of parameters; empty when there are none to combine."""
    total = 0.0
    sums: Params = {}
    kinds = {}
    for params, share in updates:
        total += share
        for name, tensor in params.items():
            if name not in sums:
                sums[name] = torch.zeros(tensor.shape, dtype=torch.float64)
                kinds[name] = tensor.dtype
            sums[name].add_(tensor, alpha=share)
    return {name: (tensor / total).to(kinds[name]) for name, tensor in sums.items()}


def zip_with(left: Params, right: Params, combine: Callable[..., torch.Tensor]) -> Params:
    """`combine` applied to the tensors that both sides name, in the order of the left."""
    return {name: combine(left[name], right[name]) for name in left if name in right}
