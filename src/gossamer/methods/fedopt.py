"""FedOpt: the clients' mean change is a gradient, and the server takes a step of Adam along it.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive federated optimization.
ICLR 2021. https://arxiv.org/abs/2003.00295

Two parameterisations of Adam are in use and must not be mixed. Reddi's own has no bias correction,
an epsilon of 1e-3 and a second moment that starts at its square; Kingma's, which FedSparse uses,
corrects the bias and has an epsilon of 1e-8. On coordinates that change little they differ hugely.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gossamer import merge
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Buffers, Down, Local, Up, Work
from gossamer.methods.parts.server_optimiser import Adaptive, Moments, Optimizer, unrounded
from gossamer.optim import Training


@dataclass(frozen=True)
class Server:
    params: Params
    first: Params
    second: Params
    steps: int


@dataclass(frozen=True)
class FedOpt:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    server: Optimizer = option("adam", "optimiser of the server")
    server_lr: float = option(1e-3, "learning rate of the server", above=0)
    beta1: float = option(0.9, "decay of the first moment (momentum, for sgd)", least=0, below=1)
    beta2: float = option(0.999, "decay of the second moment", least=0, below=1)
    eps: float = option(1e-8, "added to the root of the second moment", above=0)
    bias_correction: bool = option(True, "divide Adam's moments by their missing mass, as Kingma")
    second_start: float = option(0.0, "where the second moment starts; Reddi: eps squared", least=0)
    weighting: merge.Weighting = option("uniform", "what a client counts for in the mean")
    buffers: Buffers = option("average", "running statistics: averaged, or kept by each client")
    personal_model: Literal["global", "sent"] = option(
        "global", "a client's own model: that of the server, or what the client sent last"
    )

    def init(self, ctx: Ctx) -> Server:
        params = ctx.task.init(ctx.common.fold("init"))
        trained = {name: params[name] for name in ctx.task.layout.parameters}
        moments = self._rule.start(trained)
        return Server(params, moments.first, moments.second, moments.steps)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(dense_model.shared(ctx, state.params, self.buffers))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        mean = dense_model.average((_counted(state, each) for each in exchanges), self.weighting)
        if not mean:
            return state
        changes = {name: mean[name] - state.params[name] for name in state.first}
        moments = Moments(state.first, state.second, state.steps)
        stepped, moments = self._rule.step(state.params, changes, moments)
        params = {**state.params, **mean, **stepped}
        return Server(params, moments.first, moments.second, moments.steps)

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        return dense_model.begin(ctx, self.training, down.params, local)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = dense_model.finish(ctx, work, self.buffers)
        # All tensors are then its own, as running statistics are with local buffers.
        return replace(done, local=Local(work.params)) if self.personal_model == "sent" else done

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return dense_model.model(state.params, local)

    @property
    def _rule(self) -> Adaptive:
        return Adaptive(
            self.server,
            self.server_lr,
            self.beta1,
            self.beta2,
            self.eps,
            self.bias_correction,
            self.second_start,
        )


def _counted(state: Server, exchange: Exchange[Down, Up]) -> Exchange[Down, Up]:
    """An exchange in which a client that moved nothing has the very weights of the server."""
    sent = exchange.down.params
    found = merge.fitting(exchange.up.params, sent)
    own = unrounded(found, sent, {name: state.params[name] for name in state.first})
    return replace(exchange, up=Up({**found, **own}))


def reddi(server: Optimizer, server_lr: float = 0.01) -> FedOpt:
    """The parameterisation of the paper that introduced it."""
    return FedOpt(
        server=server,
        server_lr=server_lr,
        beta1=0.0 if server == "adagrad" else 0.9,
        beta2=0.99,
        eps=1e-3,
        bias_correction=False,
        second_start=1e-6,
        weighting="samples",
    )
