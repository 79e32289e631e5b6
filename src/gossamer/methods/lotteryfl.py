"""LotteryFL: clients search for winning tickets: they prune, rewind to the first weights and train.

Li, Sun, Wang, Duan, Li, Chen, Li: LotteryFL: Empower edge intelligence with personalized and
communication-efficient federated learning. SEC 2021. https://arxiv.org/abs/2008.03371

A client whose received model is accurate enough prunes a fifth of it and restarts from the initial
weights. Otherwise it trains on. The server averages each weight over the clients that keep it.

Differs from the authors' code: gradients are masked by the mask, not wherever a weight is near
zero; the last prune step ends at the target density; clients decide on validation data, not on
test data; and momentum is 0.9, as for SpaFL's other baselines, not 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gossamer import sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.merge import Weighting
from gossamer.methods.parts import masked_training, personal_masks, sparse_model
from gossamer.methods.parts.masked_training import Work
from gossamer.methods.parts.personal_masks import Down, Local, Server, Up
from gossamer.optim import Training
from gossamer.wire import Revision


@dataclass(frozen=True)
class LotteryFL:
    clients: int = option(10, "clients per round", least=1)
    training: Training = personal_masks.TRAINING
    prune_step: float = option(0.2, "share of its weights a client prunes", above=0, below=1)
    density: float = option(0.5, "share of the prunable weights kept in the end", above=0, most=1)
    accurate: float = option(0.2, "prune only models more accurate than this", least=0, most=1)
    weighting: Weighting = option("uniform", "how client updates are weighted")
    accounting: Accounting = personal_masks.ACCOUNTING

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        sparse_model.prunable(ctx)
        return Server(initial_weights(ctx))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return personal_masks.send(ctx, state, client, sparse_model.all_ones(ctx))

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return personal_masks.send(ctx, state, client, sparse_model.all_ones(ctx), lost=True)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        return personal_masks.average_subnetworks(ctx, state, exchanges, self.weighting)

    def holds(self, ctx: Ctx, state: Server, client: Client) -> Masks | None:
        """The mask relative to which a client's new mask is encoded."""
        return personal_masks.masks_of(ctx, state, client, sparse_model.all_ones(ctx))

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return personal_masks.replies(ctx, down)

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        held, initial = local.masks if local else None, sparse_model.all_ones(ctx)
        params, before = personal_masks.receive(ctx, down, held, initial)
        step = min(self.prune_step, 1 - self.density / density(before))
        return self.start(ctx, params, before, step)

    def start(self, ctx: Ctx, params: Params, before: Masks, step: float) -> Job[Work]:
        """Prunes a share `step` and rewinds, if the client may; then the model is trained."""
        masks = before
        if self.may_prune(ctx, params, before):
            masks = sparsity.above_percentile(params, before, step)
            initial = initial_weights(ctx)
            rewound = {name: initial[name] for name in ctx.task.layout.parameters}
            params = sparsity.masked({**params, **rewound}, masks)
        work = masked_training.begin(ctx, params, masks, self.training.rate(ctx))
        work.start = before
        return Job(work, self.training.epochs, self.training.batch)

    def may_prune(self, ctx: Ctx, params: Params, masks: Masks) -> bool:
        """Whether the model is denser than the target, by a weight per layer, and accurate."""
        size = sum(mask.numel() for mask in masks.values())
        denser = density(masks) * size > self.density * size + len(masks)
        return denser and personal_masks.accuracy(ctx, params) > self.accurate

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        masked_training.step(ctx, self.training, work, batch)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        revision = None if work.masks is work.start else Revision(work.masks, work.start)
        up = Up(sparse_model.send(ctx, work.params, work.masks), revision)
        return Result(up, Local(work.masks), work.masks, metrics=masked_training.metrics(work))

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """The server's model, under the client's mask if it has one."""
        return sparsity.masked(state.params, local.masks) if local else state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """How much the clients' masks differ."""
        return Measures(metrics={"client_mismatch": state.mean_jaccard})


def initial_weights(ctx: Ctx) -> Params:
    """The weights that all clients begin with and rewind to, known to everybody from the seed."""
    return ctx.task.init(ctx.common.fold("init"))


def density(masks: Masks) -> float:
    """The share of the weights that masks keep."""
    return sparse_model.total(masks) / sum(mask.numel() for mask in masks.values())
