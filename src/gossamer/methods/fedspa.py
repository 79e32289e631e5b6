"""FedSpa: personal masks of one size over a dense model at the server, searched for as it trains.

Huang, Liu, Shen, He, Lin, Tao: Achieving personalized federated learning with sparse local models.
2022. https://arxiv.org/abs/2201.11380

Every client trains its part of the server's model, drops its smallest weights and grows where the
gradient of a batch is largest, and sends its changes and its next mask. The server adds the mean of
all changes, where a client without a weight counts as one that did not change it.

The paper's code was not published: details are those of its authors' DisPFL. All begin with one
mask; `own_start` gives everybody another. Without a search masks stay (`static`), which is what
FLASH compares with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods import sparse
from gossamer.methods.parts import personal_masks
from gossamer.methods.parts.personal_masks import Down, Register, Server, Up
from gossamer.methods.subfedavg import TRAINING
from gossamer.optim import Training
from gossamer.sparsity import Allocation, Averaging
from gossamer.wire import Revision, pack


@dataclass(frozen=True)
class Local:
    masks: Masks


@dataclass
class Work:
    """A masked model in training."""

    model: sparse.Work
    start: Params
    next: Masks


@dataclass(frozen=True)
class FedSpa:
    clients: int = option(10, "clients per round", least=1)
    training: Training = TRAINING
    density: float = option(0.5, "part of the prunable weights that is kept", above=0, most=1)
    allocation: Allocation = option("erk", "how densities of layers are found")
    fc_density: float = option(
        1.0, "density of the last fully connected layer under erk-plus", least=0, most=1
    )
    search: bool = option(True, "clients move their masks; otherwise these stay as drawn")
    search_rate: float = option(
        0.5, "part of a layer that moves, in the first round", least=0, most=1
    )
    own_start: bool = option(False, "every client begins with a mask of its own")
    averaging: Averaging = option("fedavg", "changes over all clients, or over those with a weight")
    weighting: merge.Weighting = option("uniform", "what a client counts for in the mean")
    accounting: Accounting = personal_masks.ACCOUNTING

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        personal_masks.everything(ctx.task.layout)
        return Server(ctx.task.init(ctx.common.fold("init")), Register.empty())

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        first = self.first(ctx, client.id)
        return personal_masks.message(ctx, state, client, first, told=self.own_start)

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return personal_masks.message(ctx, state, client, self.first(ctx, client.id), lost=True)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        changed: dict[int, Masks] = {}
        average = sparsity.masked_mean(
            self._changes(ctx, state, exchanges, changed), self.averaging
        )
        if not average.params:
            return state
        moved = {name: average.params[name] for name in ctx.task.layout.parameters}
        params = {**state.params, **average.params}
        params |= {name: state.params[name] + change for name, change in moved.items()}
        return Server(params, state.known.noted(ctx.task.layout, changed), average.mean_jaccard)

    def holds(self, ctx: Ctx, state: Server, client: Client) -> Masks | None:
        """The mask of which a client tells changes."""
        return state.known.find(ctx.task.layout, client.id) or self.first(ctx, client.id)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What the answer to a message looks like: with a mask, if clients move it."""
        return personal_masks.replies(ctx, down)[int(self.search) :][:1]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        first = {} if self.own_start else self.first(ctx)
        params, masks = personal_masks.received(ctx, down, local.masks if local else None, first)
        work = sparse.begin(ctx, params, masks, self.training.rate(ctx), moves=self.search)
        return Job(Work(work, params, masks), self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        sparse.descend(ctx, self.training, work.model, batch)
        if self.search and batch.step + 1 == batch.steps:
            work.next = self._searched(ctx, work.model, batch)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        model = work.model
        change = {
            name: model.params[name] - work.start[name] for name in ctx.task.layout.parameters
        }
        up = Up(
            pack({name: change[name] for name in model.masks}, model.masks),
            {name: change[name] for name in ctx.task.layout.dense},
            sparse.buffers(ctx, model.params, "running"),
            Revision(work.next, model.masks) if self.search else None,
        )
        metrics = {"loss": model.loss.item() / max(model.examples, 1)}
        if self.search:
            metrics["moved"] = sparsity.mismatch(model.masks, work.next)
        return Result(up, Local(work.next), model.masks, metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        if local:
            return sparsity.masked(state.params, local.masks)
        common = not self.search and not self.own_start
        return sparsity.masked(state.params, self.first(ctx)) if common else state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """How far clients' masks were from one another; the server's model has none."""
        return Measures(metrics={"client_mismatch": state.mean_jaccard})

    # parts ----------------------------------------------------------------------------------------

    def first(self, ctx: Ctx, client: int = 0) -> Masks:
        """The mask that a client begins with."""
        layout = ctx.task.layout
        shares = sparsity.allocate(layout, self.density, self.allocation, self.fc_density)
        key = ctx.common.fold("masks", client if self.own_start else 0)
        return sparsity.random_masks(key, layout, sparsity.apportion(layout, shares))

    def rate(self, number: int, total: int) -> float:
        """The part of a layer that moves in a round; `number` counts from 0."""
        return sparsity.decayed(self.search_rate, "cosine", number, total)

    def _searched(self, ctx: Ctx, work: sparse.Work, batch: Batch) -> Masks:
        """The next mask: the smallest weights make room for the largest gradients."""
        rate, high = (
            sparsity.as_fraction(self.rate(ctx.round - 1, ctx.rounds)),
            sparsity.count(work.masks),
        )
        low = {name: kept - ceil(rate * kept) for name, kept in high.items()}
        weights = {name: work.params[name] for name in work.masks}
        slopes = sparse.gradient(ctx, work, batch)
        return sparsity.readjust(weights, work.masks, low, high, slopes).masks

    def _changes(
        self,
        ctx: Ctx,
        state: Server,
        exchanges: Iterable[Exchange[Down, Up]],
        changed: dict[int, Masks],
    ) -> Iterator[tuple[Params, Masks, float]]:
        def first(client: int) -> Masks:
            return self.first(ctx, client)

        found = personal_masks.read(
            ctx, state, first, exchanges, personal_masks.as_many, changed, shrinks=False
        )
        for client, whole, masks in found:
            yield whole, masks, merge.weight(client, self.weighting)


def static() -> FedSpa:
    """One random mask for all, which stays: what FLASH compares with, there by erk-plus."""
    return FedSpa(search=False)
