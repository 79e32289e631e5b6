"""FedDrop, federated dropout: each client trains a random sub-model.

The server draws the filters and neurons that a client drops, and sends the rest, a smaller dense
network. The client trains it as usual and sends it back, and the server inserts it into the full
model. Weights that a client did not have count as unchanged.

Caldas, Konečný, McMahan, Talwalkar: Expanding the reach of federated learning by reducing client
resource requirements. 2018. https://arxiv.org/abs/1812.07210
Louizos, Reisser, Soriaga, Welling: A graphical model perspective on federated learning. Workshop
paper, 2021 (its baseline; appendix C). A later text is https://arxiv.org/abs/2111.10192

Differs from the papers, which do not say: activations of the units that are kept are divided by the
fraction that is kept, in training only. Group norms count dropped channels as zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Key, Masks, Params, Result, sample
from gossamer.devices.declared import ANY_TIME, Timing
from gossamer.fields import option
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Up
from gossamer.methods.parts.server_optimiser import Moments, ServerOptimiser, unrounded
from gossamer.optim import Training
from gossamer.submodels import Cut, dropping, trace
from gossamer.submodels.dropping import Dropping, DropRates
from gossamer.task import Task
from gossamer.trust.declared import OWN_SUBMODELS, Privacy


@dataclass(frozen=True)
class Server:
    params: Params
    moments: Moments
    seen: dict[int, int]  # by client id: the round it took part in last
    past: dict[int, Params]  # the model at the start of these rounds, for clients' own models


@dataclass(frozen=True)
class Local:  # what the client sent last
    params: Params
    seed: int
    round: int


@dataclass(frozen=True)
class Down:
    params: Params  # of the sub-model
    seed: int  # from which its units are drawn


@dataclass
class Work:
    task: Task  # of training the sub-model
    cut: Cut
    seed: int
    inner: dense_model.Work
    scale: dict[str, float]  # by which weights are multiplied in training


@dataclass(frozen=True)
class FedDrop:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    dropping: DropRates = Dropping()  # Louizos et al., appendix C
    adaptive: ServerOptimiser = ServerOptimiser()
    weighting: merge.Weighting = option("uniform", "how client updates are weighted")
    accounting: Accounting = Accounting(uncharged="seed")
    privacy: ClassVar[Privacy] = OWN_SUBMODELS
    timing: ClassVar[Timing] = ANY_TIME
    units_move: ClassVar[bool] = True

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        dropping.plan(self.dropping, trace(ctx.task))  # refuses a model that it cannot cut
        params = ctx.task.init(ctx.common.fold("init"))
        trained = {name: params[name] for name in ctx.task.layout.parameters}
        return Server(params, self.adaptive.start(trained), {}, {})

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return self.sub_model(ctx, state, ctx.key.fold("units").fold(client.id))

    def sub_model(self, ctx: Ctx, state: Server, key: Key) -> Down:
        seed = key.digest() % 2**63
        return Down(dropping.cut(self.dropping, ctx.task, seed).take(state.params), seed)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        # Running statistics are averaged over the clients that have them, weights over all.
        return self.merge_over(ctx, state, exchanges, ctx.task.layout.buffers)

    def merge_over(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]], names: Sequence[str]
    ) -> Server:
        """A step along the mean change, where `names` are averaged over those that hold them."""
        ids: list[int] = []
        replies = self.received(ctx, state, exchanges, names, ids)
        mean = sparsity.masked_mean(replies, otherwise=state.params).params
        if not ids:
            return state
        changes = {n: mean[n] - state.params[n] for n in ctx.task.layout.parameters}
        stepped, moments = self.adaptive.step(state.params, changes, state.moments)
        seen = {**state.seen, **dict.fromkeys(sorted(ids), ctx.round)}
        known = {**state.past, ctx.round: state.params}
        past = {number: known[number] for number in sorted(set(seen.values()))}
        params = {**state.params, **mean, **stepped}
        return Server(params, moments, dict(sorted(seen.items())), past)

    def received(
        self,
        ctx: Ctx,
        state: Server,
        exchanges: Iterable[Exchange[Down, Up]],
        names: Sequence[str],
        ids: list[int],
    ) -> Iterator[tuple[Params, Masks, float]]:
        """Full models with the clients' sub-models inserted; appends the clients to `ids`."""
        layout = ctx.task.layout
        for exchange in exchanges:
            sent = exchange.down.params
            small = merge.fitting(exchange.up.params, sent)
            cut = dropping.cut(self.dropping, ctx.task, exchange.down.seed)
            own = cut.take({name: state.params[name] for name in layout.parameters})
            small = {**small, **unrounded(small, sent, own)}
            none = {n: torch.zeros(layout.leaves[n].shape, dtype=torch.bool) for n in names}
            held = cut.give({n: torch.ones_like(small[n], dtype=torch.bool) for n in none}, none)
            ids.append(exchange.client.id)
            weight = merge.weight(exchange.client, self.weighting)
            yield cut.give(small, state.params), held, weight

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return [Up(down.params)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        cut = dropping.cut(self.dropping, ctx.task, down.seed)
        small = cut.task(ctx.task)
        job = dense_model.begin(replace(ctx, task=small), self.training, down.params, None)
        return Job(Work(small, cut, down.seed, job.work, scales(cut)), job.epochs, job.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        params = work.inner.params
        scaled = {name: params[name] * factor for name, factor in work.scale.items()}
        value, grads = work.task.gradients({**params, **scaled}, batch)
        for name, factor in work.scale.items():
            grads[name].mul_(factor)
        dense_model.descend(self.training, work.inner, batch, value, grads)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = dense_model.finish(replace(ctx, task=work.task), work.inner, "average")
        local = Local(done.up.params, work.seed, ctx.round)
        return Result(done.up, local, work.cut.masks(), metrics=done.metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """The server's model; or what a client sent last, in the model that it was cut from."""
        if local is None:
            return state.params
        # Until a round is merged, its sub-models are cut from the current model.
        whole = state.past.get(local.round, state.params)
        return dropping.cut(self.dropping, ctx.task, local.seed).give(local.params, whole)


def scales(cut: Cut) -> dict[str, float]:
    """The factors of weights that make up for dropped inputs, as in inverted dropout.

    All inputs of a layer are divided by the fraction that is kept; since the layer is linear, its
    weights may be multiplied instead.
    """
    before, now = cut.structure.layout, cut.layout
    return {
        name: before[name].shape[1] / now[name].shape[1]
        for name in cut.structure.wiring.columns
        if now[name].shape[1] != before[name].shape[1]
    }


def paper() -> FedDrop:
    """The rates behind the figures of Louizos et al.: the first and last layer keep all inputs.

    LeNet then drops filters of the first convolution and inputs of the first linear layer; a
    residual network drops channels inside of blocks.
    """
    return FedDrop(dropping=Dropping(edge_rate=0.0))
