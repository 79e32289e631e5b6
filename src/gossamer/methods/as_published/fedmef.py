"""Other readings of FedMef.

In the authors' library the pull on weights about to be pruned has no strength, goes by norms that
are not squared and acts in every round: `--extrusion 1 --extrusion-norm plain --extrude always`.
The paper leaves the initial mask open (`start`). Readings of the adjustment are those of FedTiny.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gossamer import sparsity
from gossamer.core import Batch, Ctx, Exchange, Job, Masks, Params, Result
from gossamer.fields import option
from gossamer.methods import fedmef
from gossamer.methods.as_published.delegation import variants_of
from gossamer.methods.as_published.fedtiny import AdjustmentReadings, WholeUpdate
from gossamer.methods.fedmef import Down, FedMef, Server, Work
from gossamer.methods.parts import mask_adjustment, sparse_model
from gossamer.methods.parts.mask_adjustment import Local, Update
from gossamer.sparsity import Counts

Up = Update | WholeUpdate


@variants_of(FedMef)
@dataclass(frozen=True)
class FedMefVariants:
    pure: FedMef = FedMef()
    mask_start: Literal["random", "magnitude"] = option(
        "random", "the initial mask: random, or the largest initial weights"
    )
    readings: AdjustmentReadings = AdjustmentReadings()
    extrusion_norm: Literal["squared", "plain"] = option(
        "squared", "the penalty: the squared norm, or the norm in each layer"
    )
    extrude: Literal["adjusting", "always"] = option(
        "adjusting", "rounds with extrusion: those that adjust the mask, or all until the last one"
    )

    def init(self, ctx: Ctx) -> Server:
        self.readings.check()
        if self.mask_start == "random":
            return self.pure.init(ctx)
        sparse_model.prunable(ctx)
        params = ctx.task.init(ctx.common.fold("init"))
        return mask_adjustment.start(params, self.first_mask(ctx))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        due = self.due(ctx, sparsity.count(state.masks))
        return self.readings.merged(ctx, state, exchanges, self.pure.weighting, due)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return [self.readings.reply(down, self.due(ctx, mask_adjustment.active(down)))]

    def due(self, ctx: Ctx, active: Mapping[str, int]) -> Counts:
        """How many weights of which layers a round adjusts; or empty."""
        return self.readings.due(self.pure.adjustment, ctx, active)

    def first_mask(self, ctx: Ctx) -> Masks:
        """The initial mask, which clients draw from the common seed."""
        masks = self.pure.first_mask(ctx)
        if self.mask_start == "random":
            return masks
        return sparsity.largest(ctx.task.init(ctx.common.fold("init")), sparsity.count(masks))

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        masks = mask_adjustment.current_masks(down, local, lambda number: self.first_mask(ctx))
        active, training = mask_adjustment.active(down), self.pure.training
        due = self.due(ctx, active)
        work = mask_adjustment.begin(ctx, down, masks, training.rate(ctx), due)
        counts = due
        if self.extrude == "always" and not due:
            counts = self.pure.adjustment.counts(ctx, active, masks)
        low = fedmef.smallest(work.model, counts if any(counts.values()) else {})
        epochs = (self.pure.adjust_epochs if due else 0) or training.epochs
        return Job(Work(work, low), epochs, training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        pull = self.pull(work.adjusting.model.params, work.low)
        return self.pure.extruded_step(ctx, work, batch, pull)

    def pull(self, params: Params, low: Params) -> dict[str, float]:
        """What marked weights are multiplied by, in the gradient of the penalty."""
        strength = self.pure.extrusion
        if self.extrusion_norm == "squared":
            return dict.fromkeys(low, 2 * strength)
        norms = {name: float((params[name] * marks).norm()) for name, marks in low.items()}
        return {name: strength / norm if norm else 0.0 for name, norm in norms.items()}

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = self.pure.finish(ctx, work)
        up = self.readings.up(done.up, work.adjusting)
        return Result(up, done.local, done.masks, metrics=done.metrics, searched=done.searched)


ENTRIES: dict[str, Any] = {
    "fedmef-variants": FedMefVariants(),
}
