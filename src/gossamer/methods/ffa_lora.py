"""FFA-LoRA: of every adapter B A, the random matrix A stays as it is, and only B is trained.

The mean of products is then the product of means, which it is not where both are averaged. A is
common knowledge and never travels: half of the communication of FedAvg with adapters.

Sun, Li, Li, Ding: Improving LoRA in privacy-preserving federated learning. ICLR 2024.
https://arxiv.org/abs/2403.12313
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

import torch

from gossamer import merge
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.devices.declared import ANY_TIME, Timing
from gossamer.fields import option
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Down, Up, Work
from gossamer.optim import Training
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class Server:
    params: Params  # without the matrices A


@dataclass(frozen=True)
class FFALoRA:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    fixed: str = option("*lora_A*", "tensors that keep their first values, by a pattern")
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    privacy: ClassVar[Privacy] = COVERED
    timing: ClassVar[Timing] = ANY_TIME

    def init(self, ctx: Ctx) -> Server:
        return Server(self.shared(ctx.task.init(ctx.common.fold("init"))))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        return Server({**state.params, **dense_model.average(exchanges, self.weighting)})

    def begin(self, ctx: Ctx, down: Down, local: None) -> Job[Work]:
        params = self.whole(ctx, down.params)
        job = dense_model.begin(ctx, self.training, params, None)
        names = [name for name in ctx.task.layout.parameters if name not in down.params]
        job.work.model.fixed = {n: torch.ones_like(params[n], dtype=torch.bool) for n in names}
        return job

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, None]:
        untrained = {name: ~each for name, each in work.model.fixed.items()}
        metrics = {"loss": dense_model.mean_loss(work)}
        return Result(Up(self.shared(work.params)), trained=untrained, metrics=metrics)

    def model(self, ctx: Ctx, state: Server, local: None) -> Params:
        return self.whole(ctx, state.params)

    def shared(self, params: Params) -> Params:
        """What travels: all but A."""
        return {n: each for n, each in params.items() if not fnmatchcase(n, self.fixed)}

    def whole(self, ctx: Ctx, params: Params) -> Params:
        """The model with A, which everybody derives from the seed or has in the module."""
        return {**ctx.task.init(ctx.common.fold("init")), **params}
