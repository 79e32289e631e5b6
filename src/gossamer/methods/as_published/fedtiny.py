"""Other readings of FedTiny, and the simplest form of its authors' library (`fedtiny-clean`).

In the library, candidates differ in their initial weights (`differ weights`), clients send the
gradients of all weights (`upload all`), and pruning comes first, so that a weight that was just
pruned may be grown again (`prune_first`). The paper leaves open how clients are weighted in the
selection (`loss_weighting`), and whether the first round adjusts the mask (`adjust_at_once`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from gossamer import merge, sparsity
from gossamer.core import Ctx, Exchange, Job, Masks, Params, Result
from gossamer.fields import option
from gossamer.methods import fedtiny
from gossamer.methods.as_published.delegation import variants_of
from gossamer.methods.fedtiny import Down, FedTiny, Losses, Server, Statistics, Trial, Work
from gossamer.methods.parts import mask_adjustment
from gossamer.methods.parts.mask_adjustment import AdjustedModel, Adjustment, Local, Train, Update
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.sparsity import Change, Counts
from gossamer.wire import WireError


@dataclass(frozen=True)
class WholeUpdate:
    model: SparseModel
    gradients: Params | None  # of all weights in layers that are adjusted


Up = Statistics | Losses | Update | WholeUpdate


@dataclass(frozen=True)
class AdjustmentReadings:
    """Other readings of how FedTiny and FedMef adjust the mask."""

    adjust_at_once: bool = option(False, "the first round of training adjusts the mask too")
    upload: Literal["largest", "all"] = option(
        "largest", "gradients that clients send: the largest of pruned weights, or all"
    )
    prune_first: bool = option(False, "a weight that was just pruned may be grown again, from zero")

    def check(self) -> None:
        if self.prune_first and self.upload != "all":
            raise ValueError(
                "`prune_first=True` compares the gradients of weights just pruned, which clients "
                "do not send; add `upload='all'`"
            )

    def due(self, adjustment: Adjustment, ctx: Ctx, active: Mapping[str, int]) -> Counts:
        """How many weights of which layers a round adjusts; or empty."""
        if not self.adjust_at_once:
            return adjustment.due(ctx, active)
        turn, rest = divmod(ctx.round - 1, adjustment.adjust_every)
        names = () if rest else adjustment.block(ctx.task.layout, turn)
        counts = adjustment.counts(ctx, active, names)
        return counts if any(counts.values()) else {}

    def reply(self, down: Train, due: Counts) -> Update | WholeUpdate:
        """An example reply, from which the reply schema is derived."""
        example = mask_adjustment.reply(down, due)
        if self.upload == "largest":
            return example
        places = example.gradients.places if example.gradients else {}
        zeros = {name: place.float() for name, place in places.items()}
        return WholeUpdate(down.model, zeros or None)

    def up(self, update: Update, work: mask_adjustment.Work) -> Update | WholeUpdate:
        """What a client sends."""
        whole = WholeUpdate(update.model, work.gradients or None)
        return update if self.upload == "largest" else whole

    def merged(
        self,
        ctx: Ctx,
        state: AdjustedModel,
        exchanges: Iterable[Exchange[mask_adjustment.D, mask_adjustment.U]],
        weighting: merge.Weighting,
        due: Counts,
    ) -> AdjustedModel:
        """The mean of the clients' models, with its mask adjusted."""
        votes: mask_adjustment.Votes | WholeVotes = mask_adjustment.Votes(state.masks, due)
        if self.upload == "all":
            votes = WholeVotes(due, self.prune_first)
        how = (weighting, votes.read, votes.change)
        return mask_adjustment.merged(ctx, state, exchanges, *how)


@dataclass
class WholeVotes:
    """The weighted sum of the clients' gradients of all weights."""

    due: Counts
    prune_first: bool
    sums: Params = field(default_factory=dict)

    def read(self, up: object, weight: float) -> SparseModel:
        """Adds the gradients of a reply, and returns its model."""
        if not isinstance(up, WholeUpdate):
            raise WireError("weights were asked for, and something else came back")
        if (up.gradients is None) != (not self.due):
            raise WireError("gradients came back unasked, or were asked for and did not")
        mask_adjustment.add_weighted(self.sums, up.gradients or {}, weight)
        return up.model

    def change(self, state: AdjustedModel) -> Change:
        """Prunes the smallest weights, and grows as many with the largest mean gradients."""
        before = {name: state.masks[name] for name in self.due}
        kept = mask_adjustment.survivors(state, self.due)
        active = kept if self.prune_first else before
        return Change.of(before, kept, sparsity.grow_largest(self.sums, active, self.due))


@variants_of(FedTiny)
@dataclass(frozen=True)
class FedTinyVariants:
    pure: FedTiny = FedTiny()
    differ: Literal["densities", "weights"] = option(
        "densities", "candidates differ in layer densities, or in initial weights"
    )
    loss_weighting: merge.Weighting = option("uniform", "how clients are weighted in the selection")
    readings: AdjustmentReadings = AdjustmentReadings()

    def init(self, ctx: Ctx) -> Server:
        self.readings.check()
        return self.pure.init(ctx)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        number = self.pure.training_ctx(ctx).round
        choosing = cast(Iterable[Exchange[Down, fedtiny.Up]], exchanges)
        if number < 0:
            return self.pure.merge(ctx, state, choosing)
        if number == 0:
            best = fedtiny.lowest_loss(choosing, self.loss_weighting)
            drawn = self.candidate(ctx, best or 0)
            return state if best is None else fedtiny.chosen(state, *drawn, best)
        due = self.due(ctx, sparsity.count(state.model.masks))
        model = self.readings.merged(ctx, state.model, exchanges, self.pure.weighting, due)
        return replace(state, model=model)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        if isinstance(down, Train):
            return [self.readings.reply(down, self.due(ctx, mask_adjustment.active(down)))]
        return self.pure.replies(ctx, down)

    def due(self, ctx: Ctx, active: Mapping[str, int]) -> Counts:
        """How many weights of which layers a round adjusts; or empty."""
        return self.readings.due(self.pure.adjustment, self.pure.training_ctx(ctx), active)

    def candidate(self, ctx: Ctx, number: int) -> tuple[Params, Masks]:
        """An initial model, and a pruning of it."""
        if self.differ == "densities" or not number:
            return self.pure.candidate(ctx, number)
        own = replace(ctx, common=ctx.common.fold("candidate", number))
        return self.pure.candidate(own, 0)

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        training = self.pure.training
        if not isinstance(down, Train):
            drawn = [self.candidate(ctx, number) for number in range(self.pure.candidates)]
            trial = fedtiny.trial(ctx, down, drawn)
            return Job(trial, self.pure.select_epochs, training.batch)
        masks = mask_adjustment.current_masks(down, local, lambda n: self.candidate(ctx, n)[1])
        due = self.due(ctx, mask_adjustment.active(down))
        rate = training.rate(self.pure.training_ctx(ctx))
        work = mask_adjustment.begin(ctx, down, masks, rate, due)
        return Job(work, training.epochs, training.batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = self.pure.finish(ctx, work)
        up: Up = done.up
        if isinstance(done.up, Update) and not isinstance(work, Trial):
            up = self.readings.up(done.up, work)
        return Result(up, done.local, done.masks, metrics=done.metrics, searched=done.searched)


def clean() -> FedTinyVariants:
    """The simplest form of the authors' library, with which it compares other methods."""
    adjustment = Adjustment(adjust_until=300, adjust_ratio=0.2, blocks=1)
    return FedTinyVariants(
        FedTiny(allocation="erk", candidates=1, adjustment=adjustment),
        readings=AdjustmentReadings(upload="all", prune_first=True),
    )


ENTRIES: dict[str, Any] = {
    "fedtiny-variants": FedTinyVariants(),
    "fedtiny-clean": clean(),
}
