"""FedOpt: the clients' mean change is a gradient, and the server takes a step of Adam along it.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive federated optimization.
ICLR 2021. https://arxiv.org/abs/2003.00295

Two parameterisations of Adam are in use and must not be confused. Reddi's has no bias correction,
an epsilon of 1e-3 and a second moment that starts at epsilon squared. Kingma's, which FedSparse
uses, corrects the bias and has an epsilon of 1e-8. They differ most on weights that change little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from gossamer import merge
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.devices.declared import ANY_TIME, Timing
from gossamer.fields import option
from gossamer.methods.parts import dense_model, server_optimiser
from gossamer.methods.parts.dense_model import Buffers, Down, Local, LocalMoments, Up, Work
from gossamer.methods.parts.server_optimiser import Moments, Optimizer, ServerOptimiser
from gossamer.optim import Training
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class Server:
    params: Params
    moments: Moments


@dataclass(frozen=True)
class FedOpt:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    server: Optimizer = option("adam", "optimiser of the server")
    server_lr: float = option(1e-3, "learning rate of the server", above=0)
    beta1: float = option(0.9, "decay of the first moment (momentum, for sgd)", least=0, below=1)
    beta2: float = option(0.999, "decay of the second moment", least=0, below=1)
    eps: float = option(1e-8, "added to the root of the second moment (tau)", above=0)
    bias_correction: bool = option(True, "correct the bias of Adam's moments, as Kingma and Ba do")
    second_start: float = option(0.0, "initial second moment; Reddi: eps squared", least=0)
    weighting: merge.Weighting = option("uniform", "how client updates are weighted")
    buffers: Buffers = option("average", dense_model.BUFFERS_HELP)
    personal_model: Literal["global", "sent"] = option(
        "global", "a client's own model: the server's, or the one the client sent last"
    )
    privacy: ClassVar[Privacy] = COVERED
    timing: ClassVar[Timing] = ANY_TIME
    keeps_moments: ClassVar[bool] = True

    @property
    def adaptive(self) -> ServerOptimiser:
        moments = (self.beta1, self.beta2, self.eps, self.bias_correction, self.second_start)
        return ServerOptimiser(self.server, self.server_lr, *moments)

    def init(self, ctx: Ctx) -> Server:
        params = ctx.task.init(ctx.common.fold("init"))
        trained = {name: params[name] for name in ctx.task.layout.parameters}
        return Server(params, self.adaptive.start(trained))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(dense_model.shared(ctx, state.params, self.buffers))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        replies = (unrounded(state, exchange) for exchange in exchanges)
        mean = dense_model.average(replies, self.weighting)
        if not mean:
            return state
        changes = {name: mean[name] - state.params[name] for name in state.moments.first}
        stepped, moments = self.adaptive.step(state.params, changes, state.moments)  # Algorithm 2
        return Server({**state.params, **mean, **stepped}, moments)

    def begin(self, ctx: Ctx, down: Down, local: Local | LocalMoments | None) -> Job[Work]:
        return dense_model.begin(ctx, self.training, down.params, local)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local | LocalMoments]:
        result = dense_model.finish(ctx, work, self.buffers)
        if self.personal_model != "sent":
            return result
        # The client keeps the whole model the way it may keep its own buffers.
        local = replace(result.local, buffers=work.params) if result.local else Local(work.params)
        return replace(result, local=local)

    def model(self, ctx: Ctx, state: Server, local: Local | LocalMoments | None) -> Params:
        return dense_model.model(state.params, local)


def unrounded(state: Server, exchange: Exchange[Down, Up]) -> Exchange[Down, Up]:
    """The exchange as if the server's weights had not been rounded on their way down."""
    sent = exchange.down.params
    reply = merge.fitting(exchange.up.params, sent)
    weights = {name: state.params[name] for name in state.moments.first}
    return replace(exchange, up=Up({**reply, **server_optimiser.unrounded(reply, sent, weights)}))


def reddi(server: Optimizer) -> FedOpt:
    """The parameterisation of the paper that introduced it."""
    beta1 = 0.0 if server == "adagrad" else 0.9
    steps = FedOpt(server=server, server_lr=0.01, beta1=beta1, beta2=0.99, eps=1e-3)
    return replace(steps, bias_correction=False, second_start=1e-6, weighting="samples")
