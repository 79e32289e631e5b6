"""FLASC: adapters travel sparsely and train densely.

The server sends the largest weights of the model, whichever layer they are in. Clients train all of
them, also those that arrived as zeros, and send their largest changes. Masks are chosen anew in
every message; the server keeps a dense model and takes a step of Adam along the mean change.

Kuo, Raje, Rajesh, Smith: Federated LoRA with sparse communication. 2024.
https://arxiv.org/abs/2406.05233
Differs from the authors' code (https://github.com/imkevinkuo/flasc): the server's Adam has no
weight decay, and the model is tested under the mask it would be sent with, not the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from gossamer import merge, sparsity
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import dense_model, sparse_model
from gossamer.methods.parts.dense_model import Work
from gossamer.methods.parts.server_optimiser import Moments, ServerOptimiser
from gossamer.optim import Training
from gossamer.trust.declared import CHOSEN_MASKS, Privacy
from gossamer.wire import Packed, pack, unpack

TRAINING = Training(epochs=1, batch=16, lr=1e-3, momentum=0.9)


@dataclass(frozen=True)
class Server:
    params: Params
    mask: Masks  # of the weights that are sent
    moments: Moments


@dataclass(frozen=True)
class Down:
    mask: Masks
    values: Packed  # the largest weights
    buffers: Params


@dataclass(frozen=True)
class Up:
    mask: Masks
    values: Packed  # the largest changes
    buffers: Params


@dataclass(frozen=True)
class FLASC:
    clients: int = option(10, "clients per round", least=1)
    training: Training = TRAINING
    down_density: float = option(0.25, "share of weights that the server sends", above=0, most=1)
    up_density: float = option(0.25, "share of changes that a client sends", above=0, most=1)
    adaptive: ServerOptimiser = ServerOptimiser()
    tested: Literal["sent", "whole"] = option(
        "sent", "the model that is tested: as it would be sent, or with all weights"
    )
    weighting: merge.Weighting = option("uniform", "how client updates are weighted")
    privacy: ClassVar[Privacy] = CHOSEN_MASKS

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        params = ctx.task.init(ctx.common.fold("init"))
        weights = trained(ctx, params)
        return Server(params, largest(weights, self.down_density), self.adaptive.start(weights))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        values = pack(trained(ctx, state.params), state.mask)
        return Down(state.mask, values, sparse_model.statistics(ctx, state.params, "running"))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        mean = merge.mean(self.received(state, exchanges))  # a change that was not sent is zero
        if not mean:
            return state
        changes = {name: mean[name] for name in state.moments.first}
        stepped, moments = self.adaptive.step(state.params, changes, state.moments)
        mask = largest(stepped, self.down_density)
        return Server({**state.params, **mean, **stepped}, mask, moments)

    def received(
        self, state: Server, exchanges: Iterable[Exchange[Down, Up]]
    ) -> Iterator[tuple[Params, float]]:
        allowed = wanted(state.moments.first, self.up_density)
        for each in exchanges:
            mask = sparse_model.affordable(each.up.mask, allowed)
            reply = {**unpack(each.up.values, mask), **each.up.buffers}
            yield merge.fitting(reply, state.params), merge.weight(each.client, self.weighting)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        none = {name: torch.zeros_like(mask) for name, mask in down.mask.items()}
        return [Up(none, pack(unpack(down.values, down.mask), none), down.buffers)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: None) -> Job[Work]:
        params = {**unpack(down.values, down.mask), **down.buffers}
        return dense_model.begin(ctx, self.training, params, None, anchored=True)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, None]:
        changes = {n: each - work.anchor[n] for n, each in trained(ctx, work.params).items()}
        mask = largest(changes, self.up_density)
        buffers = sparse_model.statistics(ctx, work.params, "running")
        metrics = {"loss": dense_model.mean_loss(work)}
        return Result(Up(mask, pack(changes, mask), buffers), metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: None) -> Params:
        sent = self.tested == "sent"
        return sparsity.masked(state.params, state.mask) if sent else state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The weights that are sent."""
        return Measures(state.mask)


def trained(ctx: Ctx, params: Params) -> Params:
    """The tensors that are trained: adapters, and whatever else is not frozen."""
    return {name: params[name] for name in ctx.task.layout.parameters}


def wanted(params: Params, density: float) -> int:
    """How many of all weights are sent: rounded down, but at least one."""
    total = sum(tensor.numel() for tensor in params.values())
    return max(1, int(sparsity.as_fraction(density) * total))


def largest(params: Params, density: float) -> Masks:
    """Masks of the largest magnitudes of all tensors together."""
    whole = {n: torch.ones(each.shape, dtype=torch.bool) for n, each in params.items()}
    if density == 1:
        return whole
    return sparsity.largest_of_all(params, wanted(params, density), whole, least=0)
