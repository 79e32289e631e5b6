"""The client of every dense method: it receives a whole model, trains it and sends it back.

FedAvg and its relatives differ at the server or in one term of the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from gossamer import merge
from gossamer.arithmetic.model import Model
from gossamer.core import Batch, Ctx, Exchange, Job, Params, Result
from gossamer.optim import Moments, Training

Buffers = Literal["average", "local"]
BUFFERS_HELP = "BatchNorm statistics: averaged, or kept by each client"


@dataclass(frozen=True)
class Local:
    """BatchNorm statistics that a client keeps to itself."""

    buffers: Params


@dataclass(frozen=True)
class LocalMoments:
    """The same, and the moments of the client's optimiser, by parameter."""

    buffers: Params
    first: Params
    second: Params
    steps: int


@dataclass(frozen=True)
class Down:
    params: Params


@dataclass(frozen=True)
class Up:
    params: Params


@dataclass
class Work:
    """A model in training; `step` updates it in place."""

    model: Model
    rate: float
    anchor: Params = field(default_factory=dict)
    """A copy of the model the client started from; empty unless `begin` was asked for it."""
    loss: Tensor | float = 0.0
    examples: int = 0
    keeps: bool = False
    """Whether the client keeps the moments of its optimiser."""

    @property
    def params(self) -> Params:
        """All tensors of the model; they may be changed in place."""
        return self.model.params


def shared(ctx: Ctx, params: Params, buffers: Buffers) -> Params:
    """The tensors that travel: all of them, or all but the BatchNorm statistics."""
    if buffers == "average":
        return params
    return {name: params[name] for name in ctx.task.layout.parameters}


def begin(
    ctx: Ctx,
    training: Training,
    params: Params,
    local: Local | LocalMoments | None,
    anchored: bool = False,
) -> Job[Work]:
    """Starts from the received model; `anchored` keeps a copy of this start in `work.anchor`."""
    missing = {name for name in ctx.task.layout.leaves if name not in params}
    if missing:
        buffers = (local.buffers if local else {}) or ctx.task.buffers()
        params = {**params, **{name: buffers[name] for name in missing}}
    own = ctx.task.own(params)
    anchor = ctx.task.own(params) if anchored else {}
    moments = _moments(ctx, local) if isinstance(local, LocalMoments) else None
    model, keeps = Model(ctx.task, own, moments=moments), training.moments == "kept"
    work = Work(model, training.rate(ctx), anchor, keeps=keeps)
    return Job(work, training.epochs, training.batch)


def step(ctx: Ctx, training: Training, work: Work, batch: Batch, prox: float = 0.0) -> Work:
    """One step of the optimiser, pulled towards the anchor with strength `prox`."""
    loss = work.model.step(batch, training, work.rate, prox, work.anchor)
    record(work, loss, batch)
    return work


def descend(training: Training, work: Work, batch: Batch, loss: Tensor, grads: Params) -> None:
    """One step of the optimiser along gradients that are given."""
    training.update(work.params, grads, work.model.moments, work.rate)
    record(work, loss, batch)


def record(work: Work, loss: Tensor | float, batch: Batch) -> None:
    """Adds a batch to the mean training loss."""
    count = batch.y.shape[0]  # len() of a tensor takes longer than the sum
    work.loss = work.loss + loss * count
    work.examples += count


def mean_loss(work: Work) -> float:
    """The mean training loss of the round."""
    return float(work.loss) / max(work.examples, 1)


def finish(ctx: Ctx, work: Work, buffers: Buffers) -> Result[Up, Local | LocalMoments]:
    """Sends the model; keeps what is the client's own: BatchNorm statistics, moments."""
    own = {name: work.params[name] for name in ctx.task.layout.buffers}
    own = own if buffers == "local" else {}
    local: Local | LocalMoments | None = Local(own) if own else None
    if work.keeps:
        state = work.model.moments
        names = ctx.task.layout.parameters
        first = {n: each for n, each in zip(names, state.first, strict=False) if each is not None}
        local = LocalMoments(own, first, dict(zip(names, state.second, strict=False)), state.steps)
    return Result(
        up=Up(shared(ctx, work.params, buffers)),
        local=local,
        metrics={"loss": mean_loss(work)},
    )


def _moments(ctx: Ctx, local: LocalMoments) -> Moments:
    """A private copy of what the client's optimiser remembers."""
    names = ctx.task.layout.parameters
    first, second = ctx.task.own(local.first), ctx.task.own(local.second)
    listed = [first.get(name) for name in names] if first else []
    return Moments(listed, [second[name] for name in names if name in second], local.steps)


def average(exchanges: Iterable[Exchange[Down, Up]], weighting: merge.Weighting) -> Params:
    """The weighted mean of the clients' models; empty if nobody replied."""
    return merge.mean(
        (merge.fitting(each.up.params, each.down.params), merge.weight(each.client, weighting))
        for each in exchanges
    )


def model(params: Params, local: Local | LocalMoments | None) -> Params:
    """The global model, with the client's own BatchNorm statistics where it has them."""
    return {**params, **local.buffers} if local else params
