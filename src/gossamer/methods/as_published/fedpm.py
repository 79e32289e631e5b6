"""FedPM with the ways of its authors' code, and a deterministic model for evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gossamer import optim, sparsity
from gossamer.core import Batch, Ctx, Job, Params, Result
from gossamer.fields import option
from gossamer.methods import fedpm
from gossamer.methods.as_published.delegation import variants_of
from gossamer.methods.fedpm import Down, FedPM, Server, Up, Work
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.server_optimiser import Moments


@dataclass(frozen=True)
class Local:
    buffers: Params
    moments: Moments | None


@variants_of(FedPM)
@dataclass(frozen=True)
class FedPMVariants:
    pure: FedPM = FedPM()
    client_moments: Literal["fresh", "keep"] = option(
        "fresh", "clients' Adam starts afresh in each round, or is kept, as in the authors' code"
    )
    official_ste: bool = option(
        False, "multiply the gradient of a score by its probability, as in the authors' code"
    )
    test_mask: Literal["sample", "threshold"] = option(
        "sample", "the model evaluated: one draw, or the weights with a probability above 0.5"
    )

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        job = self.pure.begin(ctx, down, statistics(local))
        if local and (kept := local.moments):
            first, second = ctx.task.own(kept.first), ctx.task.own(kept.second)
            job.work.moments = Moments(first, second, kept.steps)
        return job

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        if not self.official_ste:
            return self.pure.step(ctx, work, batch)
        grads = fedpm.score_gradients(ctx, work, batch)
        grads = {name: grad * work.scores[name].sigmoid() for name, grad in grads.items()}
        if self.pure.training.clip:
            optim.clip(list(grads.values()), self.pure.training.clip)
        descent = {name: grad.neg_() for name, grad in grads.items()}
        work.scores, work.moments = work.adam.step(work.scores, descent, work.moments)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = self.pure.finish(ctx, work)
        buffers = done.local.buffers if done.local else {}
        moments = work.moments if self.client_moments == "keep" else None
        local = Local(buffers, moments) if buffers or moments else None
        return Result(done.up, local, done.masks, done.trained, done.metrics)

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        model = self.pure.model(ctx, state, statistics(local))
        if self.test_mask == "sample":
            return model
        masks = fedpm.likely(state.theta)
        weights = sparsity.masked(self.pure.weights(ctx), masks)
        return {**model, **{name: weights[name] for name in masks}}


def statistics(local: Local | None) -> dense_model.Local | None:
    return dense_model.Local(local.buffers) if local else None


ENTRIES: dict[str, Any] = {"fedpm-variants": FedPMVariants()}
