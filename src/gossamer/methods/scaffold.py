"""SCAFFOLD: control variates take the drift of clients' data out of their steps.

Every client remembers the mean gradient of its last training, the server the mean over all clients.
A client adds the difference to each of its gradients, so that its steps go where all data lead.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: stochastic controlled averaging for
federated learning. ICML 2020. https://arxiv.org/abs/1910.06378

Differs from the paper: of the two ways to renew a client's control variate only option II is there,
which the paper's experiments use. It takes the path of plain SGD, so momentum is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from gossamer import merge
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import dense_model
from gossamer.optim import Training
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class Server:
    params: Params
    control: Params  # c, the mean of all clients' control variates


@dataclass(frozen=True)
class Local:
    control: Params  # c_i


@dataclass(frozen=True)
class Down:
    params: Params
    control: Params


@dataclass(frozen=True)
class Up:
    params: Params
    renewal: Params  # by how much c_i has changed


@dataclass
class Work:
    inner: dense_model.Work  # its anchor is x, the model as it was received
    control: Params  # c_i
    correction: Params  # c - c_i
    steps: int = 0


@dataclass(frozen=True)
class Scaffold:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    server_lr: float = option(1.0, "learning rate of the server", above=0)
    privacy: ClassVar[Privacy] = COVERED

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if self.training.momentum:
            raise ValueError(
                f"SCAFFOLD reads a client's mean gradient off its path, which momentum of "
                f"{self.training.momentum:g} would stretch; use `momentum=0`"
            )
        params = ctx.task.init(ctx.common.fold("init"))
        return Server(params, zeros(ctx, params))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params, state.control)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        participants: list[int] = []
        means = merge.mean_of_each(received(exchanges, participants))
        if not participants:
            return state
        models, renewals = means
        trained = set(ctx.task.layout.parameters)
        params = {
            name: torch.lerp(state.params[name], mean, self.server_lr) if name in trained else mean
            for name, mean in models.items()
        }
        share = len(participants) / max(ctx.pool, len(participants))
        control = {n: c + share * renewals[n] for n, c in state.control.items()}
        return Server(params, control)  # Algorithm 1, lines 16 and 17

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        job = dense_model.begin(ctx, self.training, down.params, None, anchored=True)
        control = local.control if local else zeros(ctx, down.params)
        correction = {name: down.control[name] - control[name] for name in control}
        return Job(Work(job.work, control, correction), job.epochs, job.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        loss, grads = ctx.task.gradients(work.inner.params, batch)
        for name, grad in grads.items():
            grad.add_(work.correction[name])
        dense_model.descend(self.training, work.inner, batch, loss, grads)  # line 10
        work.steps += 1
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        inner, renewal = work.inner, zeros(ctx, work.inner.params)
        for name in renewal if work.steps else ():
            path = inner.anchor[name] - inner.params[name]
            server = work.correction[name] + work.control[name]
            # Line 12, option II: c_i+ - c_i = (x - y) / (K eta) - c.
            renewal[name] = path / (work.steps * inner.rate) - server
        control = {name: old + renewal[name] for name, old in work.control.items()}
        metrics = {"loss": dense_model.mean_loss(inner)}
        return Result(Up(inner.params, renewal), Local(control), metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params


def zeros(ctx: Ctx, params: Params) -> Params:
    """Control variates before the first round, one for every trained number."""
    return {name: torch.zeros_like(params[name]) for name in ctx.task.layout.parameters}


def received(
    exchanges: Iterable[Exchange[Down, Up]], participants: list[int]
) -> Iterator[tuple[tuple[Params, Params], float]]:
    """Each client's model and the change of its control variate; lists the clients."""
    for exchange in exchanges:
        up, down = exchange.up, exchange.down
        participants.append(exchange.client.id)
        params = merge.fitting(up.params, down.params)
        yield (params, merge.fitting(up.renewal, down.control)), 1.0
