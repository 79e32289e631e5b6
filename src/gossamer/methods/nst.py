"""NST: every client learns a mask of its own; the server averages what has little in common.

The naive way to sparse federated learning that FLASH starts from, and with a single client that
holds all data, ordinary sparse training of one model.

Babakniya, Kundu, Prakash, Niu, Avestimehr: Revisiting sparsity hunting in federated learning: why
does sparsity consensus matter? TMLR 2023. https://openreview.net/forum?id=iHyhdpsnyi
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods import sparse
from gossamer.methods.flash import SCHEDULE
from gossamer.methods.sparse import BatchNorm, Learning, Work
from gossamer.optim import Training
from gossamer.sparsity import Averaging
from gossamer.wire import Packed, Revision

BITMAP = 1 / 32
"""What a mask costs of the weights that it masks, at most."""


@dataclass(frozen=True)
class Server:
    params: Params
    masks: Masks
    """Where at least one client of the last round has a weight."""
    mean_jaccard: float = 0.0
    """The mean Jaccard distance of two of these clients."""


@dataclass(frozen=True)
class Whole:
    """A model with so few zeros that a mask would cost more than it saves."""

    params: Params


@dataclass(frozen=True)
class Sparse:
    values: Packed
    dense: Params
    buffers: Params
    masks: Masks


Down = Whole | Sparse


@dataclass(frozen=True)
class Up:
    values: Packed
    dense: Params
    buffers: Params
    mask: Revision


@dataclass(frozen=True)
class Local:
    masks: Masks


@dataclass(frozen=True)
class NST:
    clients: int = option(10, "clients per round", least=1)
    training: Training = SCHEDULE
    density: float = option(0.05, "part of the prunable weights that is kept", above=0, most=1)
    learning: Learning = Learning()
    bernoulli: bool = option(False, "draw each weight of a mask by itself; counts differ then")
    weighting: merge.Weighting = option("samples", "what a client counts for in the mean")
    averaging: Averaging = option("fedavg", "over all clients, or over those with a weight")
    bn: BatchNorm = option("running", "statistics are averaged, or found anew before a test")
    accounting: Accounting = Accounting()

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        self.learning.check(self.training)
        if not ctx.task.layout.prunable:
            raise ValueError("this model has no layer that may be pruned; see --prunable")
        if ctx.budgets[0] < self.density:
            raise ValueError(
                f"every client of NST has density {self.density:g}, and the smallest budget is "
                f"{ctx.budgets[0]:g}; use spdst or jmwst with --budgets"
            )
        first = self._first(ctx)
        return Server(sparsity.masked(ctx.task.init(ctx.common.fold("init")), first), first)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        buffers = sparse.buffers(ctx, state.params, self.bn)
        kept = sum(sparsity.count(state.masks).values())
        if kept > (1 - BITMAP) * sum(mask.numel() for mask in state.masks.values()):
            trained = {name: state.params[name] for name in ctx.task.layout.parameters}
            return Whole({**trained, **buffers})
        dense = sparse.dense(ctx, state.params)
        return Sparse(sparse.values(state.params, state.masks), dense, buffers, state.masks)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        average = sparsity.masked_mean(self._read(ctx, exchanges), self.averaging)
        if not average.params:
            return state
        return Server({**state.params, **average.params}, average.owned, average.mean_jaccard)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What the answer to a message looks like."""
        blank = ctx.task.init(ctx.common.fold("init"))
        masks = self._first(ctx)
        dense, buffers = sparse.dense(ctx, blank), sparse.buffers(ctx, blank, self.bn)
        return [Up(sparse.values(blank, masks), dense, buffers, Revision(masks))]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        masks = local.masks if local else self._first(ctx)
        match down:
            case Whole():
                params = {**ctx.task.buffers(), **down.params}
            case Sparse():
                params = sparse.joined(ctx, down.values, down.masks, down.dense, down.buffers)
        rate = self.training.rate(ctx)
        work = sparse.begin(ctx, sparsity.masked(params, masks), masks, rate, moves=True)
        work.base = down.masks if isinstance(down, Sparse) else None
        prunable = ctx.task.layout.total("count", ctx.task.layout.prunable)
        work.intended = round(sparsity.as_fraction(self.density) * prunable)
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return sparse.step(ctx, self.training, self.learning, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        up = Up(
            sparse.values(work.params, work.masks),
            sparse.dense(ctx, work.params),
            sparse.buffers(ctx, work.params, self.bn),
            Revision(work.masks, work.base),
        )
        needed = sparse.trained(self.learning, work)
        return Result(up, Local(work.masks), work.masks, needed, sparse.metrics(work))

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """Where the server's model is not zero: more than any client has, the more they differ."""
        return Measures(state.masks, {"client_mismatch": state.mean_jaccard})

    # parts ----------------------------------------------------------------------------------------

    def _first(self, ctx: Ctx) -> Masks:
        """The mask that everybody begins with, known to all from the seed."""
        layout = ctx.task.layout
        counts = sparsity.apportion(layout, sparsity.uniform(layout, self.density))
        return sparsity.random_masks(ctx.common.fold("masks", 0), layout, counts, self.bernoulli)

    def _read(
        self, ctx: Ctx, exchanges: Iterable[Exchange[Down, Up]]
    ) -> Iterator[tuple[Params, Masks, float]]:
        allowed = sparse.total(self._first(ctx))
        for exchange in exchanges:
            up = exchange.up
            masks = sparse.affordable(up.mask.masks, allowed, self.learning)
            whole = sparse.joined(ctx, up.values, masks, up.dense, up.buffers)
            yield whole, masks, merge.weight(exchange.client, self.weighting)


def code_parity(method: NST) -> NST:
    """The ways of the released code, where they differ."""
    return replace(
        method,
        training=replace(method.training, lr_horizon=1000, lr_lag=1),
        learning=replace(method.learning, exact=False, growth="bernoulli"),
        bernoulli=True,
        weighting="uniform",
    )
