"""FedAvg: clients train the server's model on their own data; the server averages the results.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-efficient learning of deep networks
from decentralized data. AISTATS 2017. https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.devices.declared import ANY_TIME, Timing
from gossamer.fields import option
from gossamer.merge import Weighting
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Buffers, Down, Local, LocalMoments, Up, Work
from gossamer.optim import Training
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class Server:
    params: Params


@dataclass(frozen=True)
class FedAvg:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    weighting: Weighting = option("samples", "how client updates are weighted")
    buffers: Buffers = option("average", dense_model.BUFFERS_HELP)
    privacy: ClassVar[Privacy] = COVERED
    timing: ClassVar[Timing] = ANY_TIME
    keeps_moments: ClassVar[bool] = True

    def init(self, ctx: Ctx) -> Server:
        return Server(ctx.task.init(ctx.common.fold("init")))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(dense_model.shared(ctx, state.params, self.buffers))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        mean = dense_model.average(exchanges, self.weighting)  # Algorithm 1, w_{t+1}
        return Server({**state.params, **mean})

    def begin(self, ctx: Ctx, down: Down, local: Local | LocalMoments | None) -> Job[Work]:
        return dense_model.begin(ctx, self.training, down.params, local)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)  # ClientUpdate of Algorithm 1

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local | LocalMoments]:
        return dense_model.finish(ctx, work, self.buffers)

    def model(self, ctx: Ctx, state: Server, local: Local | LocalMoments | None) -> Params:
        return dense_model.model(state.params, local)
