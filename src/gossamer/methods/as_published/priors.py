"""The Laplace and the mixture prior with the other readings of their paper, as options.

The paper sums over clients where an optimiser takes a step (eqs. 35 and 40), and does not say
whether the prior is divided by the client's examples, what becomes of running statistics, where
clients of a mixture start, or what a client's own model is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from gossamer.core import Batch, Ctx, Ensemble, Exchange, Job, Params, Result
from gossamer.fields import option
from gossamer.methods import laplace, mixture
from gossamer.methods.as_published.delegation import variants_of
from gossamer.methods.laplace import Laplace
from gossamer.methods.mixture import Mixture
from gossamer.methods.parts import dense_model

Regulariser = Literal["whole", "per-example"]
REGULARISER_HELP = "the prior beside the mean loss: as it is, or divided by the client's examples"


@variants_of(Laplace)
@dataclass(frozen=True)
class LaplaceVariants:
    pure: Laplace = Laplace()
    regulariser: Regulariser = option("whole", REGULARISER_HELP)
    reduction: Literal["mean", "sum"] = option(
        "mean", "signs of clients are averaged before the step, or summed"
    )
    buffers: Literal["median", "average"] = option(
        "median", "running statistics: their median over clients, or their mean"
    )
    personal_model: Literal["sent", "global"] = option(
        "sent", "a client's own model: what it sent last, or the server's"
    )

    def merge(
        self,
        ctx: Ctx,
        state: laplace.Server,
        exchanges: Iterable[Exchange[dense_model.Down, laplace.Up]],
    ) -> laplace.Server:
        replies = [(each.down.params, laplace.received(each.down, each.up)) for each in exchanges]
        if not replies:
            return state
        divisor = len(replies) if self.reduction == "mean" else 1
        merged = self.pure.merged(ctx, state, replies, divisor)
        if self.buffers == "median":
            return merged
        names = ctx.task.layout.buffers
        means = {n: torch.stack([reply[n] for _, reply in replies]).mean(0) for n in names}
        return replace(merged, params={**merged.params, **means})

    def step(self, ctx: Ctx, work: dense_model.Work, batch: Batch) -> dense_model.Work:
        if self.regulariser == "whole":
            return self.pure.step(ctx, work, batch)
        dense_model.step(ctx, self.pure.training, work, batch)
        most = work.rate * self.pure.strength / len(ctx.own.train)
        for name in ctx.task.layout.parameters:
            laplace.shrink(work.params[name], work.anchor[name], most)
        return work

    def finish(self, ctx: Ctx, work: dense_model.Work) -> Result[laplace.Up, laplace.Local]:
        done = self.pure.finish(ctx, work)
        return done if self.personal_model == "sent" else replace(done, local=None)


@dataclass(frozen=True)
class Chosen:
    """Which of the server's models fits the client's data best."""

    model: int


@dataclass
class Work:
    inner: mixture.Work
    best: int


@variants_of(Mixture)
@dataclass(frozen=True)
class MixtureVariants:
    pure: Mixture = Mixture()
    regulariser: Regulariser = option("whole", REGULARISER_HELP)
    model_start: Literal["loss", "random"] = option(
        "loss", "the model a client starts from: that of least loss on its data, or a random one"
    )
    reduction: Literal["mean", "sum"] = option(
        "mean", "changes of clients are averaged before the step, or summed"
    )
    personal_model: Literal["sent", "best", "global"] = option(
        "sent", "a client's own model: what it sent last, the server's of least loss, or all"
    )

    def merge(
        self,
        ctx: Ctx,
        state: mixture.Server,
        exchanges: Iterable[Exchange[mixture.Down, dense_model.Up]],
    ) -> mixture.Server:
        return self.pure.merged(ctx, state, exchanges, averaged=self.reduction == "mean")

    def begin(
        self, ctx: Ctx, down: mixture.Down, local: mixture.Local | Chosen | None
    ) -> Job[Work]:
        job, best = self.pure.begin(ctx, down, None), 0
        models = job.work.models
        if self.personal_model == "best":
            losses = [mixture.loss_on_own_data(ctx, each) for each in models]
            best = losses.index(min(losses))
        if self.model_start == "random":
            first = int(ctx.key.fold("start").numpy().integers(len(models)))
            job.work.inner.model.params = ctx.task.own(models[first])
        return Job(Work(job.work, best), job.epochs, job.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        pure, inner = self.pure, work.inner.inner
        if self.regulariser == "whole":
            pure.step(ctx, work.inner, batch)
            return work
        loss, grads = ctx.task.gradients(inner.params, batch)
        strength = 1 / len(ctx.own.train) * pure.strength
        for apart, chance in mixture.sources(inner.params, work.inner.models, pure.strength, grads):
            torch._foreach_add_(list(grads.values()), apart, alpha=strength * chance)
        dense_model.descend(pure.training, inner, batch, loss, grads)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[dense_model.Up, mixture.Local | Chosen]:
        done = self.pure.finish(ctx, work.inner)
        kept = {"sent": done.local, "best": Chosen(work.best), "global": None}
        return Result(done.up, kept[self.personal_model], metrics=done.metrics)

    def model(
        self, ctx: Ctx, state: mixture.Server, local: mixture.Local | Chosen | None
    ) -> Params | Ensemble:
        if isinstance(local, Chosen):
            return state.models[local.model]
        return self.pure.model(ctx, state, local)


ENTRIES: dict[str, Any] = {
    "laplace-variants": LaplaceVariants(),
    "mixture-variants": MixtureVariants(),
}
