"""Sparse learning on a client with every reading of it: FLASH's text and code, and Dettmers' code.

With its defaults it is `parts.mask_learning`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Literal

import torch

from gossamer import sparsity
from gossamer.core import Batch, Ctx, Masks
from gossamer.fields import option
from gossamer.methods.parts import mask_learning, masked_training, sparse_model
from gossamer.optim import Training
from gossamer.sparsity import Carry, Change, Decay, Growth, Redistribution, Regrowth


@dataclass(frozen=True)
class Learning:
    """How a client's masks move, beyond the prune rate, which is the method's own option."""

    prune_decay: Decay = option("linear", "how the prune rate decays within a round")
    prune_end: float = option(0.0, "the prune rate at the end of a round", least=0, most=1)
    update_at: Literal["middle", "end"] = option(
        "middle", "masks of a one-epoch round change half-way, or at its end with regrown zeros"
    )
    exact: bool = option(True, "keep the number of weights exactly; else round up, as in the code")
    redistribution: Redistribution = option(
        "magnitude", "which statistic shares regrown weights among layers"
    )
    growth: Growth = option("random", "which weights are regrown")
    momentum_of_inactive: bool = option(False, "masked weights have momentum, as in Dettmers' code")
    growth_needs_dense_grad: bool = option(
        False, "count dense weight gradients in rounds in which masks move, as the paper does"
    )

    def check(self, training: Training, prune_rate: float) -> None:
        """Refuses growth by a momentum that does not exist, and updates that change nothing."""
        if self.prune_end > prune_rate:
            raise ValueError(
                f"the rate falls from `prune_rate={prune_rate:g}` to "
                f"`prune_end={self.prune_end:g}`, which is more; let the end be lower"
            )
        fades = self.prune_decay != "constant" and not self.prune_end
        if self.update_at == "end" and fades and training.epochs <= 1:
            raise ValueError(
                f"`update_at='end'` moves masks when the rate has fallen to zero by "
                f"`prune_decay={self.prune_decay!r}`; use "
                f"`prune_decay='constant'`, `prune_end=`, or more epochs"
            )
        if "momentum" not in (self.redistribution, self.growth):
            return
        if not training.momentum or not self.momentum_of_inactive:
            raise ValueError(
                "growth or redistribution by momentum needs `momentum=` above 0 and "
                "`momentum_of_inactive=True`, so that there is momentum where weights are masked"
            )

    def check_groups(self) -> None:
        """Refuses growth under which the groups of an N:M mask would not keep their counts."""
        if self.loose:
            raise ValueError(
                "every group of an N:M mask keeps its count, so that `group=` takes neither "
                "`exact=False` nor `growth='bernoulli'`; use `exact=True` and `growth='random'`"
            )

    @property
    def loose(self) -> bool:
        """Whether the number of weights is kept on average only."""
        return not self.exact or self.growth == "bernoulli"

    @property
    def dense_gradients(self) -> bool:
        """Whether a mask update needs gradients of masked weights, or is counted as if it did."""
        needed = self.momentum_of_inactive or self.growth in ("gradient", "momentum")
        return needed or self.growth_needs_dense_grad

    def due(self, batch: Batch) -> bool:
        """Whether masks move after this batch."""
        if self.update_at == "end":
            return batch.ends_epoch or batch.step + 1 == batch.steps
        return sparsity.updates_masks(batch)

    def affordable(self, masks: Masks, allowed: int) -> Masks:
        """The masks that a client sent back, if they keep no more weights than it was allowed.

        Where counts are loose, what chance may add over many rounds is let through: a quarter, and
        where there are few weights, eight times their standard deviation.
        """
        slack = allowed // 4 + 8 * isqrt(allowed) + len(masks) if self.loose else 0
        return sparse_model.affordable(masks, allowed, slack)


@dataclass
class Work:
    """A sparse model in training; `step` updates it in place."""

    model: masked_training.Work
    moves: bool
    """Whether the masks move in this round."""
    probe: bool = False
    """Whether only the masks are asked for."""
    base: Masks | None = None
    """Masks that the server holds too, if they are not those at the start of the round."""
    intended: int | None = None
    """The number of weights to aim at where counts are loose; by default that at the start."""
    carry: Carry = Carry()


def step(
    ctx: Ctx,
    training: Training,
    learning: Learning,
    work: Work,
    batch: Batch,
    prune_rate: float,
    group: int = 0,
) -> None:
    """One step of SGD on the active weights and, where it is due, an update of the masks."""
    everywhere = work.moves and learning.momentum_of_inactive
    masked_training.step(ctx, training, work.model, batch, momentum_everywhere=everywhere)
    if not (work.moves and learning.due(batch)):
        return
    change = _change(ctx, learning, work, batch, prune_rate, group)
    intended = sparse_model.total(work.model.start) if work.intended is None else work.intended
    work.carry = work.carry.after(intended - sparse_model.total(change.masks))
    keep = learning.momentum_of_inactive
    masked_training.change_masks(ctx, work.model, change, reset_momentum=not keep)


def trained(learning: Learning, work: Work) -> Masks:
    """The weights whose gradients were needed, if more than the active ones."""
    if not (work.moves and learning.dense_gradients):
        return {}
    return {name: torch.ones_like(mask) for name, mask in work.model.masks.items()}


def _change(
    ctx: Ctx, learning: Learning, work: Work, batch: Batch, prune_rate: float, group: int
) -> Change:
    model, key = work.model, batch.key.fold("masks")
    done = (batch.step + 1, batch.steps)
    rate = sparsity.decayed(prune_rate, learning.prune_decay, *done, learning.prune_end)
    weights, momentum = mask_learning.masked_weights(model), masked_training.momentum(ctx, model)
    slopes = None
    if learning.growth == "gradient":
        slopes = masked_training.dense_gradient(ctx, model, batch)
    if group:
        by = slopes or (momentum if learning.growth == "momentum" else key)
        shared = (learning.redistribution, momentum)
        removed = sparsity.removals(weights, model.masks, rate, *shared)
        return mask_learning.evolve_in_groups(by, weights, model.masks, removed, group)
    how = Regrowth(learning.redistribution, learning.growth, learning.exact, work.carry)
    return sparsity.evolve(
        key,
        weights,
        model.masks,
        rate,
        how,
        momentum=momentum,
        gradient=slopes,
        among=sparsity.inactive(model.frozen) if model.frozen else None,
    )
