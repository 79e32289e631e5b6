"""What gradients tell of weights: a client that trains under masks and looks beyond them.

Pruned weights have gradients too, and those say what the loss would gain from them. They are
gathered step by step and then made into the importance of weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, fsum
from typing import Literal

import torch
from torch import Tensor

from gossamer import optim, sparsity
from gossamer.core import Batch, Ctx, Masks, Params
from gossamer.optim import Training
from gossamer.sparsity import Importance
from gossamer.wire import WireError

Gathers = Literal["squares", "sum", "last"]
"""The square of every gradient, the square of their sum, or the last one as it is."""


@dataclass
class Work:
    """A sparse model in training; `step` updates it in place."""

    params: Params
    masks: Masks
    kept: Params
    """The masks as numbers, to multiply gradients with."""
    rate: float
    gathers: Gathers | None
    gathered: Params
    """By tensor, also those that are never pruned; empty where nothing is gathered."""
    sends: bool = False
    """Whether the server asks for it in this round."""
    earlier: Importance | None = None
    """What earlier rounds came to."""
    velocity: optim.Velocity = field(default_factory=list)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    examples: int = 0


def begin(ctx: Ctx, params: Params, masks: Masks, rate: float, gathers: Gathers | None) -> Work:
    """Starts from parameters that are zero outside of their masks."""
    own = ctx.task.own(params)
    kept = sparsity.numbers(masks, {name: own[name] for name in masks})
    names = ctx.task.layout.parameters if gathers else ()
    return Work(own, masks, kept, rate, gathers, {n: torch.zeros_like(own[n]) for n in names})


def step(ctx: Ctx, training: Training, work: Work, batch: Batch) -> Work:
    """One step of SGD on the weights that masks keep, with a look at all of them."""
    looks = work.gathers is not None
    loss, grads = ctx.task.gradients(work.params, batch, None if looks else work.kept)
    if looks:
        _gather(work, grads)
        torch._foreach_mul_([grads[name] for name in work.kept], list(work.kept.values()))
    training.update(work.params, grads, work.velocity, work.rate)
    work.loss = work.loss + loss * len(batch.y)
    work.examples += len(batch.y)
    return work


def importance(work: Work) -> Importance | None:
    """What was gathered, with what earlier rounds came to; of the last gradient, itself.

    The square of a sum counts as often as there were examples in it, so that rounds can be added.
    """
    if work.gathers is None:
        return None
    weights = {name: work.gathered[name] for name in work.masks}
    others = [tensor for name, tensor in work.gathered.items() if name not in weights]
    match work.gathers:
        case "squares":
            return Importance(weights, fsum(float(each.sum()) for each in others))
        case "last":
            return Importance(weights, fsum(float(each.square().sum()) for each in others))
        case "sum":
            count = work.examples
            found = {name: count * tensor.square() for name, tensor in weights.items()}
            rest = count * fsum(float(each.square().sum()) for each in others)
            return Importance(found, rest).plus(work.earlier)


def squares(mean: Importance) -> Importance:
    """The importance that gradients stand for."""
    return Importance({name: grad**2 for name, grad in mean.weights.items()}, mean.rest)


def checked(found: Importance) -> Importance:
    """What a client says of squares, if it can be true; the wire has seen to all but signs.

    A number below zero would let other weights in, or keep them out, in masks that all share.
    """
    if found.rest < 0 or any(bool((each < 0).any()) for each in found.weights.values()):
        raise WireError("importance came with numbers below zero, which no square is")
    return found


def epochs(ctx: Ctx, batch: int, steps: int) -> float:
    """How many epochs of the client's data have so many steps, which may be a part of one."""
    examples = len(ctx.own.train)
    each = ceil(examples / batch)
    if ctx.task.layout.batch_norm and each > 1 and examples - (each - 1) * batch == 1:
        each -= 1  # the engine adds a last batch of one to the one before
    return steps / each


def accuracy(ctx: Ctx, params: Params, most: int) -> tuple[float, float]:
    """The share of the client's first examples that a model is right about, and by guessing."""
    data = ctx.own.train
    with torch.inference_mode():
        logits = ctx.task.logits(params, data.x[:most].to(ctx.task.device))
    right = logits.argmax(-1).cpu() == data.y[:most].cpu()
    return float(right.double().mean()), 1 / logits.shape[-1]


def _gather(work: Work, grads: Params) -> None:
    into = list(work.gathered.values())
    found = [grads[name] for name in work.gathered]
    match work.gathers:
        case "squares":
            torch._foreach_addcmul_(into, found, found)
        case "sum":
            torch._foreach_add_(into, found)
        case "last":
            torch._foreach_copy_(into, found)
