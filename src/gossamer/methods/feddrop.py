"""FedDrop: every client trains a sub-model of its own, without some filters and neurons.

The server draws the units that a client does without and sends what is left, a dense and smaller
network; the client trains it like any other and sends it back, and the server puts it into its
place. What a client did not have counts as unchanged.

Caldas, Konečný, McMahan, Talwalkar: Expanding the reach of federated learning by reducing client
resource requirements. 2018. https://arxiv.org/abs/1812.07210
Louizos, Reisser, Soriaga, Welling: An expectation-maximization perspective on federated learning.
2021. https://arxiv.org/abs/2111.10192

Differs from the papers, which do not say: what a layer reads from kept units is divided by the part
of them that is kept, in training only. Group norms count dropped channels as zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.dropping import Dropping
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Up
from gossamer.methods.parts.server_optimiser import Adaptive, Moments, unrounded
from gossamer.optim import Training
from gossamer.submodels import Cut, trace
from gossamer.task import Task


@dataclass(frozen=True)
class Server:
    params: Params
    moments: Moments
    seen: dict[int, int]
    """The round in which each client took part last, where clients' own models are kept."""
    past: dict[int, Params]
    """The model at the start of these rounds."""


@dataclass(frozen=True)
class Local:
    """The sub-model that the client sent last."""

    params: Params
    seed: int
    round: int


@dataclass(frozen=True)
class Down:
    params: Params
    """Of the sub-model."""
    seed: int
    """Of the units that it has."""


@dataclass
class Work:
    """A sub-model in training; `step` updates it in place."""

    task: Task
    cut: Cut
    seed: int
    inner: dense_model.Work
    scale: dict[str, float]
    """What weights are multiplied with in training."""


@dataclass(frozen=True)
class FedDrop:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    dropping: Dropping = Dropping()
    rescale: bool = option(True, "divide what is read from kept units by the part that is kept")
    sub_models: Literal["different", "same"] = option(
        "different", "each client of a round has a sub-model of its own, or all have one"
    )
    divisor: Literal["clients", "holders"] = option(
        "clients", "the mean change is that over all clients, or over those that have the weight"
    )
    adaptive: Adaptive = Adaptive()
    weighting: merge.Weighting = option("uniform", "what a client counts for in the mean")
    personal_model: Literal["sent", "now", "global"] = option(
        "sent", "a client's own: what it sent last, in the model it was cut from, or that of now"
    )
    accounting: Accounting = Accounting(uncharged="seed")

    def init(self, ctx: Ctx) -> Server:
        self.dropping.plan(trace(ctx.task))  # says what is wrong before any work
        params = ctx.task.init(ctx.common.fold("init"))
        trained = {name: params[name] for name in ctx.task.layout.parameters}
        return Server(params, self.adaptive.start(trained), {}, {})

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        key = ctx.key.fold("units")
        key = key.fold(client.id) if self.sub_models == "different" else key
        seed = key.digest() % 2**63
        return Down(self.dropping.cut(ctx.task, seed).take(state.params), seed)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        here: list[int] = []
        replies = self._replies(ctx, state, exchanges, here)
        mean = sparsity.masked_mean(replies, otherwise=state.params).params
        if not here:
            return state
        changes = {n: mean[n] - state.params[n] for n in ctx.task.layout.parameters}
        stepped, moments = self.adaptive.step(state.params, changes, state.moments)
        merged = Server({**state.params, **mean, **stepped}, moments, {}, {})
        return self._remembering(ctx, state, merged, here)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Whatever the sub-model, it comes back in the shapes that it was sent in."""
        return [Up(down.params)]

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        cut = self.dropping.cut(ctx.task, down.seed)
        small = cut.task(ctx.task)
        job = dense_model.begin(replace(ctx, task=small), self.training, down.params, None)
        scale = scales(cut) if self.rescale else {}
        return Job(Work(small, cut, down.seed, job.work, scale), job.epochs, job.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        def loss(params: Params, batch: Batch) -> Tensor:
            scaled = {name: params[name] * factor for name, factor in work.scale.items()}
            return work.task.loss({**params, **scaled}, batch)

        inner = work.inner
        value, grads = work.task.gradients(inner.params, batch, loss=loss)
        self.training.update(inner.params, grads, inner.velocity, inner.rate)
        inner.loss = inner.loss + value * len(batch.y)
        inner.examples += len(batch.y)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = dense_model.finish(replace(ctx, task=work.task), work.inner, "average")
        kept = Local(done.up.params, work.seed, ctx.round)
        return Result(
            up=done.up,
            local=None if self.personal_model == "global" else kept,
            masks=work.cut.masks(),
            metrics=done.metrics,
        )

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        if local is None:
            return state.params
        # Until a round is merged, its models are cut from that of now.
        whole = state.past.get(local.round, state.params)
        return self.dropping.cut(ctx.task, local.seed).give(local.params, whole)

    # parts ----------------------------------------------------------------------------------------

    def _replies(
        self,
        ctx: Ctx,
        state: Server,
        exchanges: Iterable[Exchange[Down, Up]],
        here: list[int],
    ) -> Iterator[tuple[Params, Masks, float]]:
        """Whole models with what each client has of them; `here` is told of the clients."""
        for exchange in exchanges:
            sent = exchange.down.params
            small = merge.fitting(exchange.up.params, sent)
            cut = self.dropping.cut(ctx.task, exchange.down.seed)
            own = cut.take({name: state.params[name] for name in ctx.task.layout.parameters})
            small = {**small, **unrounded(small, sent, own)}
            held = self._held(ctx, cut, small)
            here.append(exchange.client.id)
            share = merge.weight(exchange.client, self.weighting)
            yield cut.give(small, state.params), held, share

    def _held(self, ctx: Ctx, cut: Cut, small: Params) -> Masks:
        """What a client has a say in: what it holds, or all, with what it lacks unchanged.

        Running statistics say nothing where nothing ran.
        """
        names = small if self.divisor == "holders" else ctx.task.layout.buffers
        leaves = ctx.task.layout.leaves
        blank = {n: torch.zeros(leaves[n].shape, dtype=torch.bool) for n in names}
        return cut.give({n: torch.ones_like(small[n], dtype=torch.bool) for n in names}, blank)

    def _remembering(self, ctx: Ctx, state: Server, merged: Server, here: list[int]) -> Server:
        """Keeps the models that the last replies of all clients were cut from, where asked to."""
        if self.personal_model != "sent":
            return merged
        seen = {**state.seen, **dict.fromkeys(sorted(here), ctx.round)}
        known = {**state.past, ctx.round: state.params}
        past = {number: known[number] for number in sorted(set(seen.values()))}
        return replace(merged, seen=dict(sorted(seen.items())), past=past)


def scales(cut: Cut) -> dict[str, float]:
    """What weights are multiplied with so that fewer inputs say as much as all did before.

    Activations that a layer reads, behind norms and ReLU, are all divided by the part that is kept;
    since the layer is linear, that is the same as multiplying its weights.
    """
    before, now = cut.structure.layout, cut.layout
    return {
        name: before[name].shape[1] / now[name].shape[1]
        for name in cut.structure.wiring.columns
        if now[name].shape[1] != before[name].shape[1]
    }


def paper() -> FedDrop:
    """What gives the figures that the second paper prints: the first and last layer lose nothing.

    Of LeNet that leaves filters of the first convolution and inputs of the first linear layer, of a
    residual network the channels inside of blocks.
    """
    return FedDrop(dropping=Dropping(edge_rate=0.0))
