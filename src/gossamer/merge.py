"""Weighted means of client replies: one reply at a time, in float64, in the order of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch

from gossamer.arithmetic.sums import add
from gossamer.core import Client, Params
from gossamer.wire.errors import WireError

Weighting = Literal["samples", "uniform"]
"""Clients are weighted by their training examples, or all alike."""


def weight(client: Client, weighting: Weighting) -> float:
    """The weight of a client's update in a mean: its training examples, or 1."""
    return float(client.examples) if weighting == "samples" else 1.0


def mean(updates: Iterable[tuple[Params, float]]) -> Params:
    """The weighted mean of parameters.

    Args:
        updates: parameters and their weights. They are read once; only the running sum is kept.

    Returns:
        Tensors of the same names, shapes and types; empty if there are no updates.
    """
    total = 0.0
    sums: Params = {}
    kinds = {}
    for params, share in updates:
        total += share
        for name, tensor in params.items():
            if name not in sums:
                sums[name] = torch.zeros(tensor.shape, dtype=torch.float64)
                kinds[name] = tensor.dtype
            add(sums[name], tensor, share)
    return {name: (tensor / total).to(kinds[name]) for name, tensor in sums.items()}


def mean_of_each(updates: Iterable[tuple[Sequence[Params], float]]) -> tuple[Params, ...]:
    """The weighted mean of several models at once, by their places; empty when there are none."""
    flat = (
        ({f"{place} {name}": x for place, each in enumerate(models) for name, x in each.items()}, w)
        for models, w in updates
    )
    means: dict[int, Params] = {}
    for key, tensor in mean(flat).items():
        place, name = key.split(" ", 1)
        means.setdefault(int(place), {})[name] = tensor
    return tuple(means.values())


def fitting(reply: Params, wanted: Params) -> Params:
    """Checks a reply against what the client was sent.

    Without this check, torch would broadcast a tensor of one number over a whole layer.

    Args:
        reply: the tensors of the reply.
        wanted: tensors of the expected names, shapes and types; their values do not matter.

    Returns:
        `reply`, unchanged.

    Raises:
        WireError: names, shapes or types differ. It costs this client the round, not the run.
    """
    if reply.keys() != wanted.keys():
        odd = sorted(reply.keys() ^ wanted.keys())
        raise WireError(f"a reply lacks or adds {', '.join(odd)}")
    for name, tensor in reply.items():
        sent = wanted[name]
        if tensor.shape != sent.shape or tensor.dtype != sent.dtype:
            raise WireError(
                f"{name} came back as {tensor.dtype} of shape {tuple(tensor.shape)}, "
                f"but {sent.dtype} of shape {tuple(sent.shape)} was sent"
            )
    return reply
