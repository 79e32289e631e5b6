"""Mixture of Gaussians: the server has several models, and each client is pulled to the nearest.

A client starts from the model that fits its data best, and is pulled to each by the chance that it
came from it. The server moves models to their clients, and predicts with the mean of all.

Louizos, Reisser, Soriaga, Welling: A graphical model perspective on federated learning. Workshop
paper, 2021. A later text is https://arxiv.org/abs/2111.10192

The paper leaves open where clients start and how a mixture predicts. With many weights, the
probabilities are 0 or 1 at any useful strength: each client then belongs to one model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gossamer import merge
from gossamer.core import Batch, Client, Ctx, Ensemble, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Up
from gossamer.methods.parts.server_optimiser import Moments, ServerOptimiser
from gossamer.optim import Training
from gossamer.task import first_weights

LEAST = 1e-8  # a model with a smaller sum of responsibilities stays as it is
CHUNK = 500  # examples on which models are compared at once


@dataclass(frozen=True)
class Server:
    models: tuple[Params, ...]
    moments: tuple[Moments, ...]  # of the optimiser, one per model; none where means are taken


@dataclass(frozen=True)
class Local:  # what the client sent last
    params: Params


@dataclass(frozen=True)
class Down:
    models: tuple[Params, ...]


@dataclass
class Work:
    inner: dense_model.Work
    models: list[Params]  # of the server


@dataclass(frozen=True)
class Mixture:
    own_merge: ClassVar[str] = "divides every client among several models"
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    components: int = option(2, "models of the server", least=1)
    strength: float = option(0.1, "pull towards the server's models: their precision", above=0)
    server: Literal["mean", "ascent"] = option(
        "mean", "a model becomes the mean of its clients' models, or takes a step towards them"
    )
    adaptive: ServerOptimiser = ServerOptimiser()
    weighting: merge.Weighting = option("uniform", "how client updates are weighted")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        start, names = ctx.common.fold("init"), ctx.task.layout.parameters
        keys = [start, *(start.fold(number) for number in range(1, self.components))]
        models = first_weights.several(ctx.task, keys)
        trained = [{name: each[name] for name in names} for each in models]
        moments = map(self.adaptive.start, trained) if self.server == "ascent" else ()
        return Server(models, tuple(moments))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.models)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        return self.merged(ctx, state, exchanges, averaged=True)

    def merged(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]], averaged: bool
    ) -> Server:
        """The state after the replies; an ascent may be averaged over clients, or summed."""
        names, total, sent = ctx.task.layout.parameters, 0.0, state.models
        shares = [0.0] * len(sent)
        sums = [{n: torch.zeros_like(t, dtype=torch.float64) for n, t in m.items()} for m in sent]
        for exchange in exchanges:
            sent = exchange.down.models  # the same for all, and perhaps rounded on the way
            reply = merge.fitting(exchange.up.params, sent[0])
            weight = merge.weight(exchange.client, self.weighting)
            total += weight
            apart = torch.stack([distance(reply, each, names) for each in sent])
            for k, chance in enumerate(responsibilities(apart, self.strength).tolist()):
                shares[k] += weight * chance
                for name, tensor in reply.items():
                    sums[k][name].add_(tensor, alpha=weight * chance)
        by = self.strength / (total if averaged and total else 1.0)
        models, moments = list(state.models), list(state.moments)
        for k, old in enumerate(state.models):
            if shares[k] < LEAST:
                continue
            models[k] = {n: (sums[k][n] / shares[k]).to(old[n].dtype) for n in old}  # eq. 42
            if moments:
                away = {n: sums[k][n] - shares[k] * sent[k][n].double() for n in names}
                ascent = {n: by * part.to(old[n].dtype) for n, part in away.items()}  # eq. 40
                stepped, moments[k] = self.adaptive.step(old, ascent, moments[k])
                models[k] |= stepped
        return Server(tuple(models), tuple(moments))

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        models = [ctx.task.own(each) for each in down.models]
        first = min(models, key=lambda each: loss_on_own_data(ctx, each))
        inner = dense_model.begin(ctx, self.training, first, None).work
        return Job(Work(inner, models), self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        loss, grads = ctx.task.gradients(work.inner.params, batch)  # eq. 38
        pull(grads, work.inner.params, work.models, self.strength)
        dense_model.descend(self.training, work.inner, batch, loss, grads)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        params, names = work.inner.params, ctx.task.layout.parameters
        apart = torch.stack([distance(params, each, names) for each in work.models])
        metrics = {
            "loss": dense_model.mean_loss(work.inner),
            "prior": float(surprise(apart, self.strength)),
            "surest": float(responsibilities(apart, self.strength).max()),
        }
        return Result(Up(params), Local(params), metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params | Ensemble:
        count = len(state.models)
        return local.params if local else Ensemble(state.models, (1 / count,) * count)


def distance(params: Params, other: Params, names: Iterable[str]) -> Tensor:
    """The squared distance over the tensors named, in float64: its exponential is taken."""
    return squared(difference(params, other, names))


def responsibilities(distances: Tensor, strength: float) -> Tensor:
    """The probability that a client came from each model (eq. 41), from squared distances."""
    return torch.softmax(-strength / 2 * distances, -1)


def surprise(distances: Tensor, strength: float) -> Tensor:
    """The negative logarithm of the prior (eq. 37), without the Gaussians' constant."""
    return math.log(len(distances)) - torch.logsumexp(-strength / 2 * distances, -1)


def pull(grads: Params, params: Params, models: Sequence[Params], strength: float) -> None:
    """Adds the gradient of `surprise`, in place."""
    for apart, chance in sources(params, models, strength, grads):
        torch._foreach_add_(list(grads.values()), apart, alpha=strength * chance)


def sources(
    params: Params, models: Sequence[Params], strength: float, names: Iterable[str]
) -> list[tuple[list[Tensor], float]]:
    """The difference from each model, with the probability that the client came from it."""
    aparts = [difference(params, each, names) for each in models]
    chances = responsibilities(torch.stack(list(map(squared, aparts))), strength).tolist()
    return [(apart, chance) for apart, chance in zip(aparts, chances, strict=True) if chance]


def difference(params: Params, other: Params, names: Iterable[str]) -> list[Tensor]:
    pairs = [(params[name], other[name]) for name in names]
    return list(torch._foreach_sub([ours for ours, _ in pairs], [theirs for _, theirs in pairs]))


def squared(tensors: Sequence[Tensor]) -> Tensor:
    norms = torch._foreach_norm(list(tensors), 2, torch.float64)
    return torch.stack(norms).square().sum().cpu()


def loss_on_own_data(ctx: Ctx, params: Params) -> float:
    """A model's mean loss on the client's training data."""
    data, total = ctx.own.train, 0.0
    with torch.inference_mode():
        for begin in range(0, len(data), CHUNK):
            part = slice(begin, begin + CHUNK)
            x, y = data.x[part].to(ctx.task.device), data.y[part].to(ctx.task.device)
            total += len(y) * float(ctx.task.criterion(ctx.task.logits(params, x), y))
    return total / len(data)
