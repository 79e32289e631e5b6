"""Training with less memory: layers keep only their largest inputs for the gradient.

Most of the memory of a layer's backward pass is its input. `pruned` returns a task whose layers
store only the largest entries of their inputs. The forward pass and the gradient of the input are
exact; the gradient of the weights is computed from the stored entries. The effect of small entries
depends on their distribution, which `standardised` weights control without BatchNorm.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, pi, sqrt
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from gossamer.core import Masks, Params
from gossamer.sparsity import as_fraction
from gossamer.task import Task
from gossamer.task.layout import Layout

GAIN = sqrt(2 / (1 - 1 / pi))
"""Preserves the variance of signals through a ReLU (Brock et al., ICLR 2021)."""
LEAST = 1e-6
"""Added to variances for numerical stability: equal weights have variance zero."""

AS_WEIGHTS = -1.0
"""In place of a share to discard: the share of the layer's weights that are zero."""

_lock = threading.Lock()
_tasks: WeakKeyDictionary[Task, dict[float, Task]] = WeakKeyDictionary()


# activations --------------------------------------------------------------------------------------


def pruned(task: Task, share: float) -> Task:
    """The same task, with convolutions and linear layers that discard `share` of their inputs.

    The smallest entries of a whole batch are discarded. Layers that read the data keep all of it,
    since it is in memory anyway, and so do convolutions that do not pad with zeros. Results are
    cached; like any task, they serve one thread at a time.

    Raises:
        ValueError: `share` is not at least 0 and below 1.
    """
    if not 0 <= share < 1:
        raise ValueError(f"a share of activations is at least 0 and below 1, not {share:g}")
    return _forgetful(task, share) if share else task


def as_sparse(task: Task) -> Task:
    """The same task, with layers that store as large a share of their inputs as of their weights.

    That is the share of weights that are not zero when a layer is called; otherwise as `pruned`.
    """
    return _forgetful(task, AS_WEIGHTS)


def _forgetful(task: Task, share: float) -> Task:
    with _lock:
        known = _tasks.setdefault(task, {})
        if share in known:
            return known[share]
    module = copy.deepcopy(task.module)
    for part in module.modules():
        if (kind := _KINDS.get(type(part))) and _plain(part):
            part.__class__ = kind
            vars(part)["forgets"] = share
    sparse = replace(task, module=module, arithmetic="torch")
    with _lock:
        return known.setdefault(share, sparse)


def remembered(x: Tensor, share: float) -> Tensor:
    """A mask of the largest magnitudes; excludes `share` of the entries, rounded down."""
    kept = ceil((1 - as_fraction(share)) * x.numel())
    mask = torch.zeros(x.numel(), dtype=torch.bool, device=x.device)
    mask[x.detach().abs().flatten().topk(kept, sorted=False).indices] = True
    return mask.reshape(x.shape)


@dataclass(frozen=True)
class _Sliding:
    """The geometry of a convolution."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int


class _Product(torch.autograd.Function):
    """A linear layer or a convolution that stores a part of its input."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, share: float, how: _Sliding | None
    ) -> Tensor:
        mask = remembered(x, share)
        ctx.save_for_backward(x[mask], mask, weight)
        ctx.how = how
        if how is None:
            return functional.linear(x, weight, bias)
        moves = (how.stride, how.padding, how.dilation, how.groups)
        return _CONVOLUTIONS[len(how.stride)](x, weight, bias, *moves)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values, mask, weight = ctx.saved_tensors
        (grad,), how, wanted = grads, ctx.how, ctx.needs_input_grad[:3]
        # Autocast changes dtypes in the forward pass; the backward pass must use the same ones.
        x = torch.zeros(mask.shape, dtype=grad.dtype, device=grad.device)
        x.masked_scatter_(mask, values.to(grad.dtype))
        cast = weight.to(grad.dtype)
        if how is None:
            rows = grad.flatten(0, -2)
            raw = (
                grad @ cast if wanted[0] else None,
                rows.T @ x.flatten(0, -2) if wanted[1] else None,
                rows.sum(0) if wanted[2] else None,
            )
        else:
            still = [0] * len(how.stride)
            moves = (how.stride, how.padding, how.dilation, False, still, how.groups)
            bias = [weight.shape[0]]
            raw = torch.ops.aten.convolution_backward(grad, x, cast, bias, *moves, wanted)
        kinds = (values.dtype, weight.dtype, weight.dtype)
        to_input, to_weight, to_bias = (
            None if each is None else each.to(kind) for each, kind in zip(raw, kinds, strict=True)
        )
        return to_input, to_weight, to_bias, None, None


_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}


def _apply(layer: nn.Module, x: Tensor, how: _Sliding | None) -> Tensor:
    share: float = layer.forgets  # type: ignore[assignment]
    if share == AS_WEIGHTS:
        share = 1 - torch.count_nonzero(layer.weight).item() / layer.weight.numel()  # type: ignore[arg-type, operator]
    output: Tensor = _Product.apply(x, layer.weight, layer.bias, share, how)  # type: ignore[no-untyped-call]
    return output


def _convolved(layer: _ConvNd, x: Tensor) -> Tensor:
    assert not isinstance(layer.padding, str)
    return _apply(layer, x, _Sliding(layer.stride, layer.padding, layer.dilation, layer.groups))


class _Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return _apply(self, input, None) if input.requires_grad else super().forward(input)


class _Conv1d(nn.Conv1d):
    def forward(self, input: Tensor) -> Tensor:
        return _convolved(self, input) if input.requires_grad else super().forward(input)


class _Conv2d(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return _convolved(self, input) if input.requires_grad else super().forward(input)


class _Conv3d(nn.Conv3d):
    def forward(self, input: Tensor) -> Tensor:
        return _convolved(self, input) if input.requires_grad else super().forward(input)


_KINDS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: _Linear,
    nn.Conv1d: _Conv1d,
    nn.Conv2d: _Conv2d,
    nn.Conv3d: _Conv3d,
}


def _plain(part: nn.Module) -> bool:
    """Whether a layer does not pad, or pads by a fixed number of zeros."""
    if not isinstance(part, _ConvNd):
        return True
    return part.padding_mode == "zeros" and not isinstance(part.padding, str)


# weights ------------------------------------------------------------------------------------------


def standardised(layout: Layout, params: Params, masks: Masks, gain: float = GAIN) -> Params:
    """Parameters whose filters have mean zero and norm `gain` over their active weights.

    Pruned weights stay zero; a filter with a single active weight is not changed. This is the
    scaled weight standardisation of Brock, De, Smith: Characterizing signal propagation to close
    the performance gap in unnormalized ResNets. ICLR 2021. https://arxiv.org/abs/2101.08692
    """
    scaled = dict(params)
    for name, leaf in layout.leaves.items():
        if leaf.kind == "conv":
            weight = params[name]
            mask = masks.get(name)
            active = torch.ones_like(weight) if mask is None else mask.to(weight)
            scaled[name] = _standardised(weight, active, gain)
    return scaled


def _standardised(weight: Tensor, active: Tensor, gain: float) -> Tensor:
    axes = tuple(range(1, weight.dim()))
    count = active.sum(axes, keepdim=True)
    some = count.clamp(min=1)
    centred = (weight - (weight * active).sum(axes, keepdim=True) / some) * active
    variance = centred.square().sum(axes, keepdim=True) / some
    scale = gain / (some * (variance + LEAST)).sqrt()
    return torch.where(count > 1, centred * scale, weight * active)
