"""FedMef: weights about to be pruned first pass on what they know, and activations are forgotten.

The server adjusts one mask for all, as in FedTiny, but in all layers at once, from a random mask.
In a round that does so, clients pull the smallest weights towards zero while they train, at a rate
that stays up as long as they are not small, so pruning costs little (budget-aware extrusion). With
`forget` and `standardise`, layers keep only their largest inputs for the gradient, and convolutions
have standardised weights in place of batch normalisation (scaled activation pruning).

Huang, Zhuang, Chen, Lyu: FedMef: towards memory-efficient federated dynamic pruning. CVPR 2024.
https://arxiv.org/abs/2403.14737

The sources leave open the strength of the pull (1e-4 and 0.01 are known), which layers forget
activations (here all but the first), and how convolutions are normalised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from gossamer import core, merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params, Result
from gossamer.fields import option
from gossamer.methods.parts import held_versions, mask_adjustment, masked_training, sparse_model
from gossamer.methods.parts.mask_adjustment import AdjustedModel, Adjustment, Local, Train, Update
from gossamer.methods.parts.sparse_model import BN_HELP, BatchNorm
from gossamer.optim import Training
from gossamer.sparsity import Allocation, Counts, activations

Server = AdjustedModel
Down = Train
Up = Update


@dataclass
class Work:
    adjusting: mask_adjustment.Work
    low: Params  # ones where weights are about to be pruned, zeros elsewhere


@dataclass(frozen=True)
class FedMef:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training(epochs=5, batch=64, lr=0.1)
    density: float = option(0.1, "fraction of prunable weights kept", above=0, most=1)
    allocation: Allocation = option("erk", "how layer densities are allocated")
    adjustment: Adjustment = Adjustment(adjust_until=300, adjust_ratio=0.4, blocks=1)
    extrusion: float = option(1e-4, "L2 penalty on weights about to be pruned", least=0)
    extrusion_rate: bool = option(True, "keep the learning rate up while these weights are large")
    adjust_epochs: float = option(0.0, "local epochs of adjusting rounds; 0: as others", least=0)
    forget: float = option(0.0, "fraction of activations not kept for gradients", least=0, below=1)
    standardise: bool = option(False, "standardise filters, for models without BatchNorm")
    gain: float = option(activations.GAIN, "norm of standardised filters", above=0)
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    bn: BatchNorm = option("running", BN_HELP)
    accounting: Accounting = Accounting(mask_code="auto")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        sparse_model.prunable(ctx)
        return mask_adjustment.start(ctx.task.init(ctx.common.fold("init")), self.first_mask(ctx))

    def first_mask(self, ctx: Ctx) -> Masks:
        """The initial mask, which clients draw from the common seed."""
        layout = ctx.task.layout
        shares = sparsity.allocate(layout, self.density, self.allocation)
        counts = sparsity.apportion(layout, shares)
        return sparsity.random_masks(ctx.common.fold("masks", 0), layout, counts)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return core.sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return mask_adjustment.send(ctx, state, client, self.bn)

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return self.down(ctx, replace(state, held=held_versions.NOBODY), client)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        due = self.adjustment.due(ctx, sparsity.count(state.masks))
        votes = mask_adjustment.Votes(state.masks, due)
        read, change = votes.read, votes.change
        return mask_adjustment.merged(ctx, state, exchanges, self.weighting, read, change)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        due = self.adjustment.due(ctx, mask_adjustment.active(down))
        return [mask_adjustment.reply(down, due)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        masks = mask_adjustment.current_masks(down, local, lambda number: self.first_mask(ctx))
        due = self.adjustment.due(ctx, mask_adjustment.active(down))
        work = mask_adjustment.begin(ctx, down, masks, self.training.rate(ctx), due)
        epochs = (self.adjust_epochs if due else 0) or self.training.epochs
        return Job(Work(work, smallest(work.model, due)), epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        # The gradient of extrusion times the squared norm of the smallest weights.
        return self.extruded_step(ctx, work, batch, dict.fromkeys(work.low, 2 * self.extrusion))

    def extruded_step(self, ctx: Ctx, work: Work, batch: Batch, pull: dict[str, float]) -> Work:
        """A step of SGD on the loss and an extra term, whose gradient is `pull` times weights."""
        model, task = work.adjusting.model, activations.pruned(ctx.task, self.forget)

        def loss(params: Params, batch: Batch) -> torch.Tensor:
            return task.loss(self.effective(ctx, params, model.masks), batch)

        special = loss if self.standardise else None
        value, grads = task.gradients(model.params, batch, model.masks, special)
        floor = self.rate_floor(model.params, work.low, batch) * self.training.lr
        rate = max(model.rate, floor)  # eq. 5
        for name, low in work.low.items():
            grads[name].add_(model.params[name] * low, alpha=pull[name])  # eq. 2
        self.training.update(model.params, grads, model.model.moments, rate)
        masked_training.record(model, value, batch)
        if work.adjusting.due and batch.step + 1 == batch.steps:
            used, here = self.effective(ctx, model.params, model.masks), replace(ctx, task=task)
            work.adjusting.keep(masked_training.dense_gradient(here, model, batch, used))
        return work

    def rate_floor(self, params: Params, low: Params, batch: Batch) -> float:
        """The fraction of the initial learning rate below which a step's rate does not fall."""
        if not self.extrusion_rate or not low:
            return 0.0
        norms = torch.stack([(params[name] * marks).norm() for name, marks in low.items()])
        left = 2 * float(torch.sigmoid(norms.norm())) - 1
        # Eqs. 3 and 4: (2T - 2t) / (2T - t) (2 sigmoid(norm) - 1), at local step t of T.
        return sparsity.decayed(1.0, "rex", batch.step, batch.steps) * left

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = mask_adjustment.finish(ctx, work.adjusting, self.bn)
        if not work.low:
            return done
        params = work.adjusting.model.params
        left = sum(float((params[n] * marks).square().sum()) for n, marks in work.low.items())
        return replace(done, metrics={**done.metrics, "marked_norm": left**0.5})

    # anyone ---------------------------------------------------------------------------------------

    def effective(self, ctx: Ctx, params: Params, masks: Masks) -> Params:
        """The parameters that the module computes with."""
        if not self.standardise:
            return params
        return activations.standardised(ctx.task.layout, params, masks, self.gain)

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return self.effective(ctx, state.params, state.masks)

    def measures(self, ctx: Ctx, state: Server) -> core.Measures:
        """The mask of the model."""
        return core.Measures(state.masks)


def smallest(model: masked_training.Work, counts: Counts) -> Params:
    """Ones at the smallest weights of some layers, as many as an adjustment would prune."""
    masks = {name: model.masks[name] for name in counts}
    kept = {name: active - counts[name] for name, active in sparsity.count(masks).items()}
    low = sparsity.difference(masks, sparsity.largest(model.params, kept, masks, least=0))
    return masked_training.as_factors(low, model.params)


def sparing() -> FedMef:
    """With everything that saves memory; for models without batch normalisation."""
    return FedMef(forget=0.5, standardise=True)
