"""Mixture of Gaussians: the server has several models, and every client is drawn to the nearest.

A client starts from the model that fits its data best and is pulled to all of them, by the chance
that it came from each. The server moves every model to the clients that came from it, and predicts
with the mean of all.

Louizos, Reisser, Soriaga, Welling: An expectation-maximization perspective on federated learning.
2021. https://arxiv.org/abs/2111.10192

The paper leaves open where clients start and how a mixture predicts. With a million weights,
chances are all or nothing at any strength that is felt: clients then belong to one model each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gossamer import merge, optim
from gossamer.core import Batch, Client, Ctx, Ensemble, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts.dense_model import Up
from gossamer.methods.parts.server_optimiser import Adaptive, Moments
from gossamer.optim import Training

LEAST = 1e-8
"""A model that all clients together have less of a share in stays as it is."""
CHUNK = 500
"""Examples that models are compared on at once."""


@dataclass(frozen=True)
class Server:
    models: tuple[Params, ...]
    moments: tuple[Moments, ...]
    """Of the optimiser, for each model; none where means are taken."""


@dataclass(frozen=True)
class Sent:
    """The model that the client sent last."""

    params: Params


@dataclass(frozen=True)
class Chosen:
    """Which of the server's models fits the client's data best."""

    model: int


Local: TypeAlias = Sent | Chosen


@dataclass(frozen=True)
class Down:
    models: tuple[Params, ...]


@dataclass
class Work:
    """A model in training, and those that it is drawn to; `step` updates it in place."""

    params: Params
    models: list[Params]
    best: int
    rate: float
    velocity: optim.Velocity = field(default_factory=list)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    examples: int = 0


@dataclass(frozen=True)
class Mixture:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    components: int = option(2, "models of the server", least=1)
    strength: float = option(0.1, "pull towards the server's models: their precision", above=0)
    regulariser: Literal["whole", "per-example"] = option(
        "whole", "beside the mean loss: all of it, or divided by the client's examples"
    )
    start: Literal["loss", "random"] = option(
        "loss", "the model that a client starts from: of least loss on its data, or any"
    )
    server: Literal["mean", "ascent"] = option(
        "mean", "a model is the mean of its clients', or takes a step towards them"
    )
    reduction: Literal["mean", "sum"] = option(
        "mean", "changes of clients are averaged before the step, or added"
    )
    adaptive: Adaptive = Adaptive()
    weighting: merge.Weighting = option("uniform", "what a client counts for at the server")
    personal_model: Literal["sent", "best", "global"] = option(
        "sent", "a client's own model: what it sent last, the server's that fits it best, or all"
    )

    def init(self, ctx: Ctx) -> Server:
        start = ctx.common.fold("init")
        keys = [start, *(start.fold(number) for number in range(1, self.components))]
        models = tuple(ctx.task.init(key) for key in keys)
        if self.server == "mean":
            return Server(models, ())
        names = ctx.task.layout.parameters
        return Server(
            models, tuple(self.adaptive.start({n: each[n] for n in names}) for each in models)
        )

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.models)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        names = ctx.task.layout.parameters
        shares = [_Sum() for _ in state.models]
        total = 0.0
        sent = state.models
        for exchange in exchanges:
            # The same for all clients of a round, and perhaps rounded on the way.
            sent = exchange.down.models
            found = merge.fitting(exchange.up.params, sent[0])
            apart = torch.stack([distance(found, each, names) for each in sent])
            weight = merge.weight(exchange.client, self.weighting)
            total += weight
            for share, chance in zip(
                shares, responsibilities(apart, self.strength).tolist(), strict=True
            ):
                share.add(found, weight * chance)
        by = self.strength / (total if self.reduction == "mean" and total else 1.0)
        models, moments = list(state.models), list(state.moments)
        for number, (share, old) in enumerate(zip(shares, state.models, strict=True)):
            if share.total < LEAST:
                continue
            models[number] = share.mean(old)
            if state.moments:
                ascent = {name: by * share.away(name, sent[number][name]) for name in names}
                stepped, moments[number] = self.adaptive.step(old, ascent, moments[number])
                models[number] |= stepped
        return Server(tuple(models), tuple(moments))

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        models = [ctx.task.own(each) for each in down.models]
        best = 0
        if len(models) > 1 and (self.start == "loss" or self.personal_model == "best"):
            losses = [loss_on_own_data(ctx, each) for each in models]
            best = losses.index(min(losses))
        start = best
        if self.start == "random":
            start = int(ctx.key.fold("start").numpy().integers(len(models)))
        work = Work(ctx.task.own(models[start]), models, best, self.training.rate(ctx))
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        loss, grads = ctx.task.gradients(work.params, batch)
        each = len(ctx.own.train) if self.regulariser == "per-example" else 1
        pull(grads, work.params, work.models, self.strength, 1 / each)
        self.training.update(work.params, grads, work.velocity, work.rate)
        work.loss = work.loss + loss * len(batch.y)
        work.examples += len(batch.y)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        names = ctx.task.layout.parameters
        apart = torch.stack([distance(work.params, each, names) for each in work.models])
        local: dict[str, Local | None] = {
            "sent": Sent(work.params),
            "best": Chosen(work.best),
            "global": None,
        }
        return Result(
            up=Up(work.params),
            local=local[self.personal_model],
            metrics={
                "loss": work.loss.item() / max(work.examples, 1),
                "prior": float(surprise(apart, self.strength)),
                "surest": float(responsibilities(apart, self.strength).max()),
            },
        )

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params | Ensemble:
        match local:
            case Sent():
                return local.params
            case Chosen():
                return state.models[local.model]
            case None:
                return Ensemble(state.models, (1 / len(state.models),) * len(state.models))


# the prior ----------------------------------------------------------------------------------------


def distance(params: Params, other: Params, names: Iterable[str]) -> Tensor:
    """Squared, over all of the tensors named, in float64: exponentials are taken of it."""
    names = list(names)
    apart = torch._foreach_sub([params[name] for name in names], [other[name] for name in names])
    return _squared(apart)


def responsibilities(distances: Tensor, strength: float) -> Tensor:
    """The chance that a client came from each model, given how far it is from them, squared."""
    return torch.softmax(-strength / 2 * distances, -1)


def surprise(distances: Tensor, strength: float) -> Tensor:
    """Minus the logarithm of the prior, without the constant of a Gaussian."""
    return math.log(len(distances)) - torch.logsumexp(-strength / 2 * distances, -1)


def pull(
    grads: Params, params: Params, models: Sequence[Params], strength: float, factor: float
) -> None:
    """Adds `factor` times the gradient of `surprise`, in place: a pull to each by its chance."""
    names = list(grads)
    here = [params[name] for name in names]
    aparts = [torch._foreach_sub(here, [each[name] for name in names]) for each in models]
    distances = torch.stack([_squared(apart) for apart in aparts])
    for apart, chance in zip(aparts, responsibilities(distances, strength).tolist(), strict=True):
        if chance:
            torch._foreach_add_(list(grads.values()), apart, alpha=factor * strength * chance)


def _squared(tensors: Sequence[Tensor]) -> Tensor:
    norms = torch._foreach_norm(list(tensors), 2, torch.float64)
    return torch.stack(norms).square().sum().cpu()


# both sides ---------------------------------------------------------------------------------------


def loss_on_own_data(ctx: Ctx, params: Params) -> float:
    """A model's mean loss on the client's training data."""
    data, total = ctx.own.train, 0.0
    with torch.inference_mode():
        for begin in range(0, len(data), CHUNK):
            x = data.x[begin : begin + CHUNK].to(ctx.task.device)
            y = data.y[begin : begin + CHUNK].to(ctx.task.device)
            total += len(y) * float(ctx.task.criterion(ctx.task.logits(params, x), y))
    return total / len(data)


class _Sum:
    """What clients together make of one model: the sum of theirs, each by its share."""

    def __init__(self) -> None:
        self.total = 0.0
        self._sums: Params = {}

    def add(self, params: Params, share: float) -> None:
        self.total += share
        for name, tensor in params.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros(tensor.shape, dtype=torch.float64)
            self._sums[name].add_(tensor, alpha=share)

    def mean(self, old: Params) -> Params:
        """In the types of the model before."""
        return {name: (self._sums[name] / self.total).to(old[name].dtype) for name in old}

    def away(self, name: str, old: Tensor) -> Tensor:
        """The sum of clients' differences from a tensor."""
        return (self._sums[name] - self.total * old.double()).to(old.dtype)
