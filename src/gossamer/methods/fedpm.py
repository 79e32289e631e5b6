"""FedPM: weights stay random; clients learn which to keep, and send a mask of one bit per weight.

The server has a probability of being kept for every weight. A client draws a mask per batch, trains
the scores behind the probabilities, and sends a last draw; the server averages the masks.

Isik, Pase, Gunduz, Weissman, Zorzi: Sparse random networks for communication-efficient federated
learning. ICLR 2023. https://arxiv.org/abs/2209.15328
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from gossamer import core, merge, optim, sparsity
from gossamer.accounting import Accounting, mask_bits
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Key, Masks, Measures, Params, Result
from gossamer.devices.declared import ANY_TIME, Timing
from gossamer.fields import option
from gossamer.methods.parts import masked_training, sparse_model
from gossamer.methods.parts.dense_model import Local
from gossamer.methods.parts.server_optimiser import Moments, ServerOptimiser
from gossamer.task.layout import Layout
from gossamer.trust.declared import Privacy


@dataclass(frozen=True)
class Server:
    theta: Params  # the probability that a weight is kept
    buffers: Params
    ones: Params  # how many masks of the posterior keep a weight, if it outlives a round
    masks: int  # that the posterior consists of
    rounds: int  # of these masks


@dataclass(frozen=True)
class Down:
    theta: Params
    buffers: Params


@dataclass(frozen=True)
class Up:
    masks: Masks
    buffers: Params


@dataclass
class Work:
    model: masked_training.Work  # with the random weights
    scores: Params
    adam: ServerOptimiser
    moments: Moments


@dataclass(frozen=True)
class FedPM:
    clients: int = option(10, "clients per round", least=1)
    training: optim.Training = optim.Training(epochs=3, batch=64, lr=0.1)
    beta1: float = option(0.9, "decay of the first moment of clients' Adam", least=0, below=1)
    beta2: float = option(0.999, "decay of the second moment", least=0, below=1)
    eps: float = option(1e-8, "added to the root of the second moment", above=0)
    gain: float = option(math.e, "weights are plus or minus gain / sqrt(fan-in)", above=0)
    clamp: float = option(0.01, "distance of probabilities from 0 and 1", above=0, below=0.5)
    prior_reset_every: int = option(1, "rounds after which the posterior is reset", least=1)
    bn: Literal["local", "running", "static"] = option(
        "local", "BatchNorm statistics: local, averaged, or recalibrated before evaluation"
    )
    accounting: Accounting = Accounting(mask_code="counted")
    privacy: ClassVar[Privacy] = Privacy(bits={"masks": "theta"})
    timing: ClassVar[Timing] = ANY_TIME
    own_optimiser: ClassVar[bool] = True

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if self.training.momentum or self.training.weight_decay:
            raise ValueError("Adam has no `momentum=` and `weight_decay=`; leave both at 0")
        sparse_model.prunable(ctx)
        layout, theta = ctx.task.layout, {}
        for name in fan_ins(layout):
            generator = ctx.common.fold("scores", name).generator()
            theta[name] = torch.randn(layout[name].shape, generator=generator).sigmoid()
        return Server(theta, ctx.task.buffers() if self.bn == "running" else {}, {}, 0, 0)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return core.sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.theta, state.buffers)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        expected, statistics = likely(state.theta), []

        def masks() -> Iterator[Masks]:
            for exchange in exchanges:
                statistics.append((merge.fitting(exchange.up.buffers, state.buffers), 1.0))
                yield merge.fitting(exchange.up.masks, expected)

        (ones, count), rounds = merge.votes(masks()), 1
        if not statistics:
            return state
        if state.rounds % self.prior_reset_every:
            ones = {name: each + state.ones[name] for name, each in ones.items()}
            count, rounds = count + state.masks, state.rounds + 1
        width = 1 - 2 * self.clamp  # the mode of a Beta posterior, kept off 0 and 1
        theta = {n: (self.clamp + width * k.double() / count).float() for n, k in ones.items()}
        kept = ones if self.prior_reset_every > 1 else {}
        return Server(theta, merge.mean(statistics), kept, count, rounds)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return [Up(likely(down.theta), down.buffers)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        rate = self.training.rate(ctx)
        params = {**self.weights(ctx), **(local.buffers if local else {}), **down.buffers}
        # Probabilities that were rounded in transit may be 0 or 1, which have no score.
        scores = ctx.task.own({name: torch.logit(t, 1e-6) for name, t in down.theta.items()})
        adam = ServerOptimiser("adam", rate, self.beta1, self.beta2, self.eps)
        work = Work(masked_training.begin(ctx, params, {}, rate), scores, adam, adam.start(scores))
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        grads = score_gradients(ctx, work, batch)
        if self.training.clip:
            optim.clip(list(grads.values()), self.training.clip)
        descent = {name: grad.neg_() for name, grad in grads.items()}
        work.scores, work.moments = work.adam.step(work.scores, descent, work.moments)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        theta = {name: score.sigmoid() for name, score in work.scores.items()}
        masks = {n: mask.cpu() for n, mask in draw(ctx.key.fold("upload"), theta).items()}
        buffers = {name: work.model.params[name] for name in ctx.task.layout.buffers}
        metrics = {
            "loss": masked_training.mean_loss(work.model),
            "kept": sparse_model.total(masks) / (size := sum(map(torch.numel, masks.values()))),
            "bits_per_weight": mask_bits(masks, "counted") / size,
        }
        up = Up(masks, buffers if self.bn == "running" else {})
        local = Local(buffers) if self.bn == "local" and buffers else None
        return Result(up, local, masks, dict.fromkeys(masks, 1.0), metrics)  # trained: all scores

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """Random weights under one mask, the same for everybody in a round."""
        masks, own = draw(ctx.common.fold("test", ctx.round), state.theta), local or Local({})
        return {**sparsity.masked(self.weights(ctx), masks), **state.buffers, **own.buffers}

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The weights that are kept more often than not, and how certain that is."""
        theta = torch.cat([each.flatten() for each in state.theta.values()])
        unsure = float(((theta > 0.1) & (theta < 0.9)).float().mean())
        return Measures(likely(state.theta), {"theta": float(theta.mean()), "undecided": unsure})

    def weights(self, ctx: Ctx) -> Params:
        """The model without masks, from the common seed, or the module's own weights."""
        params = ctx.task.init(ctx.common.fold("init"))
        for name, fan_in in fan_ins(ctx.task.layout).items() if ctx.task.start == "seed" else ():
            generator = ctx.common.fold("signs", name).generator()
            signs = torch.randint(2, params[name].shape, generator=generator) * 2 - 1
            params[name] = signs.to(params[name].dtype) * (self.gain / math.sqrt(fan_in))
        return params


def fan_ins(layout: Layout) -> dict[str, int]:
    """The fan-in of every tensor that is masked: prunable ones, and their biases."""
    masked, leaves = {}, layout.leaves
    for name, leaf in leaves.items():
        weight = leaves.get("weight".join(name.rsplit("bias", 1)), leaf)
        if leaf.trainable and (leaf.prunable or (leaf.kind == "bias" and weight.prunable)):
            masked[name] = weight.fan_in
    return masked


def draw(key: Key, theta: Params) -> Masks:
    """Masks that keep every weight with its probability, independently."""
    draws = {n: torch.rand(t.shape, generator=key.fold(n).generator()) for n, t in theta.items()}
    return {name: draws[name].to(each.device) < each for name, each in theta.items()}


def likely(theta: Params) -> Masks:
    return {name: each > 0.5 for name, each in theta.items()}


def score_gradients(ctx: Ctx, work: Work, batch: Batch) -> Params:
    """The gradient of the scores under a mask drawn for this batch, straight through the draw."""
    params, theta = work.model.params, {name: s.sigmoid() for name, s in work.scores.items()}
    masks = draw(batch.key.fold("mask"), theta)
    drawn = params | {name: params[name] * mask for name, mask in masks.items()}
    loss, grads = ctx.task.gradients(drawn, batch, masks, everywhere=True)
    masked_training.record(work.model, loss, batch)
    return {n: grads[n] * params[n] * each * (1 - each) for n, each in theta.items()}
