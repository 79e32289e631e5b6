"""FedPM: weights stay random; clients learn which to keep, and send a mask of one bit each.

Isik, Pase, Gunduz, Weissman, Zorzi: Sparse random networks for communication-efficient federated
learning. ICLR 2023. https://arxiv.org/abs/2209.15328

Every weight has a sign drawn from the common seed and a probability to be kept. A client draws a
mask for each batch and trains the scores behind the probabilities, by a gradient that goes straight
through the draw; then it draws once more and sends the mask. The server counts masks: the share of
them that keep a weight is its new probability. The model that is tested is one more draw.

Differs from the paper, which lets the posterior live for some rounds if few clients take part: it
begins anew in every round, as in the authors' code. Differs from that code: the gradient of a score
has its probability once, not twice, Adam begins anew in each round, and probabilities travel, not
their scores. Neither has normalisation: here its scales and shifts stay as they are at first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gossamer import merge, optim, sparsity
from gossamer.accounting import Accounting
from gossamer.core import (
    Batch,
    Client,
    Ctx,
    Exchange,
    Job,
    Key,
    Masks,
    Measures,
    Params,
    Result,
    sample,
)
from gossamer.fields import option
from gossamer.methods import sparse
from gossamer.methods.parts.server_optimiser import Adaptive, Moments
from gossamer.optim import Training
from gossamer.task.layout import Layout

TRAINING = Training(epochs=3, batch=64, lr=0.1)
LEAST = 1e-6
"""Probabilities, which may be rounded on the way, are so far from 0 and 1, which have no score."""


@dataclass(frozen=True)
class Server:
    theta: Params
    """The probability that a weight is kept."""
    buffers: Params
    ones: Params
    """How many masks of the posterior keep a weight, where it lives longer than a round."""
    masks: int
    rounds: int
    """How many masks it has, of how many rounds."""


@dataclass(frozen=True)
class Down:
    theta: Params
    buffers: Params


@dataclass(frozen=True)
class Up:
    masks: Masks
    buffers: Params


@dataclass(frozen=True)
class Local:
    buffers: Params
    moments: Moments | None


@dataclass
class Work:
    """Scores in training."""

    params: Params
    """The whole model before anything is masked."""
    scores: Params
    moments: Moments
    rate: float
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    examples: int = 0


@dataclass(frozen=True)
class FedPM:
    clients: int = option(10, "clients per round", least=1)
    training: Training = TRAINING
    beta1: float = option(0.9, "decay of the first moment of clients' Adam", least=0, below=1)
    beta2: float = option(0.999, "decay of the second moment", least=0, below=1)
    eps: float = option(1e-8, "added to the root of the second moment", above=0)
    client_moments: Literal["fresh", "keep"] = option(
        "fresh", "clients' moments begin anew in each round, or are kept, as in the authors' code"
    )
    gain: float = option(
        math.e, "weights are this by the root of their neuron's inputs, plus or minus", above=0
    )
    official_ste: bool = option(
        False, "the gradient of a score has its probability twice, as in the authors' code"
    )
    clamp: float = option(
        0.01, "a one in a mask counts so much less, and a zero so much more", above=0, below=0.5
    )
    prior_reset_every: int = option(
        1, "rounds until the posterior begins anew; more in the paper, if few take part", least=1
    )
    test_mask: Literal["sample", "threshold"] = option(
        "sample", "the model tested: one draw, or the weights kept with more than one half"
    )
    bn: Literal["local", "running", "static"] = option(
        "local", "statistics are each client's own, averaged, or found anew before a test"
    )
    accounting: Accounting = Accounting(mask_code="counted")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if self.training.momentum or self.training.weight_decay:
            raise ValueError(
                "scores are trained by Adam, without --momentum and --weight-decay; leave these at "
                "0, and see --beta1"
            )
        if not ctx.task.layout.prunable:
            raise ValueError("this model has no layer that may be pruned; see --prunable")
        buffers = ctx.task.buffers() if self.bn == "running" else {}
        return Server(self._first(ctx), buffers, {}, 0, 0)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.theta, state.buffers)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        anew = state.rounds % self.prior_reset_every == 0
        ones = {
            name: torch.zeros(theta.shape, dtype=torch.int32) if anew else state.ones[name].clone()
            for name, theta in state.theta.items()
        }
        form, statistics = likely(state.theta), []
        for exchange in exchanges:
            for name, mask in merge.fitting(exchange.up.masks, form).items():
                ones[name] += mask
            statistics.append((merge.fitting(exchange.up.buffers, state.buffers), 1.0))
        if not statistics:
            return state
        masks = len(statistics) + (0 if anew else state.masks)
        return Server(
            {name: posterior(each, masks, self.clamp) for name, each in ones.items()},
            merge.mean(statistics),
            ones if self.prior_reset_every > 1 else {},
            masks,
            1 if anew else state.rounds + 1,
        )

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What the answer to a message looks like."""
        return [Up(likely(down.theta), down.buffers)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        own = local.buffers if local else {}
        params = ctx.task.own({**self._weights(ctx), **own, **down.buffers})
        scores = ctx.task.own({name: torch.logit(p, LEAST) for name, p in down.theta.items()})
        rate = self.training.rate(ctx)
        moments = self._adam(rate).start(scores)
        if local and (kept := local.moments):
            moments = Moments(ctx.task.own(kept.first), ctx.task.own(kept.second), kept.steps)
        work = Work(params, scores, moments, rate)
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        theta = {name: torch.sigmoid(each) for name, each in work.scores.items()}
        kept = drawn(batch.key.fold("mask"), theta)
        masked = {name: work.params[name] * mask for name, mask in kept.items()}
        loss, found = ctx.task.gradients({**work.params, **masked}, batch)
        slopes = {
            name: slope(found[name], work.params[name], each, self.official_ste)
            for name, each in theta.items()
        }
        if self.training.clip:
            optim.clip(list(slopes.values()), self.training.clip)
        descent = {name: each.neg_() for name, each in slopes.items()}
        stepped = self._adam(work.rate).step(work.scores, descent, work.moments)
        work.scores, work.moments = stepped
        work.loss = work.loss + loss * len(batch.y)
        work.examples += len(batch.y)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        theta = {name: torch.sigmoid(each) for name, each in work.scores.items()}
        masks = {name: mask.cpu() for name, mask in drawn(ctx.key.fold("upload"), theta).items()}
        size, ones = sum(mask.numel() for mask in masks.values()), sparse.total(masks)
        buffers = {name: work.params[name] for name in ctx.task.layout.buffers}
        return Result(
            Up(masks, buffers if self.bn == "running" else {}),
            self._local(work, buffers if self.bn == "local" else {}),
            masks,
            # The gradient of a score is there whether or not its weight was kept.
            {name: torch.ones_like(mask) for name, mask in masks.items()},
            {
                "loss": work.loss.item() / max(work.examples, 1),
                "kept": ones / size,
                "bits_per_weight": upload_bits(size, ones) / size,
            },
        )

    def _local(self, work: Work, buffers: Params) -> Local | None:
        moments = work.moments if self.client_moments == "keep" else None
        return Local(buffers, moments) if buffers or moments else None

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """Random weights under one mask, the same for whoever asks in a round."""
        if self.test_mask == "sample":
            masks = drawn(ctx.common.fold("test", ctx.round), state.theta)
        else:
            masks = likely(state.theta)
        own = local.buffers if local else {}
        return {**sparsity.masked(self._weights(ctx), masks), **state.buffers, **own}

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The weights that are rather kept than not, and how sure that is."""
        theta = torch.cat([each.flatten() for each in state.theta.values()])
        unsure = (theta > 0.1) & (theta < 0.9)
        metrics = {"theta": float(theta.mean()), "undecided": float(unsure.float().mean())}
        return Measures(likely(state.theta), metrics)

    # parts ----------------------------------------------------------------------------------------

    def _adam(self, rate: float) -> Adaptive:
        return Adaptive("adam", rate, self.beta1, self.beta2, self.eps)

    def _first(self, ctx: Ctx) -> Params:
        """Probabilities of scores that are drawn from a Gaussian."""
        found = {}
        for name in inputs(ctx.task.layout):
            draw = ctx.common.fold("scores", name).generator()
            found[name] = torch.randn(ctx.task.layout[name].shape, generator=draw).sigmoid()
        return found

    def _weights(self, ctx: Ctx) -> Params:
        """The model without masks, from the common seed; what has no mask is as it begins."""
        params = ctx.task.init(ctx.common.fold("init"))
        for name, count in inputs(ctx.task.layout).items():
            draw = ctx.common.fold("signs", name).generator()
            signs = torch.randint(2, params[name].shape, generator=draw) * 2 - 1
            params[name] = signs.to(params[name].dtype) * (self.gain / math.sqrt(count))
        return params


def inputs(layout: Layout) -> dict[str, int]:
    """What is masked, and how many inputs its neurons have: what may be pruned, and its biases."""
    found = {}
    for name, leaf in layout.leaves.items():
        beside = leaf
        if leaf.kind == "bias":
            path, dot, last = name.rpartition(".")
            beside = layout.leaves.get(path + dot + last.replace("bias", "weight"), leaf)
        if leaf.trainable and (leaf.prunable or beside.prunable):
            found[name] = beside.fan_in
    return found


def drawn(key: Key, theta: Params) -> Masks:
    """Masks that keep every weight with its probability, independently."""
    found = {}
    for name, each in theta.items():
        draws = torch.rand(each.shape, generator=key.fold(name).generator())
        found[name] = draws.to(each.device) < each
    return found


def likely(theta: Params) -> Masks:
    """The weights that are kept with a probability above one half."""
    return {name: each > 0.5 for name, each in theta.items()}


def posterior(ones: Tensor, masks: int, clamp: float) -> Tensor:
    """The mode of what so many masks tell, of which `ones` keep a weight, after a flat prior.

    >>> posterior(torch.tensor([3, 0, 2]), 3, 0.01)
    tensor([0.9900, 0.0100, 0.6633])
    """
    return (clamp + (1 - 2 * clamp) * ones.double() / masks).float()


def slope(grad: Tensor, weight: Tensor, theta: Tensor, official: bool = False) -> Tensor:
    """The gradient of scores, where the draw of a mask is passed as if it were its probability."""
    found = grad * weight * theta * (1 - theta)
    return found * theta if official else found


def upload_bits(size: int, ones: int) -> float:
    """What the paper counts for a mask: its entropy, and how many ones it has."""
    share = ones / size
    entropy = -sum(part * math.log2(part) for part in (share, 1 - share) if part)
    return size * entropy + math.log2(size)
