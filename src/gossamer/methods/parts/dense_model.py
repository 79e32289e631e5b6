"""The client of every dense method: it receives a whole model, trains it by SGD and sends it back.

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
from gossamer.optim import Training

Buffers = Literal["average", "local"]
BUFFERS_HELP = "BatchNorm statistics: averaged, or kept by each client"


@dataclass(frozen=True)
class Local:
    """BatchNorm statistics that a client keeps to itself."""

    buffers: Params


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
    ctx: Ctx, training: Training, params: Params, local: Local | None, anchored: bool = False
) -> Job[Work]:
    """Starts from the received model; `anchored` keeps a copy of this start in `work.anchor`."""
    missing = {name for name in ctx.task.layout.leaves if name not in params}
    if missing:
        buffers = local.buffers if local else ctx.task.buffers()
        params = {**params, **{name: buffers[name] for name in missing}}
    own = ctx.task.own(params)
    anchor = ctx.task.own(params) if anchored else {}
    work = Work(Model(ctx.task, own), training.rate(ctx), anchor)
    return Job(work, training.epochs, training.batch)


def step(ctx: Ctx, training: Training, work: Work, batch: Batch, prox: float = 0.0) -> Work:
    """One step of SGD, pulled towards the anchor with strength `prox`."""
    loss = work.model.step(batch, training, work.rate, prox, work.anchor)
    record(work, loss, batch)
    return work


def descend(training: Training, work: Work, batch: Batch, loss: Tensor, grads: Params) -> None:
    """One step of SGD along gradients that are given."""
    training.update(work.params, grads, work.model.velocity, work.rate)
    record(work, loss, batch)


def record(work: Work, loss: Tensor | float, batch: Batch) -> None:
    """Adds a batch to the mean training loss."""
    work.loss = work.loss + loss * len(batch.y)
    work.examples += len(batch.y)


def mean_loss(work: Work) -> float:
    """The mean training loss of the round."""
    return float(work.loss) / max(work.examples, 1)


def finish(ctx: Ctx, work: Work, buffers: Buffers) -> Result[Up, Local]:
    """Sends the model; keeps the BatchNorm statistics if they are the client's own."""
    own = {name: work.params[name] for name in ctx.task.layout.buffers}
    return Result(
        up=Up(shared(ctx, work.params, buffers)),
        local=Local(own) if buffers == "local" and own else None,
        metrics={"loss": mean_loss(work)},
    )


def average(exchanges: Iterable[Exchange[Down, Up]], weighting: merge.Weighting) -> Params:
    """The weighted mean of the clients' models; empty if nobody replied."""
    return merge.mean(
        (merge.fitting(each.up.params, each.down.params), merge.weight(each.client, weighting))
        for each in exchanges
    )


def model(params: Params, local: Local | None) -> Params:
    """The global model, with the client's own BatchNorm statistics where it has them."""
    return {**params, **local.buffers} if local else params
