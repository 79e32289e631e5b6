"""ZeroFL: clients train with few weights and few activations, and send the weights that matter.

Qiu, Fernandez-Marques, Gusmao, Gao, Parcollet, Lane: ZeroFL: efficient on-device training for
federated learning with local sparsity. ICLR 2022. https://arxiv.org/abs/2208.02507

The server has a dense model and sends all of it. Layers of clients compute with their largest
weights (SWAT, `gossamer.sparsity.swat`) while every weight is trained; what goes up are the
largest weights, or changes, of each layer, a few more than were computed with. The model that is
tested has the largest weights only: without the others it computes what it was trained to.

Differs from the paper, whose formula of the learning rate grows by a slip of sign: it falls.
Masks travel in a code of their own instead of 32 bits for each place; the paper's column has those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Literal

import torch

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods import sparse
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Down, Work
from gossamer.methods.sparse import BatchNorm
from gossamer.optim import Training
from gossamer.sparsity import Counts, swat
from gossamer.task.layout import Layout
from gossamer.wire import Packed, unpack

TRAINING = Training(epochs=1, batch=32, lr=0.1, schedule="exponential-to", lr_end=0.01)

Upload = Literal["top-weights", "diff-of-top-weights", "top-diffs"]


@dataclass(frozen=True)
class Server:
    params: Params
    mean_jaccard: float = 0.0
    """The mean Jaccard distance between what two clients of the last round sent."""


@dataclass(frozen=True)
class Up:
    mask: Masks
    values: Packed
    """Weights, or their changes, where the mask is."""
    dense: Params
    buffers: Params


@dataclass(frozen=True)
class ZeroFL:
    clients: int = option(10, "clients per round", least=1)
    training: Training = TRAINING
    density: float = option(
        0.1, "part of weights and activations that layers compute with", above=0, most=1
    )
    mask_ratio: float = option(
        0.2, "part of the weights that is sent beyond the density", least=0, most=1
    )
    upload: Upload = option(
        "top-weights", "the largest weights, their changes, or the largest changes"
    )
    period: int = option(1, "batches until it is looked anew which numbers are large", least=1)
    weighting: merge.Weighting = option("samples", "what a client counts for in the mean")
    bn: BatchNorm = option("running", "statistics are averaged, or found anew before a test")
    accounting: Accounting = Accounting(mask_code="csr-flat")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if not ctx.task.layout.prunable:
            raise ValueError("this model has no layer that may be pruned; see --prunable")
        swat.sparse_task(ctx.task, self.density)  # refuses layers that cannot be sparse
        return Server(ctx.task.init(ctx.common.fold("init")))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        trained = {name: state.params[name] for name in ctx.task.layout.parameters}
        return Down({**trained, **sparse.buffers(ctx, state.params, self.bn)})

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        average = sparsity.masked_mean(self._read(ctx, exchanges), "fedavg")
        if not average.params:
            return state
        params = {**state.params, **average.params}
        if self.upload != "top-weights":
            for name in average.owned:
                params[name] = state.params[name] + average.params[name]
        return Server(params, average.mean_jaccard)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What the answer to a message looks like."""
        names = ctx.task.layout.prunable
        blank = {name: torch.zeros(ctx.task.layout[name].shape) > 0 for name in names}
        return [self._message(ctx, blank, down.params, down.params)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: None) -> Job[Work]:
        anchored = self.upload != "top-weights"
        return dense_model.begin(self._sparse(ctx), self.training, down.params, None, anchored)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        own = self._sparse(ctx)
        if batch.step % self.period == 0:
            swat.forget(own.task, work.params)
        return dense_model.step(own, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, None]:
        names = ctx.task.layout.prunable
        weights = {name: work.params[name] for name in names}
        values = weights
        if self.upload != "top-weights":
            values = {name: weights[name] - work.anchor[name] for name in names}
        chosen = values if self.upload == "top-diffs" else weights
        mask = sparsity.largest(chosen, self.quotas(ctx.task.layout))
        return Result(
            self._message(ctx, mask, values, work.params),
            masks=swat.masks(weights, names, self.density),
            metrics={"loss": work.loss.item() / max(work.examples, 1)},
        )

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: None) -> Params:
        return swat.active(state.params, ctx.task.layout.prunable, self.density)

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The weights that the model is tested with, and how little of it clients agree on."""
        found = swat.masks(state.params, ctx.task.layout.prunable, self.density)
        return Measures(found, {"client_mismatch": state.mean_jaccard})

    # parts ----------------------------------------------------------------------------------------

    def quotas(self, layout: Layout) -> Counts:
        """How many weights of each layer a client sends."""
        share = min(
            sparsity.as_fraction(self.density) + sparsity.as_fraction(self.mask_ratio), Fraction(1)
        )
        return {name: ceil(share * layout[name].count) for name in layout.prunable}

    def _sparse(self, ctx: Ctx) -> Ctx:
        return replace(ctx, task=swat.sparse_task(ctx.task, self.density))

    def _message(self, ctx: Ctx, mask: Masks, values: Params, params: Params) -> Up:
        rest = sparse.dense(ctx, params), sparse.buffers(ctx, params, self.bn)
        return Up(mask, sparse.values(values, mask), *rest)

    def _read(
        self, ctx: Ctx, exchanges: Iterable[Exchange[Down, Up]]
    ) -> Iterator[tuple[Params, Masks, float]]:
        allowed = sum(self.quotas(ctx.task.layout).values())
        for exchange in exchanges:
            up, sent = exchange.up, exchange.down.params
            mask = sparse.affordable(up.mask, allowed)
            found = {**unpack(up.values, mask), **up.dense, **up.buffers}
            share = merge.weight(exchange.client, self.weighting)
            yield merge.fitting(found, sent), mask, share
