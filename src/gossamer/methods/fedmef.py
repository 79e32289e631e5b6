"""FedMef: weights about to be pruned first hand over what they know, and activations are forgotten.

Huang, Zhuang, Chen, Lyu: FedMef: towards memory-efficient federated dynamic pruning. CVPR 2024.
https://arxiv.org/abs/2403.14737

The server adjusts one mask for all as in FedTiny, all layers at once, and begins with a random one.
In a round that does so, clients know which weights are the smallest and pull these towards zero
while they train, at a rate that does not fall as long as there is something left in them: pruning
then costs little (budget-aware extrusion). As an option, layers remember only their largest inputs
for the gradient, and convolutions have standardised weights in place of batch normalisation
(scaled activation pruning).

What the sources leave open is an option: the strength of the pull (`extrusion`), of which 1e-4 and
0.01 are known; how the paper normalises convolutions, for which the weight standardisation of
networks without normalisation stands in; which layers forget activations, here all but the first.

Differs from the authors' library: its pull has no strength, goes by norms that are not squared and
acts in every round: `--extrusion 1 --extrusion-norm plain --extrude always`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import (
    Batch,
    Client,
    Ctx,
    Exchange,
    Job,
    Masks,
    Measures,
    Params,
    Result,
    sample,
)
from gossamer.fields import option
from gossamer.methods import sparse
from gossamer.methods.fedtiny import TRAINING
from gossamer.methods.parts import mask_adjustment
from gossamer.methods.parts.mask_adjustment import AdjustedModel as Server
from gossamer.methods.parts.mask_adjustment import Adjustment, Local, Train, Update, Work
from gossamer.methods.sparse import BatchNorm
from gossamer.optim import Training
from gossamer.sparsity import Allocation, Counts, activations
from gossamer.sparsity.activations import GAIN
from gossamer.task import Loss, Task

Down: TypeAlias = Train
Up: TypeAlias = Update


@dataclass(frozen=True)
class Extrusion:
    """How weights that are about to be pruned are emptied."""

    extrusion: float = option(1e-4, "pull of weights that are about to be pruned", least=0)
    extrusion_norm: Literal["squared", "plain"] = option(
        "squared", "the pull is that of their squared norm, or of the norm in each layer"
    )
    extrusion_rate: bool = option(
        True, "the learning rate stays up as long as these weights are not small"
    )
    extrude: Literal["adjusting", "always"] = option(
        "adjusting", "in rounds that adjust the mask, or in all until adjustments end"
    )
    adjust_epochs: float = option(
        0.0, "local epochs of rounds that adjust the mask; 0: as in others", least=0
    )

    def pull(self, grads: Params, params: Params, low: Params) -> None:
        """Adds the gradient of the extra term, in place."""
        for name, marks in low.items():
            weights = params[name] * marks
            if self.extrusion_norm == "squared":
                grads[name].add_(weights, alpha=2 * self.extrusion)
            elif norm := float(weights.norm()):
                grads[name].add_(weights, alpha=self.extrusion / norm)

    def floor(self, params: Params, low: Params, step: int, steps: int) -> float:
        """The part of the first learning rate below which a step's rate does not fall."""
        if not self.extrusion_rate or not low:
            return 0.0
        norms = torch.stack([(params[name] * marks).norm() for name, marks in low.items()])
        left = 2 * float(torch.sigmoid(norms.norm())) - 1
        return sparsity.decayed(1.0, "rex", step, steps) * left


@dataclass(frozen=True)
class Memory:
    """What a client does without, to save memory."""

    forget: float = option(
        0.0, "part of activations that is not kept for gradients; the paper: 0.5", least=0, below=1
    )
    standardise: bool = option(
        False, "filters with mean zero and one variance, for models without batch normalisation"
    )
    gain: float = option(GAIN, "what their outputs are multiplied with", above=0)

    def task(self, task: Task) -> Task:
        """The task that a client trains."""
        return activations.pruned(task, self.forget)

    def effective(self, ctx: Ctx, params: Params, masks: Masks) -> Params:
        """The parameters that the module computes with."""
        if not self.standardise:
            return params
        return activations.standardised(ctx.task.layout, params, masks, self.gain)


@dataclass(frozen=True)
class FedMef:
    clients: int = option(10, "clients per round", least=1)
    training: Training = TRAINING
    density: float = option(0.1, "part of the prunable weights that is kept", above=0, most=1)
    allocation: Allocation = option("erk", "how densities of layers are found")
    fc_density: float = option(
        1.0, "density of the last fully connected layer under erk-plus", least=0, most=1
    )
    start: Literal["random", "magnitude"] = option(
        "random", "the first mask is any, or has the largest first weights"
    )
    adjustment: Adjustment = Adjustment(adjust_until=300, adjust_ratio=0.4, blocks=1)
    extruding: Extrusion = Extrusion()
    memory: Memory = Memory()
    weighting: merge.Weighting = option("samples", "what a client counts for in the mean")
    bn: BatchNorm = option("running", "statistics are averaged, or found anew before a test")
    accounting: Accounting = Accounting(mask_code="auto")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        self.adjustment.check()
        mask_adjustment.prunable(ctx)
        params = ctx.task.init(ctx.common.fold("init"))
        return mask_adjustment.begun(params, self._first(ctx), 0)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return mask_adjustment.message(ctx, state, client, self.bn)

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return mask_adjustment.message(ctx, state, client, self.bn, lost=True)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        return mask_adjustment.merged(
            ctx, state, exchanges, self.adjustment, self.weighting, self.bn
        )

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What the answer to a message looks like."""
        return [mask_adjustment.reply(ctx, down, self.adjustment)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        rate = self.training.rate(ctx)
        work = mask_adjustment.begin(
            ctx, down, local, rate, self.adjustment, lambda number: self._first(ctx)
        )
        work.low = self._low(ctx, work)
        epochs = self.training.epochs
        if work.asked and self.extruding.adjust_epochs:
            epochs = self.extruding.adjust_epochs
        return Job(work, epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        model, task = work.model, self.memory.task(ctx.task)
        loss, grads = task.gradients(model.params, batch, model.kept, self._loss(ctx, task, work))
        least = self.extruding.floor(model.params, work.low, batch.step, batch.steps)
        self.extruding.pull(grads, model.params, work.low)
        rate = max(model.rate, least * self.training.lr)
        self.training.update(model.params, grads, model.velocity, rate)
        model.loss = model.loss + loss * len(batch.y)
        model.examples += len(batch.y)
        if work.asked and batch.step + 1 == batch.steps:
            used = self.memory.effective(ctx, model.params, model.masks)
            grads = sparse.gradient(replace(ctx, task=task), replace(model, params=used), batch)
            work.gradients = self.adjustment.told(grads, model.masks, work.asked)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = mask_adjustment.finish(ctx, work, self.adjustment, self.bn)
        if not work.low:
            return done
        params = work.model.params
        left = sum(float((params[n] * marks).square().sum()) for n, marks in work.low.items())
        return replace(done, metrics={**done.metrics, "marked_norm": left**0.5})

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return self.memory.effective(ctx, state.params, state.masks)

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The mask of the model."""
        return Measures(state.masks)

    # parts ----------------------------------------------------------------------------------------

    def _first(self, ctx: Ctx) -> Masks:
        """The mask that all begin with, known to all from the seed."""
        layout = ctx.task.layout
        shares = sparsity.allocate(layout, self.density, self.allocation, self.fc_density)
        counts = sparsity.apportion(layout, shares)
        if self.start == "random":
            return sparsity.random_masks(ctx.common.fold("masks", 0), layout, counts)
        return sparsity.largest(ctx.task.init(ctx.common.fold("init")), counts)

    def _low(self, ctx: Ctx, work: Work) -> Params:
        """Marks the smallest weights, as many as an adjustment prunes."""
        model, counts = work.model, self._counts(ctx, work)
        masks = {name: model.masks[name] for name in counts}
        kept = {name: active - counts[name] for name, active in sparsity.count(masks).items()}
        low = sparsity.difference(masks, sparsity.largest(model.params, kept, masks, least=0))
        return sparsity.numbers(low, {name: model.params[name] for name in low})

    def _counts(self, ctx: Ctx, work: Work) -> Counts:
        if self.extruding.extrude == "adjusting" or work.asked:
            return work.asked
        masks = work.model.masks
        found = self.adjustment.counts(ctx, sparsity.count(masks), masks)
        return found if any(found.values()) else {}

    def _loss(self, ctx: Ctx, task: Task, work: Work) -> Loss | None:
        if not self.memory.standardise:
            return None
        masks = work.model.masks
        return lambda params, batch: task.loss(self.memory.effective(ctx, params, masks), batch)


def sparing() -> FedMef:
    """With everything that saves memory; for models without batch normalisation."""
    return FedMef(memory=Memory(forget=0.5, standardise=True))
