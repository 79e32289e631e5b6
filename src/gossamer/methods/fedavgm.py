"""FedAvgM: FedAvg with momentum at the server, which stabilises training on non-IID clients.

Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual
classification. 2019. https://arxiv.org/abs/1909.06335
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from gossamer import merge
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.devices.declared import ANY_TIME, Timing
from gossamer.fields import option
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Buffers, Down, Local, LocalMoments, Up, Work
from gossamer.optim import Training
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class Server:
    params: Params
    velocity: Params


@dataclass(frozen=True)
class FedAvgM:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    server_momentum: float = option(0.9, "momentum of the server's step", least=0, below=1)
    server_lr: float = option(1.0, "learning rate of the server", above=0)
    nesterov: bool = option(False, "use Nesterov momentum")
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    buffers: Buffers = option("average", dense_model.BUFFERS_HELP)
    privacy: ClassVar[Privacy] = COVERED
    timing: ClassVar[Timing] = ANY_TIME
    keeps_moments: ClassVar[bool] = True

    def init(self, ctx: Ctx) -> Server:
        params = ctx.task.init(ctx.common.fold("init"))
        return Server(params, {n: torch.zeros_like(params[n]) for n in ctx.task.layout.parameters})

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(dense_model.shared(ctx, state.params, self.buffers))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        mean = dense_model.average(exchanges, self.weighting)
        if not mean:
            return state
        params, velocity = {**state.params, **mean}, {}
        for name, old in state.velocity.items():
            change = state.params[name] - mean[name]
            velocity[name] = self.server_momentum * old + change  # v <- beta v + dw
            ahead = change + self.server_momentum * velocity[name]
            step = ahead if self.nesterov else velocity[name]
            params[name] = state.params[name] - self.server_lr * step  # w <- w - v
        return Server(params, velocity)

    def begin(self, ctx: Ctx, down: Down, local: Local | LocalMoments | None) -> Job[Work]:
        return dense_model.begin(ctx, self.training, down.params, local)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local | LocalMoments]:
        return dense_model.finish(ctx, work, self.buffers)

    def model(self, ctx: Ctx, state: Server, local: Local | LocalMoments | None) -> Params:
        return dense_model.model(state.params, local)
