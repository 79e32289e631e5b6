"""Other readings of Sub-FedAvg, LotteryFL and FedSpa, as options of three variants.

The released codes of Sub-FedAvg and LotteryFL let clients decide on test data (`validate_on`), and
LotteryFL's prunes whole steps (`overshoot`). FedSpa's paper leaves open whether clients begin with
the same mask (`own_start`) and how the mean treats a missing weight (`averaging`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from gossamer import sparsity
from gossamer.core import Client, Ctx, Exchange, Job, Masks, Params, Result
from gossamer.fields import option
from gossamer.methods import fedspa, subfedavg
from gossamer.methods.as_published.delegation import variants_of
from gossamer.methods.fedspa import FedSpa
from gossamer.methods.lotteryfl import LotteryFL
from gossamer.methods.parts import masked_training, personal_masks, sparse_model
from gossamer.methods.parts.personal_masks import Down, Local, Server, Up
from gossamer.methods.subfedavg import SubFedAvg
from gossamer.sparsity import Averaging
from gossamer.wire import Revision

Split = Literal["valid", "train", "test"]
SPLIT_HELP = "data on which a client decides to prune; training data if it has none"


def deciding_on(ctx: Ctx, split: Split) -> Ctx:
    """The context with another split of the client's data in place of its validation data."""
    return replace(ctx, data=replace(ctx.own, valid=getattr(ctx.own, split)))


@variants_of(SubFedAvg)
@dataclass(frozen=True)
class SubFedAvgVariants:
    pure: SubFedAvg = SubFedAvg()
    validate_on: Split = option("valid", SPLIT_HELP)
    personal_model: Literal["sent", "masked"] = option(
        "sent", "a client's own model: as it last sent it, or the server's under its mask"
    )

    def finish(self, ctx: Ctx, work: subfedavg.Work) -> Result[Up, subfedavg.Local]:
        return self.pure.finish(deciding_on(ctx, self.validate_on), work)

    def model(self, ctx: Ctx, state: Server, local: subfedavg.Local | None) -> Params:
        if local and self.personal_model == "masked":
            return sparsity.masked(state.params, local.masks)
        return self.pure.model(ctx, state, local)


@variants_of(LotteryFL)
@dataclass(frozen=True)
class LotteryFLVariants:
    pure: LotteryFL = LotteryFL()
    overshoot: bool = option(False, "prune whole steps while above the density, and end below it")
    validate_on: Split = option("valid", SPLIT_HELP)

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[masked_training.Work]:
        ctx = deciding_on(ctx, self.validate_on)
        if not self.overshoot:
            return self.pure.begin(ctx, down, local)
        held, initial = local.masks if local else None, sparse_model.all_ones(ctx)
        params, before = personal_masks.receive(ctx, down, held, initial)
        return self.pure.start(ctx, params, before, self.pure.prune_step)


@variants_of(FedSpa)
@dataclass(frozen=True)
class FedSpaVariants:
    pure: FedSpa = FedSpa()
    own_start: bool = option(False, "every client begins with another mask, which it is sent once")
    averaging: Averaging = option(
        "fedavg", "mean change over all clients, or over those with a weight"
    )

    def initial(self, ctx: Ctx, client: Client) -> Masks:
        """The mask that a client begins with."""
        return self.pure.initial(ctx, client.id if self.own_start else 0)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        initial = self.initial(ctx, client)
        down = personal_masks.send(ctx, state, client, initial)
        if self.own_start and not down.own:
            return replace(down, own=True, mask=Revision(initial))
        return down

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return personal_masks.send(ctx, state, client, self.initial(ctx, client), lost=True)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        changed: dict[int, Masks] = {}

        def initial(client: Client) -> Masks:
            return self.initial(ctx, client)

        weighting = self.pure.weighting
        changes = personal_masks.read(
            ctx, state, exchanges, initial, weighting, changed, shrinks=False
        )
        mean = sparsity.masked_mean(changes, self.averaging)
        return fedspa.add_mean_change(ctx, state, mean, changed)

    def holds(self, ctx: Ctx, state: Server, client: Client) -> Masks | None:
        return personal_masks.masks_of(ctx, state, client, self.initial(ctx, client))

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params if self.own_start and not local else self.pure.model(ctx, state, local)


ENTRIES: dict[str, Any] = {
    "subfedavg-variants": SubFedAvgVariants(),
    "lotteryfl-variants": LotteryFLVariants(),
    "fedspa-variants": FedSpaVariants(),
}
