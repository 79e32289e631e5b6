"""FedProx: FedAvg whose clients are pulled back towards the server's model while they train.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks.
MLSys 2020. https://arxiv.org/abs/1812.06127

Differs from others' code: the proximal term has a gradient. Two published implementations compute
it from detached tensors, so that their FedProx is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.devices.declared import ANY_TIME, Timing
from gossamer.fields import option
from gossamer.merge import Weighting
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Buffers, Down, Local, LocalMoments, Up, Work
from gossamer.optim import Training
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class FedProx:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    mu: float = option(0.01, "weight of the proximal term, mu / 2 * |w - w_server|^2", least=0)
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
        return Server({**state.params, **dense_model.average(exchanges, self.weighting)})

    def begin(self, ctx: Ctx, down: Down, local: Local | LocalMoments | None) -> Job[Work]:
        return dense_model.begin(ctx, self.training, down.params, local, anchored=True)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        # The objective h_k of Algorithm 2.
        return dense_model.step(ctx, self.training, work, batch, prox=self.mu)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local | LocalMoments]:
        return dense_model.finish(ctx, work, self.buffers)

    def model(self, ctx: Ctx, state: Server, local: Local | LocalMoments | None) -> Params:
        return dense_model.model(state.params, local)
