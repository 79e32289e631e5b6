"""Ways of combining what clients sent, one at a time and in float64, in the order they come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch

from gossamer.core import Client, Params
from gossamer.wire.errors import WireError

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


def mean_of_each(updates: Iterable[tuple[Sequence[Params], float]]) -> tuple[Params, ...]:
    """The weighted mean of several models at once, by their places; empty when there are none."""
    flat = (
        ({f"{place} {name}": x for place, each in enumerate(models) for name, x in each.items()}, w)
        for models, w in updates
    )
    found: dict[int, Params] = {}
    for key, tensor in mean(flat).items():
        place, name = key.split(" ", 1)
        found.setdefault(int(place), {})[name] = tensor
    return tuple(found.values())


def fitting(found: Params, wanted: Params) -> Params:
    """What a client sent, if it has the names, shapes and types of what it was sent.

    Anything else is a `WireError`, which costs that client the round: torch would stretch a tensor
    of one number over a whole layer and go on.
    """
    if found.keys() != wanted.keys():
        odd = sorted(found.keys() ^ wanted.keys())
        raise WireError(f"a reply lacks or adds {', '.join(odd)}")
    for name, tensor in found.items():
        there = wanted[name]
        if tensor.shape != there.shape or tensor.dtype != there.dtype:
            raise WireError(
                f"{name} came back as {tensor.dtype} of shape {tuple(tensor.shape)}, "
                f"but {there.dtype} of shape {tuple(there.shape)} was sent"
            )
    return found
