"""FedMRN: an update is random noise under a mask; clients send the mask, a bit for each weight.

The server names a seed, from which both sides draw noise. A client learns an update u of the model
that it received, and computes with noise where a drawn mask is true, so that on average it is u. In
the first steps only some entries are masked in this way, in the last all of them. What it sends is
one mask; the server adds the mean of the masked noises.

Li, Cheng, Wang, Tang, Xu, Luo, Li, Liu, He, Li: Masked random noise for communication-efficient
federated learning. ACM Multimedia 2024. https://arxiv.org/abs/2408.03220

Differs from the authors' code: the server names the seed, which costs 64 bits down instead of up;
biases and norms, which the code's networks do not have or send whole, are sent whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gossamer import merge
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Key, Masks, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import sparse_model
from gossamer.optim import Training, Velocity

LEAST = 1e-8
"""Noise is never smaller, because updates are divided by it."""


@dataclass(frozen=True)
class Down:
    params: Params
    seed: int  # of the noise


@dataclass(frozen=True)
class Up:
    masks: Masks
    rest: Params  # tensors that have no noise


@dataclass
class Work:
    received: Params
    noise: Params
    trained: Params  # updates of tensors that have noise; the other tensors themselves
    rate: float
    velocity: Velocity = field(default_factory=list)
    loss: Tensor | float = 0.0
    examples: int = 0


@dataclass(frozen=True)
class FedMRN:
    clients: int = option(10, "clients per round", least=1)
    noise: Literal["uniform", "gauss", "bernoulli"] = option("uniform", "distribution of the noise")
    magnitude: float = option(0.01, "half-width, standard deviation, or size of the noise", above=0)
    mask: Literal["binary", "signed"] = option(
        "binary", "noise is kept or not, or has its sign set"
    )
    progressive: bool = option(True, "mask a growing share of the entries within a round")
    training: Training = Training(epochs=10, batch=64, lr=0.1)
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    accounting: Accounting = Accounting(uncharged="seed")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        sparse_model.prunable(ctx)
        return Server(ctx.task.init(ctx.common.fold("init")))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params, ctx.key.fold("noise", client.id).digest() % 2**63)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        def received() -> Iterator[tuple[Params, float]]:
            blank = sparse_model.all_zeros(ctx)
            for exchange in exchanges:
                up, down = exchange.up, exchange.down
                masks = merge.fitting(up.masks, blank)
                rest = merge.fitting(up.rest, others(ctx, down.params))
                noise = self.drawn(ctx, down.seed)
                changes = {name: self.masked(noise[name], mask) for name, mask in masks.items()}
                yield {**changes, **rest}, merge.weight(exchange.client, self.weighting)

        mean = merge.mean(received())
        names = ctx.task.layout.prunable if mean else ()
        return Server({**state.params, **mean, **{n: state.params[n] + mean[n] for n in names}})

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return [Up(sparse_model.all_zeros(ctx), others(ctx, down.params))]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: None) -> Job[Work]:
        params = ctx.task.own(down.params)
        noise = ctx.task.own(self.drawn(ctx, down.seed))
        updates = {name: torch.zeros_like(params[name]) for name in noise}
        work = Work(params, noise, {**params, **updates}, self.training.rate(ctx))
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        share = (batch.step + 1) / batch.steps if self.progressive else 1.0
        effective = dict(work.trained)
        for name, noise in work.noise.items():
            key = batch.key.fold("mask", name)
            update = self.masked(noise, self.draw(key, work.trained[name], noise))
            if share < 1:  # progressive masking: other entries are clipped to what a mask can be
                chosen = uniform(key.fold("chosen"), noise) < share
                update = torch.where(chosen, update, self.clipped(work.trained[name], noise))
            effective[name] = work.received[name] + update
        loss, grads = ctx.task.gradients(effective, batch)  # straight through the mask
        self.training.update(work.trained, grads, work.velocity, work.rate)
        work.loss, work.examples = work.loss + loss * len(batch.y), work.examples + len(batch.y)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, None]:
        key = ctx.key.fold("upload")
        masks = {
            name: self.draw(key.fold(name), work.trained[name], noise).cpu()
            for name, noise in work.noise.items()
        }
        metrics = {"loss": float(work.loss) / max(work.examples, 1)}
        return Result(Up(masks, others(ctx, work.trained)), None, metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: None) -> Params:
        return state.params

    # noise and masks ------------------------------------------------------------------------------

    def drawn(self, ctx: Ctx, seed: int) -> Params:
        """The noise of a seed, for every prunable tensor."""
        noises = {}
        for name in ctx.task.layout.prunable:
            shape, draw = ctx.task.layout[name].shape, Key(seed).fold(name).generator()
            match self.noise:
                case "uniform":
                    noise = 2 * torch.rand(shape, generator=draw) - 1
                case "gauss":
                    noise = torch.randn(shape, generator=draw)
                case "bernoulli":
                    noise = 2.0 * torch.randint(2, shape, generator=draw) - 1
            noise *= self.magnitude
            noises[name] = torch.where(noise.abs() < LEAST, LEAST, noise)
        return noises

    def draw(self, key: Key, update: Tensor, noise: Tensor) -> Tensor:
        """A mask under which noise is the clipped update on average (stochastic masking)."""
        ratio = update / noise
        likely = ratio if self.mask == "binary" else (ratio + 1) / 2
        return uniform(key, noise) < likely

    def masked(self, noise: Tensor, mask: Tensor) -> Tensor:
        """Noise where the mask is true; elsewhere nothing, or noise of the other sign."""
        return noise * mask if self.mask == "binary" else torch.where(mask, noise, -noise)

    def clipped(self, update: Tensor, noise: Tensor) -> Tensor:
        """The update, as far as masked noise can be it on average."""
        least = 0.0 if self.mask == "binary" else -1.0
        return (update / noise).clamp(least, 1.0) * noise


def uniform(key: Key, like: Tensor) -> Tensor:
    """Numbers between 0 and 1, in the layout of a tensor."""
    drawn = torch.rand(like.shape, generator=key.generator())
    return torch.empty_like(like).copy_(drawn)


def others(ctx: Ctx, params: Params) -> Params:
    """The tensors that have no noise."""
    masked = set(ctx.task.layout.prunable)
    return {name: params[name] for name in ctx.task.layout.names if name not in masked}
