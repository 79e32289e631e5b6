"""Ditto: FedAvg, and beside it every client trains a model of its own that is held near the global.

What travels is FedAvg's. A personal model v minimises the client's loss plus lambda / 2 times the
squared distance from the received model: lambda 0 is training alone, a large one the global model.

Li, Hu, Beirami, Smith: Ditto: fair and robust federated learning through personalization.
ICML 2021. https://arxiv.org/abs/2012.04221

Differs from the authors' code: the personal model trains after the global one, as in Algorithm 1,
and not in turns on the same batches; clients are drawn uniformly and weighted by their examples,
where the code draws them by their examples and weights all alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gossamer.arithmetic.model import Model
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.devices.declared import WHOLE_JOBS, Timing
from gossamer.fields import option
from gossamer.merge import Weighting
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Down, Up
from gossamer.optim import Training
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class Local:
    params: Params  # the personal model


@dataclass
class Work:
    inner: dense_model.Work  # the global model; its anchor is the model as it was received
    own: Model


@dataclass(frozen=True)
class Ditto:
    clients: int = option(10, "clients per round", least=1)
    strength: float = option(1.0, "pull of the personal to the global model (lambda)", least=0)
    own_epochs: float = option(1.0, "local epochs of the personal model", least=0)
    training: Training = Training()
    weighting: Weighting = option("samples", "how client updates are weighted")
    privacy: ClassVar[Privacy] = COVERED
    timing: ClassVar[Timing] = WHOLE_JOBS

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        return Server(ctx.task.init(ctx.common.fold("init")))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        return Server({**state.params, **dense_model.average(exchanges, self.weighting)})

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        job = dense_model.begin(ctx, self.training, down.params, None, anchored=True)
        own = local.params if local else ctx.task.init(ctx.common.fold("init"))
        work = Work(job.work, Model(ctx.task, ctx.task.own(own)))
        return Job(work, job.epochs + self.own_epochs, job.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        inner = work.inner
        if batch.step < self.training.epochs * batch.per_epoch:  # Algorithm 1: the objective G
            dense_model.step(ctx, self.training, inner, batch)
        else:  # v <- v - eta (grad F(v) + lambda (v - w^t))
            work.own.step(batch, self.training, inner.rate, self.strength, inner.anchor)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        metrics = {"loss": dense_model.mean_loss(work.inner)}
        return Result(Up(work.inner.params), Local(work.own.params), metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """The global model, or a client's own."""
        return local.params if local else state.params
