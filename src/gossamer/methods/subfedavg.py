"""Sub-FedAvg: every client prunes the model to a subnetwork of its own; overlaps are averaged.

Vahidian, Morafah, Lin: Personalized federated learning by structured and unstructured pruning under
data heterogeneity. 2021. https://arxiv.org/abs/2105.00562 (the unstructured variant)

A client computes a candidate mask after its first epoch and another after its last. If they still
differ and the model is accurate enough under the second, the client prunes a share of its weights.

Differs from the authors' code: the second candidate is that of the last epoch, not of the fifth;
clients decide on validation data, not on test data; and momentum is 0.9, as for SpaFL's other
baselines, not 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gossamer import sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.merge import Weighting
from gossamer.methods.parts import masked_training, personal_masks, sparse_model
from gossamer.methods.parts.personal_masks import Down, Server, Up
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.optim import Training
from gossamer.task.layout import Layout
from gossamer.wire import Revision


@dataclass(frozen=True)
class Local:
    masks: Masks
    model: SparseModel  # as the client last sent it


@dataclass
class Work:
    model: masked_training.Work
    first: Masks = field(default_factory=dict)  # the candidate mask of the first epoch


@dataclass(frozen=True)
class SubFedAvg:
    clients: int = option(10, "clients per round", least=1)
    training: Training = personal_masks.TRAINING
    prune_step: float = option(0.2, "share of its weights a client prunes", above=0, below=1)
    target: float = option(0.5, "share of all parameters pruned in the end", least=0, below=1)
    last_step: float = option(0.05, "prune step when the target is near", above=0, below=1)
    distance: float = option(1e-4, "prune if the candidates differ by more than this", least=0)
    accurate: float = option(0.5, "prune only models more accurate than this", least=0, most=1)
    weighting: Weighting = option("uniform", "how client updates are weighted")
    accounting: Accounting = personal_masks.ACCOUNTING

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if self.training.epochs < 2:
            raise ValueError(
                "the masks after the first and the last epoch are compared; use --epochs 2 or "
                f"more, not {self.training.epochs:g}"
            )
        sparse_model.prunable(ctx)
        return Server(ctx.task.init(ctx.common.fold("init")))

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
        params, masks = personal_masks.receive(ctx, down, held, initial)
        model = masked_training.begin(ctx, params, masks, self.training.rate(ctx))
        return Job(Work(model), self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        model = work.model
        masked_training.step(ctx, self.training, model, batch)
        if batch.step + 1 == batch.per_epoch:
            work.first = sparsity.above_percentile(model.params, model.masks, self.prune_step)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        params, before = work.model.params, work.model.masks
        masks = self.next_masks(ctx, params, before, work.first)
        revision = None if masks is before else Revision(masks, before)
        model = sparse_model.send(ctx, params, masks)
        metrics = masked_training.metrics(work.model) | {"pruned": pruned(ctx.task.layout, masks)}
        return Result(Up(model, revision), Local(masks, model), before, metrics=metrics)

    def next_masks(self, ctx: Ctx, params: Params, before: Masks, first: Masks) -> Masks:
        """The client's next mask: with fewer weights, or `before` itself."""
        share = pruned(ctx.task.layout, before)
        last = sparsity.above_percentile(params, before, self.prune_step)
        if not first or mean_difference(first, last) <= self.distance or share >= self.target:
            return before
        if self.target - share < self.prune_step:
            step = min(self.last_step, (self.target - share) / (1 - share))
            last = sparsity.above_percentile(params, before, step)
        accuracy = personal_masks.accuracy(ctx, sparsity.masked(params, last))
        return last if accuracy > self.accurate else before

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """The server's model, or a client's own as it last sent it."""
        return sparse_model.receive(ctx, local.model, local.masks) if local else state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """How much the clients' masks differ."""
        return Measures(metrics={"client_mismatch": state.mean_jaccard})


def pruned(layout: Layout, masks: Masks) -> float:
    """The share of all parameters, biases and norms included, that masks remove."""
    removed = sum(int((~mask).sum()) for mask in masks.values())
    return removed / layout.total("count", layout.parameters)


def mean_difference(first: Masks, second: Masks) -> float:
    """The share of a layer in which two masks differ, averaged over layers."""
    shares = [float((first[name] ^ mask).double().mean()) for name, mask in second.items()]
    return sum(shares) / len(shares)
