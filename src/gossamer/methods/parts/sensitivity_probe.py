"""The round that trains no model: clients are asked how dense each layer should be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer import sparsity
from gossamer.core import Ctx, Params
from gossamer.sparsity import Densities
from gossamer.wire import Drawn, Packed, WireError


@dataclass(frozen=True)
class Probe:
    """Asks how dense a client would make each layer."""

    values: Packed
    dense: Params
    buffers: Params
    mask: Drawn
    budget: float | None
    """Of a client that cannot afford the whole mask, to draw its part of it."""


@dataclass(frozen=True)
class Sensitivity:
    densities: Tensor
    """Of each layer that may be pruned."""


def mean_sensitivity(ctx: Ctx, replies: Iterable[object]) -> Densities:
    """The mean over clients of the density of each layer; nothing, if nobody replied."""
    found = []
    for up in replies:
        if not isinstance(up, Sensitivity):
            raise WireError("weights came back where densities of layers were asked for")
        if not bool(((up.densities >= 0) & (up.densities <= 1)).all()):
            raise WireError("a density of a layer is not between 0 and 1")
        found.append(up.densities)
    if not found:
        return {}
    mean = torch.stack(found).double().mean(0).tolist()
    return {
        n: sparsity.as_fraction(share)
        for n, share in zip(ctx.task.layout.prunable, mean, strict=True)
    }
