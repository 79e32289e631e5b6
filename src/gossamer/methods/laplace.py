"""Laplace prior: clients pay for every weight they move, and send only those that they did move.

The server takes the median of each weight, so that a minority of clients cannot move it; or a step
along the sum of the signs of changes, which is a vote of the majority.

Louizos, Reisser, Soriaga, Welling: An expectation-maximization perspective on federated learning.
2021. https://arxiv.org/abs/2111.10192

Differs from the paper: the step on the distance is proximal, since a subgradient never lands on the
server's weight exactly. Running statistics have no prior; their median is taken too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softshrink

from gossamer import merge
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Down, Work
from gossamer.methods.parts.server_optimiser import Adaptive, Moments
from gossamer.optim import Training
from gossamer.wire import Packed, pack, unpack


@dataclass(frozen=True)
class Server:
    params: Params
    moments: Moments | None
    """Of the optimiser, where signs are summed."""


@dataclass(frozen=True)
class Local:
    """The model that the client sent last."""

    params: Params


@dataclass(frozen=True)
class Up:
    moved: Masks
    """Weights that are not the server's any more."""
    changes: Packed
    """By how much, where they moved."""
    buffers: Params


@dataclass(frozen=True)
class Laplace:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    strength: float = option(1e-3, "price of moving a weight by one", least=0)
    regulariser: Literal["whole", "per-example"] = option(
        "whole", "beside the mean loss: all of it, or divided by the client's examples"
    )
    server: Literal["median", "sign"] = option(
        "median", "a weight is the median of clients', or takes a step along the sum of their signs"
    )
    reduction: Literal["mean", "sum"] = option(
        "mean", "signs of clients are averaged before the step, or added"
    )
    adaptive: Adaptive = Adaptive()
    buffers: Literal["median", "average"] = option(
        "median", "running statistics: their median over clients, or their mean"
    )
    personal_model: Literal["sent", "global"] = option(
        "sent", "a client's own model: what the client sent last, or that of the server"
    )

    def init(self, ctx: Ctx) -> Server:
        if self.server == "sign" and not self.strength:
            raise ValueError(
                "--server sign goes by the prior's gradient, and --strength 0 leaves none; "
                "use a strength above 0, or --server median"
            )
        params = ctx.task.init(ctx.common.fold("init"))
        trained = {name: params[name] for name in ctx.task.layout.parameters}
        return Server(params, self.adaptive.start(trained) if self.server == "sign" else None)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        names = ctx.task.layout.parameters
        voted: Params = {}
        replies = []
        for exchange in exchanges:
            found, sent = received(exchange.down, exchange.up), exchange.down.params
            if state.moments is not None:
                # Of what the client was sent, which was perhaps rounded on the way.
                signs = {name: torch.sign(found.pop(name) - sent[name]) for name in names}
                voted = {name: voted.get(name, 0) + sign for name, sign in signs.items()}
            replies.append(found)
        if not replies:
            return state
        stacked = {name: torch.stack([each[name] for each in replies]) for name in replies[0]}
        middle = {name: median(each) for name, each in stacked.items()}
        if self.buffers == "average":
            middle |= {name: stacked[name].mean(0) for name in ctx.task.layout.buffers}
        if state.moments is None:
            return Server({**state.params, **middle}, None)
        by = self.strength / (len(replies) if self.reduction == "mean" else 1)
        ascent = {name: by * votes for name, votes in voted.items()}
        stepped, moments = self.adaptive.step(state.params, ascent, state.moments)
        return Server({**state.params, **middle, **stepped}, moments)

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        return dense_model.begin(ctx, self.training, down.params, None, anchored=True)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        dense_model.step(ctx, self.training, work, batch)
        each = len(ctx.own.train) if self.regulariser == "per-example" else 1
        for name in ctx.task.layout.parameters:
            shrink(work.params[name], work.anchor[name], work.rate * self.strength / each)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        names = ctx.task.layout.parameters
        changes = {name: work.params[name] - work.anchor[name] for name in names}
        moved = {name: change != 0 for name, change in changes.items()}
        buffers = {name: work.params[name] for name in ctx.task.layout.buffers}
        # The sum that the server forms, so that both have the same model to the last bit.
        sent = {**{name: work.anchor[name] + change for name, change in changes.items()}, **buffers}
        metrics = dense_model.finish(ctx, work, "average").metrics
        count = sum(int(mask.sum()) for mask in moved.values())
        return Result(
            up=Up(moved, pack(changes, moved), buffers),
            local=Local(sent) if self.personal_model == "sent" else None,
            metrics={**metrics, "moved": count / ctx.task.layout.count},
        )

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return local.params if local else state.params


def shrink(params: Tensor, anchor: Tensor, most: float) -> None:
    """The proximal step, in place: nearer to the anchor by `most`, and onto it where that meets it.

    >>> weights = torch.tensor([1.25, 0.75, 2.0])
    >>> shrink(weights, torch.ones(3), 0.5)
    >>> weights
    tensor([1.0000, 1.0000, 1.5000])
    """
    torch.add(anchor, softshrink(params - anchor, most), out=params)


def median(stacked: Tensor) -> Tensor:
    """Along the first dimension; of an even number, half-way between the two in the middle."""
    ordered = stacked.sort(dim=0).values
    low, high = ordered[(len(stacked) - 1) // 2], ordered[len(stacked) // 2]
    return ((low.double() + high.double()) / 2).to(stacked.dtype)


def received(down: Down, up: Up) -> Params:
    """A client's whole model, from what it was sent and what it moved."""
    changes = unpack(up.changes, up.moved)
    merge.fitting({**changes, **up.buffers}, down.params)
    return {**{n: down.params[n] + change for n, change in changes.items()}, **up.buffers}
