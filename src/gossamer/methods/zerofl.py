"""ZeroFL: clients train with few weights and few activations, and send the weights that matter.

The server has a dense model and sends all of it. Layers of clients compute with their largest
weights and activations (SWAT, `gossamer.sparsity.swat`) while every weight is trained. The largest
weights or changes of each layer go up. The model is evaluated with its largest weights only.

Qiu, Fernandez-Marques, Gusmao, Gao, Parcollet, Lane: ZeroFL: efficient on-device training for
federated learning with local sparsity. ICLR 2022. https://arxiv.org/abs/2208.02507
Differs from the paper, whose learning rate grows by a slip of sign in its formula: it falls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Literal

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import dense_model, sparse_model
from gossamer.methods.parts.dense_model import Down, Work
from gossamer.methods.parts.sparse_model import BN_HELP, BatchNorm, SparseModel
from gossamer.optim import Training
from gossamer.sparsity import Counts, swat
from gossamer.task.layout import Layout
from gossamer.wire import WireError, unpack

TRAINING = Training(epochs=1, batch=32, lr=0.1, schedule="exponential-to", lr_end=0.01)


@dataclass(frozen=True)
class Server:
    params: Params
    mean_jaccard: float = 0.0  # distance between the masks of two clients of the last round


@dataclass(frozen=True)
class Up:
    mask: Masks
    model: SparseModel  # weights, or their changes, where the mask is


@dataclass(frozen=True)
class ZeroFL:
    clients: int = option(10, "clients per round", least=1)
    training: Training = TRAINING
    density: float = option(
        0.1, "share of weights and activations that layers compute with", above=0, most=1
    )
    mask_ratio: float = option(0.2, "share of weights sent beyond the density", least=0, most=1)
    upload: Literal["top-weights", "diff-of-top-weights", "top-diffs"] = option(
        "top-weights", "the largest weights, their changes, or the largest changes"
    )
    period: int = option(1, "batches between updates of SWAT's cut-off magnitudes", least=1)
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    bn: BatchNorm = option("running", BN_HELP)
    accounting: Accounting = Accounting(mask_code="csr-flat")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        sparse_model.prunable(ctx)
        self.sparse(ctx)  # refuses layers that cannot be sparse
        return Server(ctx.task.init(ctx.common.fold("init")))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        buffers: dense_model.Buffers = "average" if self.bn == "running" else "local"
        return Down(dense_model.shared(ctx, state.params, buffers))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        average = sparsity.masked_mean(self.received(ctx, exchanges), "fedavg")  # Algorithm 1
        if not average.params:
            return state
        params = {**state.params, **average.params}
        if self.upload != "top-weights":
            for name in average.owned:
                params[name] = state.params[name] + average.params[name]  # w_t + sum of d
        return Server(params, average.mean_jaccard)

    def received(
        self, ctx: Ctx, exchanges: Iterable[Exchange[Down, Up]]
    ) -> Iterator[tuple[Params, Masks, float]]:
        allowed = sum(self.quotas(ctx.task.layout).values())
        for exchange in exchanges:
            model, mask = exchange.up.model, exchange.up.mask
            if (kept := sparse_model.total(mask)) > allowed:
                raise WireError(f"masks came back with {kept} weights, but {allowed} were allowed")
            reply = {**unpack(model.values, mask), **model.dense, **model.buffers}
            weight = merge.weight(exchange.client, self.weighting)
            yield merge.fitting(reply, exchange.down.params), mask, weight

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        mask = sparse_model.all_zeros(ctx)
        return [Up(mask, sparse_model.send(ctx, down.params, mask, self.bn))]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: None) -> Job[Work]:
        anchored = self.upload != "top-weights"
        return dense_model.begin(self.sparse(ctx), self.training, down.params, None, anchored)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        own = self.sparse(ctx)
        if batch.step % self.period == 0:
            swat.forget(own.task, work.params)
        found = swat.gradients(ctx.task, own.task, work.params, batch, self.density)
        dense_model.descend(self.training, work, batch, *found)  # TrainLocally of Algorithm 1
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, None]:
        names = ctx.task.layout.prunable
        weights = values = {name: work.params[name] for name in names}
        if self.upload != "top-weights":
            values = {name: weights[name] - work.anchor[name] for name in names}  # d = w_E - w_t
        largest = values if self.upload == "top-diffs" else weights
        mask = sparsity.largest(largest, self.quotas(ctx.task.layout))  # the end of Algorithm 1
        return Result(
            Up(mask, sparse_model.send(ctx, {**work.params, **values}, mask, self.bn)),
            masks=swat.masks(weights, names, self.density),
            metrics={"loss": dense_model.mean_loss(work)},
        )

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: None) -> Params:
        return swat.active(state.params, ctx.task.layout.prunable, self.density)

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The weights that the model is evaluated with, and how far apart clients' masks are."""
        masks = swat.masks(state.params, ctx.task.layout.prunable, self.density)
        return Measures(masks, {"client_mismatch": state.mean_jaccard})

    def quotas(self, layout: Layout) -> Counts:
        """How many weights of each layer a client sends."""
        # 1 - sp + r_mask of section 5.
        share = sparsity.as_fraction(self.density) + sparsity.as_fraction(self.mask_ratio)
        share = min(share, Fraction(1))
        return {name: ceil(share * layout[name].count) for name in layout.prunable}

    def sparse(self, ctx: Ctx) -> Ctx:
        """The same context with layers that compute with few weights and activations."""
        return replace(ctx, task=swat.sparse_task(ctx.task, self.density))
