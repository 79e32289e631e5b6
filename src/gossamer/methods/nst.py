"""NST: every client learns a mask of its own, and the server averages models that share little.

The naive way to sparse federated learning that FLASH starts from and, with a single client that
holds all data, ordinary sparse training of one model.

Babakniya, Kundu, Prakash, Niu, Avestimehr: Revisiting sparsity hunting in federated learning: why
does sparsity consensus matter? TMLR 2023. https://openreview.net/forum?id=iHyhdpsnyi (section 3)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import mask_learning, masked_training, sparse_model
from gossamer.methods.parts.held_versions import Local
from gossamer.methods.parts.mask_learning import SCHEDULE, Update, receive_update
from gossamer.methods.parts.sparse_model import BN_HELP, BatchNorm, SparseModel
from gossamer.optim import Training
from gossamer.sparsity import Averaging
from gossamer.wire import Revision

BITMAP = 1 / 32
"""What a mask costs of the weights that it masks, at most."""


@dataclass(frozen=True)
class Server:
    params: Params
    masks: Masks  # where at least one client of the last round has a weight
    mean_jaccard: float = 0.0  # distance between the masks of two of these clients


@dataclass(frozen=True)
class Whole:
    """A model with so few zeros that a mask would cost more than it saves."""

    params: Params


@dataclass(frozen=True)
class Sparse:
    model: SparseModel
    masks: Masks


Down = Whole | Sparse
Exchanges = Iterable[Exchange[Down, Update]]


@dataclass
class Work:
    model: masked_training.Work
    base: Masks | None  # masks that the server holds too


@dataclass(frozen=True)
class NST:
    clients: int = option(10, "clients per round", least=1)
    training: Training = SCHEDULE
    density: float = option(0.05, "part of the prunable weights that is kept", above=0, most=1)
    prune_rate: float = option(0.25, "part of a layer that a mask update prunes", least=0, most=1)
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    averaging: Averaging = option("fedavg", "mean over all clients, or over those with a weight")
    bn: BatchNorm = option("running", BN_HELP)
    accounting: Accounting = Accounting()

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        sparse_model.prunable(ctx)
        if ctx.budgets[0] < self.density:
            raise ValueError(
                f"every client of NST has density {self.density:g}, and the smallest budget is "
                f"{ctx.budgets[0]:g}; use spdst or jmwst with --budgets"
            )
        first = self.first_masks(ctx)
        return Server(sparsity.masked(ctx.task.init(ctx.common.fold("init")), first), first)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        model = sparse_model.send(ctx, state.params, state.masks, self.bn)
        if sparsity.density(state.masks) <= 1 - BITMAP:
            return Sparse(model, state.masks)
        parameters = {name: state.params[name] for name in ctx.task.layout.parameters}
        return Whole({**parameters, **model.buffers})

    def merge(self, ctx: Ctx, state: Server, exchanges: Exchanges) -> Server:
        first = self.first_masks(ctx)
        sent = sparse_model.send(ctx, state.params, first, self.bn)
        updates = (
            (*receive_update(ctx, each.up, sent, first), merge.weight(each.client, self.weighting))
            for each in exchanges
        )
        average = sparsity.masked_mean(updates, self.averaging)  # section 3: FedAvg
        if not average.params:
            return state
        apart = average.mean_jaccard  # eq. 1, of the masks of two clients
        return Server({**state.params, **average.params}, average.owned, apart)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Update]:
        """Example replies, from which the reply schema is derived."""
        params, masks = ctx.task.init(ctx.common.fold("init")), self.first_masks(ctx)
        return [Update(sparse_model.send(ctx, params, masks, self.bn), Revision(masks))]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        masks = local.masks if local else self.first_masks(ctx)
        match down:
            case Whole():
                params, base = {**ctx.task.buffers(), **down.params}, None
            case Sparse():
                params, base = sparse_model.receive(ctx, down.model, down.masks), down.masks
        params = sparsity.masked(params, masks)
        model = masked_training.begin(ctx, params, masks, self.training.rate(ctx))
        return Job(Work(model, base), self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        # Section 3: every client learns its own mask.
        mask_learning.step(ctx, self.training, work.model, batch, self.prune_rate)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Update, Local]:
        model, metrics = work.model, masked_training.metrics(work.model, moved=True)
        sent = sparse_model.send(ctx, model.params, model.masks, self.bn)
        up = Update(sent, Revision(model.masks, work.base))
        return Result(up, Local(model.masks), model.masks, metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """Where the server's model is not zero: the union of clients' masks."""
        return Measures(state.masks, {"client_mismatch": state.mean_jaccard})

    # masks ----------------------------------------------------------------------------------------

    def first_masks(self, ctx: Ctx) -> Masks:
        """The masks that everybody begins with, known to all from the seed."""
        layout = ctx.task.layout
        counts = sparsity.apportion(layout, sparsity.uniform(layout, self.density))
        return sparsity.random_masks(ctx.common.fold("masks", 0), layout, counts)
