"""Local SGD on a sparse model: masked weights are zero, have no gradient, and stay zero.

Nothing is masked twice: a step costs one product per weight more than a dense one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gossamer import optim, sparsity
from gossamer.core import Batch, Ctx, Masks, Params
from gossamer.optim import Training
from gossamer.sparsity import Change


@dataclass
class Work:
    """A sparse model in training; `step` updates it in place."""

    params: Params
    masks: Masks
    factors: Params
    """The masks as numbers, to multiply gradients by."""
    start: Masks
    """The masks at the beginning of the round."""
    rate: float
    frozen: Masks = field(default_factory=dict)
    """Weights that are active beside the masks and never change."""
    anchor: Params = field(default_factory=dict)
    """The model that a proximal term pulls towards."""
    velocity: optim.Velocity = field(default_factory=list)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    examples: int = 0


def begin(ctx: Ctx, params: Params, masks: Masks, rate: float) -> Work:
    """Starts from parameters that are zero outside of their masks."""
    own = ctx.task.own(params)
    return Work(own, masks, as_factors(masks, own), masks, rate)


def step(
    ctx: Ctx,
    training: Training,
    work: Work,
    batch: Batch,
    prox: float = 0.0,
    momentum_everywhere: bool = False,
) -> None:
    """One step of SGD on the active weights.

    Args:
        prox: strength of the pull towards `work.anchor`, as in FedProx.
        momentum_everywhere: masked weights keep a momentum, though not a value.
    """
    late = momentum_everywhere or bool(work.frozen)
    loss, grads = ctx.task.gradients(work.params, batch, None if late else work.factors)
    if prox:
        optim.pull(grads, work.params, work.anchor, prox)
    if work.frozen:
        # Frozen weights are not zero, so weight decay must not see them.
        if training.weight_decay:
            weights = [work.params[name] for name in grads]
            torch._foreach_add_(list(grads.values()), weights, alpha=training.weight_decay)
            training = replace(training, weight_decay=0.0)
        multiply(grads, work.factors)
    training.update(work.params, grads, work.velocity, work.rate)
    if momentum_everywhere:
        multiply(work.params, work.factors)
    record(work, loss, batch)


def record(work: Work, loss: Tensor, batch: Batch) -> None:
    """Adds a batch to the mean training loss."""
    work.loss = work.loss + loss * len(batch.y)
    work.examples += len(batch.y)


def change_masks(ctx: Ctx, work: Work, change: Change, reset_momentum: bool = True) -> None:
    """Continues with other masks; regrown weights start from zero, by default without momentum."""
    work.masks = change.masks
    work.factors = as_factors(change.masks, work.params)
    alive = sparsity.union(change.kept, work.frozen) if work.frozen else change.kept
    survivors = as_factors(alive, work.params)
    multiply(work.params, survivors)
    if reset_momentum:
        multiply(momentum(ctx, work), survivors)


def dense_gradient(ctx: Ctx, work: Work, batch: Batch) -> Params:
    """The gradient of all weights, masked ones too; running statistics are left alone."""
    statistics = {name: work.params[name].clone() for name in ctx.task.layout.buffers}
    return ctx.task.gradients({**work.params, **statistics}, batch).grads


def momentum(ctx: Ctx, work: Work) -> Params:
    """The momentum of every masked tensor that has one."""
    buffers = dict(zip(ctx.task.layout.parameters, work.velocity, strict=False))
    return {name: each for name in work.masks if (each := buffers.get(name)) is not None}


def mean_loss(work: Work) -> float:
    """The mean training loss of the round."""
    return work.loss.item() / max(work.examples, 1)


def metrics(work: Work, moved: bool = False) -> dict[str, float]:
    """The training loss and, where masks moved, how far, and the density of each layer."""
    figures = {"loss": mean_loss(work)}
    if moved:
        figures["moved"] = sparsity.mismatch(work.start, work.masks)
        densities = sparsity.layer_densities(work.masks)
        figures |= {f"sensitivity.{name}": float(share) for name, share in densities.items()}
    return figures


def as_factors(masks: Masks, params: Params) -> Params:
    """Masks as numbers of the type and layout of their tensors."""
    return sparsity.numbers(masks, {name: params[name] for name in masks})


def multiply(tensors: Params, factors: Mapping[str, Tensor]) -> None:
    """Multiplies tensors by the factors of the same names, in place."""
    names = [name for name in factors if name in tensors]
    if names:
        torch._foreach_mul_([tensors[name] for name in names], [factors[name] for name in names])
