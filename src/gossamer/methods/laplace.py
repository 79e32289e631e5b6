"""Laplace prior: clients pay for every weight they move, and send only the weights that moved.

The server takes the median of each weight, which a minority of clients cannot move; or a step along
the sum of the signs of clients' changes, a majority vote.

Louizos, Reisser, Soriaga, Welling: A graphical model perspective on federated learning. Workshop
paper, 2021. A later text is https://arxiv.org/abs/2111.10192

Differs from the paper: signs are averaged, and the step on the distance is proximal, since no
subgradient lands on the server's weight exactly. Running statistics go by their median.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import softshrink

from gossamer import merge
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Down, Work
from gossamer.methods.parts.server_optimiser import Moments, ServerOptimiser
from gossamer.optim import Training
from gossamer.wire import Packed, pack, unpack

Replies = Sequence[tuple[Params, Params]]  # models as sent to clients, and as received from them


@dataclass(frozen=True)
class Server:
    params: Params
    moments: Moments | None  # of the optimiser, where signs are summed


@dataclass(frozen=True)
class Local:  # what the client sent last
    params: Params


@dataclass(frozen=True)
class Up:
    moved: Masks  # weights that differ from the server's
    changes: Packed  # of these weights
    buffers: Params


@dataclass(frozen=True)
class Laplace:
    own_merge: ClassVar[str] = "takes the clients' median or their signs"
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    strength: float = option(1e-3, "price of moving a weight by one", least=0)
    server: Literal["median", "sign"] = option(
        "median", "a weight becomes the clients' median, or takes a step along their signs"
    )
    adaptive: ServerOptimiser = ServerOptimiser()

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if self.server == "sign" and not self.strength:
            reason = "`server='sign'` goes by the prior's gradient, and `strength=0` leaves none"
            raise ValueError(f"{reason}; use a strength above 0, or `server='median'`")
        params = ctx.task.init(ctx.common.fold("init"))
        trained = {name: params[name] for name in ctx.task.layout.parameters}
        return Server(params, self.adaptive.start(trained) if self.server == "sign" else None)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        replies = [(each.down.params, received(each.down, each.up)) for each in exchanges]
        return self.merged(ctx, state, replies, len(replies)) if replies else state

    def merged(self, ctx: Ctx, state: Server, replies: Replies, divisor: int) -> Server:
        """The state after the replies, where sums of signs are divided by `divisor`."""
        params = {}
        for name in state.params if state.moments is None else ctx.task.layout.buffers:
            params[name] = median(torch.stack([reply[name] for _, reply in replies]))  # eq. 36
        if state.moments is None:
            return Server(params, None)
        ascent = {}
        for name in state.moments.first:
            # Of weights as they travelled: what was rounded on the way is no vote.
            signs = [torch.sign(reply[name] - sent[name]) for sent, reply in replies]
            ascent[name] = self.strength / divisor * torch.stack(signs).sum(0)  # eq. 35
        stepped, moments = self.adaptive.step(state.params, ascent, state.moments)
        return Server({**state.params, **params, **stepped}, moments)

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        return dense_model.begin(ctx, self.training, down.params, None, anchored=True)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        dense_model.step(ctx, self.training, work, batch)
        for name in ctx.task.layout.parameters:  # eq. 33
            shrink(work.params[name], work.anchor[name], work.rate * self.strength)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        layout = ctx.task.layout
        changes = {name: work.params[name] - work.anchor[name] for name in layout.parameters}
        moved = {name: change != 0 for name, change in changes.items()}
        buffers = {name: work.params[name] for name in layout.buffers}
        # The sum that the server forms, so that both have the same model to the last bit.
        sent = {**{name: work.anchor[name] + change for name, change in changes.items()}, **buffers}
        count = sum(int(mask.sum()) for mask in moved.values())
        metrics = {"loss": dense_model.mean_loss(work), "moved": count / layout.count}
        return Result(Up(moved, pack(changes, moved), buffers), Local(sent), metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return local.params if local else state.params


def shrink(params: Tensor, anchor: Tensor, most: float) -> None:
    """The proximal step, in place: towards the anchor by `most`, but not beyond it.

    >>> weights = torch.tensor([1.25, 0.75, 2.0])
    >>> shrink(weights, torch.ones(3), 0.5)
    >>> weights
    tensor([1.0000, 1.0000, 1.5000])
    """
    torch.add(anchor, softshrink(params - anchor, most), out=params)


def median(stack: Tensor) -> Tensor:
    """The median along the first dimension; of an even number, midway between the middle two."""
    ordered = stack.sort(dim=0).values
    low, high = ordered[(len(stack) - 1) // 2], ordered[len(stack) // 2]
    return ((low.double() + high.double()) / 2).to(stack.dtype)


def received(down: Down, up: Up) -> Params:
    """A client's whole model, from what it was sent and what moved."""
    changes = unpack(up.changes, up.moved)
    merge.fitting({**changes, **up.buffers}, down.params)
    return {**{n: down.params[n] + change for n, change in changes.items()}, **up.buffers}
