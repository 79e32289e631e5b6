"""The client of methods with masks: weights that stay zero, masks that may move, no zero sent.

Masked weights are zero before a step and have no gradient, so they are zero after it; nothing is
masked a second time. What a step costs beyond a dense one is a product per weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Literal

import torch
from torch import Tensor

from gossamer import optim, sparsity
from gossamer.core import Batch, Client, Ctx, Masks, Params
from gossamer.fields import option
from gossamer.optim import Training
from gossamer.sparsity import Carry, Change, Decay
from gossamer.wire import Packed, WireError, pack, unpack

BatchNorm = Literal["running", "static"]


@dataclass(frozen=True)
class Learning:
    """How a client's masks move: the smallest weights go, layers of large weights grow.

    Section 2.3 of FLASH (Babakniya et al., TMLR 2023) after Dettmers and Zettlemoyer, 2019.
    """

    prune_rate: float = option(0.25, "part of a layer that a mask update prunes", least=0, most=1)
    prune_decay: Decay = option("linear", "how the rate falls within a round")
    prune_end: float = option(0.0, "what the rate falls to", least=0, most=1)
    update_at: Literal["middle", "end"] = option(
        "middle", "masks of a one-epoch round change half-way, or at its end, regrown zeros and all"
    )
    exact: bool = option(True, "keep the count exactly; else round up, as the released code does")
    redistribution: sparsity.Redistribution = option(
        "magnitude", "what gives a layer its share of regrowth"
    )
    growth: sparsity.Growth = option("random", "which weights are regrown")
    momentum_of_inactive: bool = option(False, "masked weights have momentum, as in Dettmers' code")
    growth_needs_dense_grad: bool = option(
        False, "count mask rounds with gradients of all weights, as the paper does"
    )

    def check(self, training: Training) -> None:
        """Refuses growth by a momentum that there is none of, and updates that change nothing."""
        if self.prune_end > self.prune_rate:
            raise ValueError(
                f"the rate falls from --prune-rate {self.prune_rate:g} to --prune-end "
                f"{self.prune_end:g}, which is more; let the end be lower"
            )
        fades = self.prune_decay != "constant" and not self.prune_end
        if self.update_at == "end" and fades and training.epochs <= 1:
            raise ValueError(
                f"--update-at end moves masks when the rate has fallen to zero by --prune-decay "
                f"{self.prune_decay}; use --prune-decay constant, --prune-end, or more epochs"
            )
        if "momentum" not in (self.redistribution, self.growth):
            return
        if not training.momentum or not self.momentum_of_inactive:
            raise ValueError(
                "growth or redistribution by momentum needs --momentum above 0 and "
                "--momentum-of-inactive, so that there is momentum where weights are masked"
            )

    def check_groups(self) -> None:
        """Refuses growth by which groups would not keep their counts."""
        if not self.exact or self.growth == "bernoulli":
            raise ValueError(
                "every group of an N:M mask keeps its count, so that --group takes neither "
                "--no-exact nor --growth bernoulli; use --exact and --growth random"
            )

    @property
    def dense_gradients(self) -> bool:
        """Whether a mask update looks at gradients of masked weights, or is counted as if."""
        looks = self.momentum_of_inactive or self.growth in ("gradient", "momentum")
        return looks or self.growth_needs_dense_grad

    def due(self, batch: Batch) -> bool:
        """Whether masks move after this batch."""
        if self.update_at == "end":
            return batch.ends_epoch or batch.step + 1 == batch.steps
        return sparsity.updates_masks(batch)


@dataclass
class Work:
    """A sparse model in training; `step` updates it in place."""

    params: Params
    masks: Masks
    kept: Params
    """The masks as numbers, to multiply gradients with."""
    start: Masks
    rate: float
    moves: bool
    """Whether the masks move in this round."""
    probe: bool = False
    """Whether only they are asked for."""
    frozen: Masks = field(default_factory=dict)
    """What is active beside the masks, and never changes."""
    anchor: Params = field(default_factory=dict)
    """Where a proximal term pulls to."""
    base: Masks | None = None
    """Masks that the server holds too, if they are not where this began."""
    intended: int | None = None
    """Weights that masks are to keep where counts are not exact, if not as many as at the start."""
    velocity: optim.Velocity = field(default_factory=list)
    carry: Carry = Carry()
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    examples: int = 0


def begin(ctx: Ctx, params: Params, masks: Masks, rate: float, moves: bool) -> Work:
    """Starts from parameters that are zero outside of their masks."""
    own = ctx.task.own(params)
    return Work(own, masks, _numbers(masks, own), masks, rate, moves)


def step(
    ctx: Ctx, training: Training, learning: Learning, work: Work, batch: Batch, group: int = 0
) -> Work:
    """One step of SGD on the weights that masks keep, and an update of masks where it is due."""
    descend(ctx, training, work, batch, everywhere=work.moves and learning.momentum_of_inactive)
    if work.moves and learning.due(batch):
        _move(ctx, learning, work, batch, group)
    return work


def descend(
    ctx: Ctx,
    training: Training,
    work: Work,
    batch: Batch,
    prox: float = 0.0,
    everywhere: bool = False,
) -> None:
    """One step of SGD under masks; `everywhere` gives masked weights momentum, but no value."""
    late = everywhere or bool(work.frozen)
    loss, grads = ctx.task.gradients(work.params, batch, None if late else work.kept)
    if prox:
        optim.pull(grads, work.params, work.anchor, prox)
    if work.frozen:
        # Frozen weights are not zero, so the decay of weights must not see them.
        if training.weight_decay:
            weights = [work.params[name] for name in grads]
            torch._foreach_add_(list(grads.values()), weights, alpha=training.weight_decay)
            training = replace(training, weight_decay=0.0)
        _apply(grads, work.kept)
    training.update(work.params, grads, work.velocity, work.rate)
    if everywhere:
        _apply(work.params, work.kept)
    work.loss = work.loss + loss * len(batch.y)
    work.examples += len(batch.y)


def changed(ctx: Ctx, work: Work, change: Change, forget: bool = True) -> None:
    """Goes on with other masks: what is new starts from zero, and without momentum to `forget`."""
    work.masks = change.masks
    work.kept = _numbers(change.masks, work.params)
    lives = sparsity.union(change.kept, work.frozen) if work.frozen else change.kept
    survivors = _numbers(lives, work.params)
    _apply(work.params, survivors)
    if forget:
        _apply(_momentum(ctx, work), survivors)


def gradient(ctx: Ctx, work: Work, batch: Batch) -> Params:
    """The gradient of all weights; looking at it leaves running statistics as they are."""
    statistics = {name: work.params[name].clone() for name in ctx.task.layout.buffers}
    return ctx.task.gradients({**work.params, **statistics}, batch).grads


def metrics(work: Work) -> dict[str, float]:
    """The loss and, where masks moved, how far, and how dense each layer is now."""
    found = {"loss": work.loss.item() / max(work.examples, 1)}
    if work.moves:
        found["moved"] = sparsity.mismatch(work.start, work.masks)
        dense = sparsity.layer_densities(work.masks)
        found |= {f"sensitivity.{name}": float(share) for name, share in dense.items()}
    return found


def sensitivity(ctx: Ctx, work: Work) -> Tensor:
    """The density of each prunable layer, in the layout's order."""
    dense = sparsity.layer_densities(work.masks)
    return torch.tensor([float(dense[name]) for name in ctx.task.layout.prunable])


def trained(learning: Learning, work: Work) -> Masks:
    """Whose gradients were needed, if those of more than the active weights."""
    if not (work.moves and learning.dense_gradients):
        return {}
    return {name: torch.ones_like(mask) for name, mask in work.masks.items()}


# what travels -------------------------------------------------------------------------------------


def values(params: Params, masks: Masks) -> Packed:
    """The masked weights, without zeros."""
    return pack({name: params[name] for name in masks}, masks)


def dense(ctx: Ctx, params: Params) -> Params:
    """What is trained but never masked."""
    return {name: params[name] for name in ctx.task.layout.dense}


def buffers(ctx: Ctx, params: Params, bn: BatchNorm) -> Params:
    """Running statistics, unless nobody keeps them."""
    return {name: params[name] for name in ctx.task.layout.buffers} if bn == "running" else {}


def joined(ctx: Ctx, packed: Packed, masks: Masks, *others: Params) -> Params:
    """The whole model from its parts; statistics that did not travel are those of a fresh one."""
    whole = {**ctx.task.buffers(), **unpack(packed, masks)}
    for part in others:
        whole |= part
    return {name: whole[name] for name in ctx.task.layout.names}


def affordable(masks: Masks, allowed: int, learning: Learning | None = None) -> Masks:
    """A client's masks, if they keep no more weights than it was allowed.

    Where counts are met in the mean only, what chance may add over many rounds is let through: a
    quarter, and where there are few weights, eight times their deviation.
    """
    kept, slack = total(masks), 0
    if learning and (not learning.exact or learning.growth == "bernoulli"):
        slack = allowed // 4 + 8 * isqrt(allowed) + len(masks)
    if kept > allowed + slack:
        raise WireError(f"masks came back with {kept} weights, but {allowed} were allowed")
    return masks


def total(masks: Masks) -> int:
    """How many weights masks keep in all."""
    return sum(sparsity.count(masks).values())


# who holds what -----------------------------------------------------------------------------------


def holds(held: Tensor, client: Client, version: int) -> bool:
    """Whether a client has this version; `held` has its last one by client id, or -1."""
    return client.id < len(held) and int(held[client.id]) == version


def marked(held: Tensor, clients: list[int], version: int | list[int]) -> Tensor:
    """Who holds which version, after some clients received this one (or lost theirs: -1).

    With several budgets there are several versions, and a client has one of them.
    """
    found = torch.full((max([len(held), *(id + 1 for id in clients)]),), -1, dtype=torch.int32)
    found[: len(held)] = held
    found[clients] = torch.tensor(version, dtype=torch.int32)
    return found


# parts --------------------------------------------------------------------------------------------


def _move(ctx: Ctx, learning: Learning, work: Work, batch: Batch, group: int) -> None:
    change = _change(ctx, learning, work, batch, group)
    intended = total(work.start) if work.intended is None else work.intended
    work.carry = work.carry.after(intended - total(change.masks))
    changed(ctx, work, change, forget=not learning.momentum_of_inactive)


def _change(ctx: Ctx, learning: Learning, work: Work, batch: Batch, group: int) -> Change:
    passed, end = (batch.step + 1, batch.steps), learning.prune_end
    rate = sparsity.decayed(learning.prune_rate, learning.prune_decay, *passed, end)
    key = batch.key.fold("masks")
    weights = {name: work.params[name] for name in work.masks}
    momentum = _momentum(ctx, work)
    slopes = gradient(ctx, work, batch) if learning.growth == "gradient" else None
    if group:
        kept = sparsity.count(work.masks)
        pruned = sparsity.removals(weights, work.masks, rate, learning.redistribution, momentum)
        # In a full group only what was pruned could grow again.
        removed = {name: min(n, weights[name].numel() - kept[name]) for name, n in pruned.items()}
        by = slopes or (momentum if learning.growth == "momentum" else key)
        return sparsity.regrow_in_groups(by, weights, work.masks, removed, group)
    how = sparsity.Regrowth(learning.redistribution, learning.growth, learning.exact, work.carry)
    return sparsity.evolve(
        key,
        weights,
        work.masks,
        rate,
        how,
        momentum=momentum,
        gradient=slopes,
        among=sparsity.inactive(work.frozen) if work.frozen else None,
    )


def _momentum(ctx: Ctx, work: Work) -> Params:
    found = dict(zip(ctx.task.layout.parameters, work.velocity, strict=False))
    return {name: each for name in work.masks if (each := found.get(name)) is not None}


def _numbers(masks: Masks, params: Params) -> Params:
    return sparsity.numbers(masks, {name: params[name] for name in masks})


def _apply(tensors: Params, factors: Mapping[str, Tensor]) -> None:
    names = [name for name in factors if name in tensors]
    if names:
        torch._foreach_mul_([tensors[name] for name in names], [factors[name] for name in names])
