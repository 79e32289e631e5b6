"""Local training: SGD, Adam and AdamW, their settings and schedules, and fused steps."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim.adam import adam as _torch_adam
from torch.optim.sgd import sgd as _torch_sgd

from gossamer.arithmetic.library import Library, library
from gossamer.arithmetic.structs import CParam
from gossamer.core import Ctx, Params
from gossamer.fields import option

Schedule = Literal["constant", "exponential", "exponential-to", "cosine"]
OptimiserName = Literal["sgd", "adam", "adamw"]
Velocity = list[Tensor | None]


@dataclass
class Moments:
    """The state of an optimiser, in the order of the parameters; empty before the first step."""

    first: Velocity = field(default_factory=list)
    """Momentum of SGD, or the mean of gradients of Adam."""
    second: list[Tensor] = field(default_factory=list)
    """The mean of squared gradients of Adam."""
    steps: int = 0
    """Steps of Adam."""


@dataclass(frozen=True)
class Training:
    """How a client trains: the optimiser, with a learning-rate schedule over the rounds."""

    epochs: float = option(1.0, "local epochs; may be fractional", above=0)
    batch: int = option(64, "examples in a local mini-batch", least=1)
    lr: float = option(0.05, "local learning rate in the first round", above=0)
    schedule: Schedule = option("constant", "learning-rate schedule over the rounds")
    decay: float = option(0.99, "decay per round of the exponential schedule", above=0, most=1)
    lr_end: float = option(0.001, "final learning rate of exponential-to and cosine", least=0)
    lr_least: float = option(0.0, "lower bound of the learning rate", least=0)
    momentum: float = option(0.0, "momentum of local SGD", least=0, below=1)
    weight_decay: float = option(0.0, "weight decay of local training", least=0)
    clip: float = option(0.0, "clip gradients to this norm; 0: no clipping", least=0)
    optimiser: OptimiserName = option("sgd", "local optimiser; momentum is of sgd only")
    adam_beta1: float = option(0.9, "decay of local Adam's first moment", least=0, below=1)
    adam_beta2: float = option(0.999, "decay of local Adam's second moment", least=0, below=1)
    adam_eps: float = option(1e-8, "added to the root of local Adam's second moment", above=0)
    moments: Literal["reset", "kept"] = option(
        "reset", "momentum or Adam's moments: reset in each round, or kept by each client"
    )

    @property
    def spans_rounds(self) -> str:
        """The schedule, if it depends on the number of rounds."""
        spans = self.schedule in ("exponential-to", "cosine")
        return f"--schedule {self.schedule}" if spans else ""

    def rate(self, ctx: Ctx) -> float:
        """The learning rate of the current round; the first round has `lr`."""
        passed = max(ctx.round - 1, 0)
        share = passed / ctx.rounds
        match self.schedule:
            case "constant":
                rate = self.lr
            case "exponential":
                rate = self.lr * self.decay**passed
            case "exponential-to":
                rate = self.lr * (self.lr_end / self.lr) ** share
            case "cosine":
                half = (1 + math.cos(math.pi * min(share, 1))) / 2
                rate = self.lr_end + (self.lr - self.lr_end) * half
        return max(rate, self.lr_least)

    def epochs_for(self, ctx: Ctx, steps: int) -> float:
        """The number of epochs, possibly fractional, that take `steps` on the client's data."""
        examples = len(ctx.own.train)
        per_epoch = math.ceil(examples / self.batch)
        alone = examples - (per_epoch - 1) * self.batch == 1
        if ctx.task.layout.batch_norm and per_epoch > 1 and alone:
            per_epoch -= 1  # the engine appends a last batch of one example to the one before
        return steps / per_epoch

    def update(
        self, params: Params, grads: Params, moments: Moments | Velocity, rate: float
    ) -> None:
        """One in-place step on every tensor that has a gradient.

        Args:
            moments: what the optimiser remembers, updated in place; SGD takes a list, too.
        """
        state = moments if isinstance(moments, Moments) else Moments(moments)
        values, tensors = list(grads.values()), [params[name] for name in grads]
        if self.clip:
            clip(values, self.clip)
        if self.optimiser == "sgd":
            settings = {"momentum": self.momentum, "weight_decay": self.weight_decay}
            sgd(tensors, values, state.first, rate=rate, **settings)
            return
        if state is not moments:
            raise TypeError(f"{self.optimiser} has two moments; give `update` an optim.Moments()")
        adam(
            tensors,
            values,
            state,
            rate=rate,
            betas=(self.adam_beta1, self.adam_beta2),
            eps=self.adam_eps,
            weight_decay=self.weight_decay,
            decoupled=self.optimiser == "adamw",
        )


def sgd(
    params: list[Tensor],
    grads: list[Tensor],
    velocity: Velocity,
    *,
    rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> None:
    """One fused in-place SGD step; an empty `velocity` is filled at the first step.

    Elements are paired by address, so params and grads must have equal strides, as the gradients of
    `Task.gradients` have. The package's own kernels compute it where they are built, so that a step
    has the same bits whether weights are packed or not.
    """
    if not velocity:
        velocity.extend([None] * len(params))
    if (kernels := library()) and all(_plain(tensor) for tensor in (*params, *grads)):
        _kernel_sgd(kernels, params, grads, velocity, (rate, momentum, weight_decay))
        increment_version(params)
        return
    _torch_sgd(
        params,
        grads,
        velocity,
        fused=True,
        foreach=False,
        weight_decay=weight_decay,
        momentum=momentum,
        lr=rate,
        dampening=0.0,
        nesterov=False,
        maximize=False,
    )
    increment_version(params)  # torch's fused kernels do not, and caches of messages rely on it


def _plain(tensor: Tensor) -> bool:
    dense = tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
    return dense and tensor.dtype is torch.float32 and tensor.device.type == "cpu"


def _kernel_sgd(
    kernels: Library,
    params: list[Tensor],
    grads: list[Tensor],
    velocity: Velocity,
    settings: tuple[float, float, float],
) -> None:
    """The same by the kernels; tensors that have no momentum yet are in their first step."""
    fresh = [velocity[index] is None for index in range(len(params))]
    if settings[1]:
        for index in (index for index, new in enumerate(fresh) if new):
            velocity[index] = torch.empty_like(params[index])
    for first in (True, False):
        chosen = [index for index, new in enumerate(fresh) if new is first]
        table = (CParam * len(chosen))()
        for entry, index in zip(table, chosen, strict=True):
            entry.values, entry.grad = params[index].data_ptr(), grads[index].data_ptr()
            entry.count = params[index].numel()
            if (held := velocity[index]) is not None:
                entry.velocity = held.data_ptr()
        kernels.descend(ctypes.addressof(table), len(chosen), *settings, first)


def adam(
    params: list[Tensor],
    grads: list[Tensor],
    moments: Moments,
    *,
    rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> None:
    """One fused in-place step of Adam, or of AdamW if weight decay is decoupled from gradients.

    A weight whose gradients and moments are zero stays where it is, and at zero if it is zero.
    Elements are paired by address, as in `sgd`.

    Kingma, Ba: Adam: a method for stochastic optimization. ICLR 2015.
    https://arxiv.org/abs/1412.6980
    Loshchilov, Hutter: Decoupled weight decay regularization. ICLR 2019.
    https://arxiv.org/abs/1711.05101
    """
    if not moments.second:
        moments.first[:] = [torch.zeros_like(each) for each in params]
        moments.second[:] = [torch.zeros_like(each) for each in params]
    first = [each for each in moments.first if each is not None]
    _torch_adam(
        params,
        grads,
        first,
        moments.second,
        [],
        [torch.tensor(float(moments.steps)) for _ in params],
        foreach=False,
        fused=True,
        amsgrad=False,
        beta1=betas[0],
        beta2=betas[1],
        lr=rate,
        weight_decay=weight_decay,
        eps=eps,
        maximize=False,
        decoupled_weight_decay=decoupled,
    )
    moments.steps += 1
    increment_version(params)


def adamax(
    param: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    step: int,
    rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of Adamax, the first being number 1: the parameter and both moments after it.

    Kingma, Ba: Adam: a method for stochastic optimization. ICLR 2015.
    https://arxiv.org/abs/1412.6980
    """
    first = first.lerp(grad, 1 - betas[0])
    second = torch.maximum(second * betas[1], grad.abs().add_(eps))
    return param.addcdiv(first, second, value=-rate / (1 - betas[0] ** step)), first, second


def clip(grads: list[Tensor], most: float) -> None:
    """Scales all gradients in place so that their joint norm is at most `most`."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    torch._foreach_mul_(grads, torch.clamp(most / (norm + 1e-6), max=1.0))


def pull(grads: Params, params: Params, anchor: Params, strength: float) -> None:
    """Adds the gradient of `strength / 2 * |params - anchor|^2`, in place."""
    names = list(grads)
    drift = torch._foreach_sub([params[name] for name in names], [anchor[name] for name in names])
    torch._foreach_add_([grads[name] for name in names], drift, alpha=strength)
