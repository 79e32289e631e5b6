"""LotteryFL: clients hunt for winning tickets: they prune, rewind to the first weights, and train.

Li, Sun, Wang, Duan, Li, Chen, Li: LotteryFL: Empower edge intelligence with personalized and
communication-efficient federated learning. SEC 2021. https://arxiv.org/abs/2008.03371

A client that does well enough with what it was sent prunes a fifth of it and starts again from the
first weights of all; otherwise it goes on from what it was sent. The server averages each weight
over the clients that have it.

Differs from the authors' code: gradients are masked by the mask, not where a weight is near zero,
the last step reaches the target exactly (`overshoot` prunes a whole step), clients decide by data
they held back for validation, not by test data (`validate_on`), and momentum is 0.9 as for SpaFL's
other baselines, not 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods import sparse
from gossamer.methods.parts import personal_masks
from gossamer.methods.parts.personal_masks import Down, Judge, Register, Server, Up
from gossamer.methods.sparse import Work
from gossamer.methods.subfedavg import TRAINING, subnetworks
from gossamer.optim import Training
from gossamer.wire import Revision


@dataclass(frozen=True)
class Local:
    masks: Masks


@dataclass(frozen=True)
class LotteryFL:
    clients: int = option(10, "clients per round", least=1)
    training: Training = TRAINING
    prune_step: float = option(0.2, "part of its weights that a client prunes", above=0, below=1)
    density: float = option(0.5, "part of the prunable weights kept in the end", above=0, most=1)
    overshoot: bool = option(False, "prune whole steps while above that, and end below it")
    accurate: float = option(0.2, "least accuracy of a model that may be pruned", least=0, most=1)
    validate_on: Judge = option("valid", "data by which that is seen; training data if none")
    weighting: merge.Weighting = option("uniform", "what a client counts for in the mean")
    accounting: Accounting = personal_masks.ACCOUNTING

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        personal_masks.everything(ctx.task.layout)
        return Server(first_weights(ctx), Register.empty())

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return personal_masks.message(
            ctx, state, client, personal_masks.everything(ctx.task.layout)
        )

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return personal_masks.message(
            ctx, state, client, personal_masks.everything(ctx.task.layout), lost=True
        )

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        return subnetworks(ctx, state, exchanges, self.weighting)

    def holds(self, ctx: Ctx, state: Server, client: Client) -> Masks | None:
        """The mask of which a client tells changes."""
        return state.known.find(ctx.task.layout, client.id) or personal_masks.everything(
            ctx.task.layout
        )

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What answers to a message look like: with a mask, or without."""
        return personal_masks.replies(ctx, down)

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        first = personal_masks.everything(ctx.task.layout)
        params, before = personal_masks.received(ctx, down, local.masks if local else None, first)
        masks = self._pruned(ctx, params, before)
        if masks is not before:
            start = first_weights(ctx)
            rewound = {name: start[name] for name in ctx.task.layout.parameters}
            params = sparsity.masked({**params, **rewound}, masks)
        work = sparse.begin(ctx, params, masks, self.training.rate(ctx), moves=False)
        work.base = before
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        sparse.descend(ctx, self.training, work, batch)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        up = Up(
            sparse.values(work.params, work.masks),
            sparse.dense(ctx, work.params),
            sparse.buffers(ctx, work.params, "running"),
            None if work.masks is work.base else Revision(work.masks, work.base),
        )
        return Result(up, Local(work.masks), work.masks, metrics=sparse.metrics(work))

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return sparsity.masked(state.params, local.masks) if local else state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """How far clients' masks were from one another; the server's model has none."""
        return Measures(metrics={"client_mismatch": state.mean_jaccard})

    # parts ----------------------------------------------------------------------------------------

    def _pruned(self, ctx: Ctx, params: Params, before: Masks) -> Masks:
        """The next mask: fewer weights, or as before."""
        size = sum(mask.numel() for mask in before.values())
        density = sparse.total(before) / size
        # A percentile rarely falls on the target to the weight: within a weight per layer it is.
        if density * size <= self.density * size + len(before):
            return before
        if personal_masks.accuracy(ctx, params, self.validate_on) <= self.accurate:
            return before
        step = self.prune_step
        if not self.overshoot:
            step = min(step, 1 - self.density / density)
        return sparsity.above_percentile(params, before, step)


def first_weights(ctx: Ctx) -> Params:
    """What everybody begins with and rewinds to, known to all from the seed."""
    return ctx.task.init(ctx.common.fold("init"))
