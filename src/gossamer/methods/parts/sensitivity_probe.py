"""The round that trains no model: clients learn masks and send the density of each layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer import merge, sparsity
from gossamer.core import Ctx, Masks
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.sparsity import Counts, Densities
from gossamer.wire import Drawn, WireError


@dataclass(frozen=True)
class Probe:
    """Asks how dense a client would make each layer."""

    model: SparseModel
    mask: Drawn
    budget: float | None
    """The density of a client that cannot afford the whole mask."""


@dataclass(frozen=True)
class Sensitivity:
    densities: Tensor
    """Of each prunable layer, in the layout's order."""


def check(ctx: Ctx) -> None:
    """Refuses a run that would end with the probe."""
    if ctx.rounds < 2:
        raise ValueError(
            "the first round finds densities of layers and trains nothing; use `rounds=2` or more, "
            "or `allocation='erk'`, which needs no such round"
        )


def seed(ctx: Ctx, counts: Counts, number: int) -> Drawn:
    """The seed of random masks with `counts` weights in each layer, the `number`-th of a run."""
    shapes = {name: ctx.task.layout[name].shape for name in counts}
    return Drawn.by(ctx.common.fold("masks", number), counts, shapes)


def sensitivity(ctx: Ctx, masks: Masks) -> Sensitivity:
    """The sensitivity of each prunable layer: the density that a client gave it."""
    dense = sparsity.layer_densities(masks)
    return Sensitivity(torch.tensor([float(dense[name]) for name in ctx.task.layout.prunable]))


def mean_sensitivity(ctx: Ctx, replies: Iterable[object]) -> Densities:
    """The mean over clients of the density of each layer; nothing, if nobody replied.

    Raises:
        WireError: a reply is not a `Sensitivity`, or not one of densities.
    """
    received = []
    for up in replies:
        if not isinstance(up, Sensitivity):
            raise WireError("weights came back where densities of layers were asked for")
        if not bool(((up.densities >= 0) & (up.densities <= 1)).all()):
            raise WireError("a density of a layer is not between 0 and 1")
        received.append(up.densities)
    if not received:
        return {}
    mean = merge.mean(({"": each.double()}, 1.0) for each in received)[""].tolist()
    return {
        name: sparsity.as_fraction(share)
        for name, share in zip(ctx.task.layout.prunable, mean, strict=True)
    }


def after_probe(ctx: Ctx) -> Ctx:
    """The round counted without the first one, which trains no model."""
    return replace(ctx, round=ctx.round - 1, rounds=ctx.rounds - 1)
