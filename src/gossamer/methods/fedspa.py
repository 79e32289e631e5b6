"""FedSpa: every client searches for a sparse mask of its own over one dense model at the server.

Huang, Liu, Shen, He, Lin, Tao: Achieving personalized federated learning with sparse local models.
2022. https://arxiv.org/abs/2201.11380

A client trains the weights on its mask and sends their change. Then it drops its smallest weights,
regrows as many where the gradient of one batch is largest, and sends this mask too. The server adds
the mean change, in which a client without a weight counts as zero. Without the search, masks stay.

The code was not published. Where the paper is silent, this follows its authors' DisPFL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from gossamer import fields, merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import masked_training, personal_masks, sparse_model
from gossamer.methods.parts.personal_masks import Down, Local, Server, Up
from gossamer.optim import Training
from gossamer.sparsity import Allocation, Average
from gossamer.trust.declared import OWN_SUBMODELS, Privacy
from gossamer.wire import Revision


@dataclass
class Work:
    model: masked_training.Work
    received: Params
    next: Masks


@dataclass(frozen=True)
class FedSpa:
    clients: int = option(10, "clients per round", least=1)
    training: Training = personal_masks.TRAINING
    density: float = option(0.5, "share of the prunable weights that is kept", above=0, most=1)
    allocation: Allocation = option("erk", "how the density is divided among layers")
    fc_density: float = option(1.0, "density of the last layer under erk-plus", least=0, most=1)
    search: bool = option(True, "clients search for masks; otherwise one random mask stays")
    search_rate: float = option(0.5, "share of a layer regrown at first", least=0, most=1)
    weighting: merge.Weighting = option("uniform", "how client updates are weighted")
    accounting: Accounting = personal_masks.ACCOUNTING
    privacy: ClassVar[Privacy] = OWN_SUBMODELS
    global_model: ClassVar[bool] = False

    @property
    def spans_rounds(self) -> str:
        """The decay of the search, if there is one."""
        search = f"--search-rate {self.search_rate:g}" if self.search and self.search_rate else ""
        return fields.listed(search, self.training.spans_rounds)

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        sparse_model.prunable(ctx)
        return Server(ctx.task.init(ctx.common.fold("init")))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return personal_masks.send(ctx, state, client, self.initial(ctx))

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return personal_masks.send(ctx, state, client, self.initial(ctx), lost=True)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        changed: dict[int, Masks] = {}
        initial = self.initial(ctx)
        changes = personal_masks.read(
            ctx, state, exchanges, lambda _: initial, self.weighting, changed, shrinks=False
        )
        return add_mean_change(ctx, state, sparsity.masked_mean(changes, "fedavg"), changed)

    def holds(self, ctx: Ctx, state: Server, client: Client) -> Masks | None:
        """The mask relative to which a client's new mask is encoded."""
        return personal_masks.masks_of(ctx, state, client, self.initial(ctx))

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        without, with_mask = personal_masks.replies(ctx, down)
        return [with_mask if self.search else without]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        held = local.masks if local else None
        params, masks = personal_masks.receive(ctx, down, held, self.initial(ctx))
        model = masked_training.begin(ctx, params, masks, self.training.rate(ctx))
        return Job(Work(model, params, masks), self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        masked_training.step(ctx, self.training, work.model, batch)
        if self.search and batch.step + 1 == batch.steps:
            work.next = self.searched(ctx, work.model, batch)
        return work

    def searched(self, ctx: Ctx, model: masked_training.Work, batch: Batch) -> Masks:
        """Drops the smallest weights of each layer, then grows as many by the dense gradient."""
        rate = sparsity.as_fraction(self.rate(ctx.round - 1, ctx.rounds))
        counts = sparsity.count(model.masks)
        after_drop = {name: kept - ceil(rate * kept) for name, kept in counts.items()}
        weights = {name: model.params[name] for name in model.masks}
        gradient = masked_training.dense_gradient(ctx, model, batch)
        return sparsity.readjust(weights, model.masks, after_drop, counts, gradient).masks

    def rate(self, passed: int, rounds: int) -> float:
        """The share of a layer that is regrown after `passed` rounds: it falls by a cosine."""
        return sparsity.decayed(self.search_rate, "cosine", passed, rounds)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        params, masks = work.model.params, work.model.masks
        change = {name: params[name] - work.received[name] for name in ctx.task.layout.parameters}
        revision = Revision(work.next, masks) if self.search else None
        up = Up(sparse_model.send(ctx, {**params, **change}, masks), revision)
        metrics = masked_training.metrics(work.model)
        if self.search:
            metrics["moved"] = sparsity.mismatch(masks, work.next)
        searched = work.model.searched
        return Result(up, Local(work.next), masks, metrics=metrics, searched=searched)

    # anyone ---------------------------------------------------------------------------------------

    def initial(self, ctx: Ctx, number: int = 0) -> Masks:
        """The random mask that clients begin with; other numbers give other masks."""
        layout = ctx.task.layout
        shares = sparsity.allocate(layout, self.density, self.allocation, self.fc_density)
        key = ctx.common.fold("masks", number)
        return sparsity.random_masks(key, layout, sparsity.apportion(layout, shares))

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """The server's model under the client's mask, or under the one that all begin with."""
        return sparsity.masked(state.params, local.masks if local else self.initial(ctx))

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """How much the clients' masks differ."""
        return Measures(metrics={"client_mismatch": state.mean_jaccard})


def add_mean_change(ctx: Ctx, state: Server, mean: Average, changed: dict[int, Masks]) -> Server:
    """Adds the clients' mean change to the weights, and notes the masks that changed."""
    if not mean.params:
        return state
    old, names = state.params, ctx.task.layout.parameters
    params = {**old, **mean.params, **{name: old[name] + mean.params[name] for name in names}}
    return Server(params, state.known.updated(ctx.task.layout, changed), mean.mean_jaccard)


def static() -> FedSpa:
    """One random mask for all clients, which stays: the FedSpa that FLASH compares with."""
    return FedSpa(search=False)
