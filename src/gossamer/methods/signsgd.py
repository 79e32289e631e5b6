"""signSGD with majority vote: clients send the signs of their gradients, one bit a weight.

The server moves every weight by a fixed amount, in the direction that most clients have. Signs of
gradients are taken after one batch, or of the mean over more batches.

Bernstein, Wang, Azizzadenesheli, Anandkumar: signSGD: compressed optimisation for non-convex
problems. ICML 2018. https://arxiv.org/abs/1802.04434

Differs from the paper: the vote comes down as the new model, since clients keep none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from gossamer import merge
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.trust.declared import Privacy
from gossamer.wire import Levels, WireError

ONE_STEP = 1e-6
"""Epochs of a job of a single step."""


@dataclass(frozen=True)
class Server:
    params: Params


@dataclass(frozen=True)
class Down:
    params: Params


@dataclass
class Work:
    params: Params
    total: Params = field(default_factory=dict)  # of the gradients
    loss: Tensor | float = 0.0
    examples: int = 0


@dataclass(frozen=True)
class Up:
    signs: Levels  # 1 where the gradient is not negative
    buffers: Params


@dataclass(frozen=True)
class SignSGD:
    clients: int = option(10, "clients per round, an odd number to avoid ties", least=1)
    lr: float = option(0.001, "how far the vote moves every weight (delta)", above=0)
    weight_decay: float = option(0.0, "weight decay (lambda)", least=0)
    batch: int = option(64, "examples in a mini-batch", least=1)
    epochs: float = option(ONE_STEP, "local epochs whose mean gradient is voted on", above=0)
    privacy: ClassVar[Privacy] = Privacy(refused="sends signs, which noise cannot cover")

    def init(self, ctx: Ctx) -> Server:
        return Server(ctx.task.init(ctx.common.fold("init")))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        mean = merge.mean((self.vote(ctx, each.up), 1.0) for each in exchanges)
        if not mean:
            return state
        params = {**state.params, **mean}
        for name in ctx.task.layout.parameters:
            old = state.params[name]
            # Algorithm 3: x <- x - delta (sign of the sum of signs + lambda x)
            params[name] = old - self.lr * (mean[name].sign() + self.weight_decay * old)
        return Server(params)

    def vote(self, ctx: Ctx, up: Up) -> Params:
        """A client's signs as -1 and 1, and its running statistics."""
        if up.signs.values.keys() != set(ctx.task.layout.parameters):
            raise WireError("a reply has the signs of other tensors than the model's")
        return {**{n: 2.0 * each - 1.0 for n, each in up.signs.values.items()}, **up.buffers}

    def begin(self, ctx: Ctx, down: Down, local: None) -> Job[Work]:
        return Job(Work(ctx.task.own(down.params)), self.epochs, self.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        loss, gradients = ctx.task.gradients(work.params, batch)
        for name, gradient in gradients.items():
            known = work.total.get(name)
            work.total[name] = gradient.clone() if known is None else known + gradient
        work.loss = work.loss + loss * len(batch.y)
        work.examples += len(batch.y)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, None]:
        layout = ctx.task.layout
        zero = torch.zeros(())
        totals = {name: work.total.get(name, zero) for name in layout.parameters}
        signs = {n: (t >= 0).expand(work.params[n].shape).char() for n, t in totals.items()}
        buffers = {name: work.params[name] for name in layout.buffers}
        loss = float(work.loss) / max(work.examples, 1)
        return Result(Up(Levels(signs, 0, 1), buffers), metrics={"loss": loss})

    def model(self, ctx: Ctx, state: Server, local: None) -> Params:
        return state.params
