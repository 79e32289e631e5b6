"""Sub-FedAvg: every client finds a subnetwork of its own; shared weights meet where these overlap.

Vahidian, Morafah, Lin: Personalized federated learning by structured and unstructured pruning under
data heterogeneity. 2021. https://arxiv.org/abs/2105.00562 (the unstructured variant)

A client finds a candidate mask after its first epoch and another after its last; while these still
differ, and the model is accurate enough under the second one, it prunes a share of what it has. The
server averages each weight over the clients that have it.

Differs from the authors' code: the second candidate is that of the last epoch, not of the fifth,
clients decide by data they held back for validation, not by test data (`validate_on`), and momentum
is 0.9 as for SpaFL's other baselines, not 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods import sparse
from gossamer.methods.parts import personal_masks
from gossamer.methods.parts.personal_masks import Down, Judge, Register, Server, Up
from gossamer.optim import Training
from gossamer.task.layout import Layout
from gossamer.wire import Packed, Revision

TRAINING = Training(epochs=3, batch=64, lr=0.001, momentum=0.9)
"""As SpaFL compares, on Fashion-MNIST."""


@dataclass(frozen=True)
class Local:
    """A client's mask, and its model as it left it."""

    masks: Masks
    values: Packed
    rest: Params


@dataclass
class Work:
    """A subnetwork in training."""

    model: sparse.Work
    first: Masks = field(default_factory=dict)
    """The candidate mask of the first epoch."""


@dataclass(frozen=True)
class SubFedAvg:
    clients: int = option(10, "clients per round", least=1)
    training: Training = TRAINING
    prune_step: float = option(0.2, "part of its weights that a client prunes", above=0, below=1)
    target: float = option(
        0.5, "part of all parameters that is pruned in the end", least=0, below=1
    )
    last_step: float = option(0.05, "the same, where less is left than a step", above=0, below=1)
    distance: float = option(
        1e-4, "least part of a layer in which the two candidates differ", least=0
    )
    accurate: float = option(0.5, "least accuracy of a model that may be pruned", least=0, most=1)
    validate_on: Judge = option("valid", "data by which that is seen; training data if none")
    weighting: merge.Weighting = option("uniform", "what a client counts for in the mean")
    personal_model: Literal["sent", "masked"] = option(
        "sent", "a client's own model: as it left it, or the server's under its mask"
    )
    accounting: Accounting = personal_masks.ACCOUNTING

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if self.training.epochs < 2:
            raise ValueError(
                f"masks after the first and the last epoch are compared, and --epochs "
                f"{self.training.epochs:g} has no two; use --epochs 2 or more"
            )
        personal_masks.everything(ctx.task.layout)
        return Server(ctx.task.init(ctx.common.fold("init")), Register.empty())

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
        params, masks = personal_masks.received(ctx, down, local.masks if local else None, first)
        work = sparse.begin(ctx, params, masks, self.training.rate(ctx), moves=False)
        return Job(Work(work), self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        sparse.descend(ctx, self.training, work.model, batch)
        if batch.step + 1 == batch.per_epoch:
            work.first = sparsity.above_percentile(
                work.model.params, work.model.masks, self.prune_step
            )
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        before, params = work.model.masks, work.model.params
        masks = self._pruned(ctx, params, before, work.first)
        params = params if masks is before else sparsity.masked(params, masks)
        values, dense = sparse.values(params, masks), sparse.dense(ctx, params)
        buffers = sparse.buffers(ctx, params, "running")
        revision = None if masks is before else Revision(masks, before)
        metrics = sparse.metrics(work.model) | {"pruned": pruned(ctx.task.layout, masks)}
        kept = Local(masks, values, {**dense, **buffers})
        return Result(Up(values, dense, buffers, revision), kept, before, metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        if local is None:
            return state.params
        if self.personal_model == "masked":
            return sparsity.masked(state.params, local.masks)
        return sparse.joined(ctx, local.values, local.masks, local.rest)

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """How far clients' masks were from one another; the server's model has none."""
        return Measures(metrics={"client_mismatch": state.mean_jaccard})

    # parts ----------------------------------------------------------------------------------------

    def _pruned(self, ctx: Ctx, params: Params, before: Masks, first: Masks) -> Masks:
        """The next mask: fewer weights, or as before."""
        share = pruned(ctx.task.layout, before)
        last = sparsity.above_percentile(params, before, self.prune_step)
        if not first or mean_difference(first, last) <= self.distance or share >= self.target:
            return before
        if self.target - share < self.prune_step:
            step = min(self.last_step, (self.target - share) / (1 - share))
            last = sparsity.above_percentile(params, before, step)
        found = personal_masks.accuracy(ctx, sparsity.masked(params, last), self.validate_on)
        return last if found > self.accurate else before


def subnetworks(
    ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]], weighting: merge.Weighting
) -> Server:
    """Each weight becomes its mean over the clients that have it, or stays where none has."""
    changed: dict[int, Masks] = {}
    everything = personal_masks.everything(ctx.task.layout)
    replies = (
        (whole, masks, merge.weight(client, weighting))
        for client, whole, masks in personal_masks.read(
            ctx,
            state,
            lambda _: everything,
            exchanges,
            personal_masks.within,
            changed,
            shrinks=True,
        )
    )
    average = sparsity.masked_mean(replies, "wfa", state.params)
    if not average.params:
        return state
    known = state.known.noted(ctx.task.layout, changed)
    return Server({**state.params, **average.params}, known, average.mean_jaccard)


def pruned(layout: Layout, masks: Masks) -> float:
    """The part of all parameters, biases and norms too, that masks take away."""
    gone = sum(int((~mask).sum()) for mask in masks.values())
    return gone / layout.total("count", layout.parameters)


def mean_difference(first: Masks, second: Masks) -> float:
    """The part of a layer in which two masks differ, in the mean over layers."""
    shares = [float((first[name] ^ mask).double().mean()) for name, mask in second.items()]
    return sum(shares) / len(shares)
