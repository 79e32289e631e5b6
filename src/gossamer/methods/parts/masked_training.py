"""Local training of a sparse model: masked weights are zero, have no gradient, and stay zero.

Where it pays, the kernels of `gossamer.arithmetic` compute at the active weights only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer import optim, sparsity
from gossamer.arithmetic.model import Model
from gossamer.core import Batch, Ctx, Masks, Params
from gossamer.optim import Training
from gossamer.sparsity import Change


@dataclass
class Work:
    """A sparse model in training; `step` updates it in place."""

    model: Model
    start: Masks
    """The masks at the beginning of the round."""
    rate: float
    anchor: Params = field(default_factory=dict)
    """The model that a proximal term pulls towards."""
    loss: Tensor | float = 0.0
    examples: int = 0
    searched: int = 0
    """Examples of batches of which the gradient of all weights was computed."""
    _masks: Masks = field(default_factory=dict)
    _frozen: Masks = field(default_factory=dict)
    _factors: tuple[Masks, Params] | None = None

    @property
    def params(self) -> Params:
        """All tensors of the model, zero outside of the masks; they may be changed in place."""
        return self.model.params

    @property
    def velocity(self) -> optim.Velocity:
        """The momentum of every parameter; empty before the first step."""
        return self.model.velocity

    @property
    def masks(self) -> Masks:
        """The weights that are trained."""
        return self._masks

    @masks.setter
    def masks(self, masks: Masks) -> None:
        self._masks = masks
        self.model.masks = sparsity.union(masks, self._frozen) if self._frozen else masks

    @property
    def frozen(self) -> Masks:
        """Weights that are active beside the masks and never change."""
        return self._frozen

    @frozen.setter
    def frozen(self, frozen: Masks) -> None:
        self._frozen = self.model.fixed = frozen
        self.masks = self._masks

    @property
    def factors(self) -> Params:
        """The masks as numbers, to multiply by."""
        if self._factors is None or self._factors[0] is not self._masks:
            self._factors = (self._masks, as_factors(self._masks, self.params))
        return self._factors[1]


def begin(ctx: Ctx, params: Params, masks: Masks, rate: float) -> Work:
    """Starts from parameters that are zero outside of their masks."""
    return Work(Model(ctx.task, ctx.task.own(params), masks), masks, rate, _masks=masks)


def step(
    ctx: Ctx,
    training: Training,
    work: Work,
    batch: Batch,
    prox: float = 0.0,
    momentum_everywhere: bool = False,
) -> None:
    """One step of the optimiser on the active weights.

    Args:
        prox: strength of the pull towards `work.anchor`, as in FedProx.
        momentum_everywhere: masked weights keep a momentum, though not a value.
    """
    if not momentum_everywhere:
        loss = work.model.step(batch, training, work.rate, prox, work.anchor)
        return record(work, loss, batch)
    loss, grads = ctx.task.gradients(work.params, batch, work.masks, everywhere=True)
    if prox:
        optim.pull(grads, work.params, work.anchor, prox)
    training.update(work.params, grads, work.model.moments, work.rate)
    multiply(work.params, work.factors)
    return record(work, loss, batch)


def record(work: Work, loss: Tensor | float, batch: Batch) -> None:
    """Adds a batch to the mean training loss."""
    count = batch.y.shape[0]  # len() of a tensor takes longer than the sum
    work.loss = work.loss + loss * count
    work.examples += count


def change_masks(ctx: Ctx, work: Work, change: Change, reset_momentum: bool = True) -> None:
    """Continues with other masks; regrown weights start from zero, by default without momentum."""
    work.masks = change.masks
    alive = sparsity.union(change.kept, work.frozen) if work.frozen else change.kept
    survivors = as_factors(alive, work.params)
    multiply(work.params, survivors)
    if reset_momentum:
        multiply(momentum(ctx, work), survivors)
    second = dict(zip(ctx.task.layout.parameters, work.model.moments.second, strict=False))
    multiply(second, survivors)


def dense_gradient(ctx: Ctx, work: Work, batch: Batch, params: Params | None = None) -> Params:
    """The gradient of all weights, masked ones too; running statistics are left alone.

    Args:
        params: what the module computes with, if that is not the model itself.
    """
    params = params or work.params
    statistics = {name: params[name].clone() for name in ctx.task.layout.buffers}
    masks = work.model.masks
    work.searched += batch.y.shape[0]
    return ctx.task.gradients({**params, **statistics}, batch, masks, everywhere=True).grads


def momentum(ctx: Ctx, work: Work) -> Params:
    """The momentum of every masked tensor that has one."""
    buffers = dict(zip(ctx.task.layout.parameters, work.velocity, strict=False))
    return {name: each for name in work.masks if (each := buffers.get(name)) is not None}


def mean_loss(work: Work) -> float:
    """The mean training loss of the round."""
    return float(work.loss) / max(work.examples, 1)


def metrics(work: Work, moved: bool = False) -> dict[str, float]:
    """The training loss and, where masks moved, how far, and the density of each layer."""
    figures = {"loss": mean_loss(work)}
    if moved:
        figures["moved"] = sparsity.mismatch(work.start, work.masks)
        densities = sparsity.layer_densities(work.masks)
        figures |= {f"sensitivity.{name}": float(share) for name, share in densities.items()}
    return figures


def trained(masks: Masks, dense: float) -> dict[str, float]:
    """Shares of weights that got a gradient, if all of them did in a share `dense` of the steps."""
    shares = sparsity.layer_densities(masks)
    return {name: float(share) * (1 - dense) + dense for name, share in shares.items()}


def as_factors(masks: Masks, params: Params) -> Params:
    """Masks as numbers of the type and layout of their tensors."""
    return sparsity.numbers(masks, {name: params[name] for name in masks})


def multiply(tensors: Params, factors: Mapping[str, Tensor]) -> None:
    """Multiplies tensors by the factors of the same names, in place."""
    names = [name for name in factors if name in tensors]
    if names:
        torch._foreach_mul_([tensors[name] for name in names], [factors[name] for name in names])
