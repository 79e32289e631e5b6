"""SWAT layers: sparse weights, and sparse inputs for the gradient of the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from gossamer.arithmetic.library import library
from gossamer.sparsity import as_fraction
from gossamer.sparsity.algebra import magnitudes, ranked

CUTS = "swat_cuts"
"""The buffer of a sparse layer: the cuts (minimum magnitudes) of its weights and of its inputs."""
UNKNOWN = -1.0
"""A cut that the next pass computes."""


def cut(values: Tensor, density: float) -> float:
    """The smallest magnitude among the largest numbers, a fraction `density` of all.

    >>> cut(torch.tensor([3.0, -0.5, 2.0, 0.1]), 0.5)
    2.0
    """
    share, kernels = as_fraction(density), library()
    if kernels and values.dtype == torch.float32 and values.is_cpu:
        last = values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last)
        numbers = values.detach() if last else values.detach().contiguous()  # in any order
        given = (numbers.data_ptr(), numbers.numel(), share.numerator, share.denominator)
        return float(kernels.cut(*given))
    sizes = magnitudes(values)
    if not len(sizes):
        return 0.0
    place = len(sizes) - max(ceil(share * len(sizes)), 1)
    return ranked(sizes, place)


def above(values: Tensor, least: float) -> Tensor:
    """The values of at least this magnitude, zeros elsewhere; in the strides of `values`."""
    return values.clone().masked_fill_(values.abs() < least, 0)


@dataclass(frozen=True)
class Geometry:
    """The geometry of a convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class SparseProduct(torch.autograd.Function):
    """A layer's output from its active weights `used`; `weight` only receives the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        used: Tensor,
        bias: Tensor | None,
        least: float,
        how: Geometry | None,
    ) -> Tensor:
        ctx.save_for_backward(above(x, least), used)
        ctx.how, ctx.biased = how, bias is not None
        if how is None:
            return functional.linear(x, used, bias)
        none = [0] * len(how.stride)
        return torch.convolution(
            x, used, bias, how.stride, how.padding, how.dilation, False, none, how.groups
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, used = ctx.saved_tensors
        inputs, weights = ctx.needs_input_grad[:2]
        biases = ctx.biased and ctx.needs_input_grad[3]
        results: Sequence[Tensor | None]
        if ctx.how is None:
            rows = grad.reshape(-1, grad.shape[-1])
            results = (
                grad @ used if inputs else None,
                rows.T @ x.reshape(-1, x.shape[-1]) if weights else None,
                rows.sum(0) if biases else None,
            )
        else:
            how = ctx.how
            results = torch.ops.aten.convolution_backward(
                grad,
                x,
                used,
                [used.shape[0]] if biases else None,
                how.stride,
                how.padding,
                how.dilation,
                False,
                [0] * len(how.stride),
                how.groups,
                [inputs, weights, biases],
            )
        return results[0], results[1], None, results[2], None, None


class SparseLayer(nn.Module):
    """A convolution or linear layer that uses its largest weights and inputs; same parameter names.

    A buffer keeps the cuts from one batch to the next; see `forget`.
    """

    swat_cuts: Tensor

    def __init__(self, layer: nn.Linear | _ConvNd, density: float) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = layer.bias
        self.register_buffer(CUTS, torch.full((2,), UNKNOWN))
        self.density = density
        self.how: Geometry | None = None
        self.around: tuple[list[int], str] | None = None
        if isinstance(layer, _ConvNd):
            padding = layer.padding
            if isinstance(padding, str) or layer.padding_mode != "zeros":
                mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
                self.around = list(layer._reversed_padding_repeated_twice), mode
                padding = (0,) * len(layer.stride)
            self.how = Geometry(layer.stride, padding, layer.dilation, layer.groups)

    def forward(self, x: Tensor) -> Tensor:
        used = above(self.weight.detach(), self._cut(0, self.weight))
        bias = self.bias
        if torch.is_autocast_enabled(x.device.type):
            kind = torch.get_autocast_dtype(x.device.type)
            x, used = x.to(kind), used.to(kind)
            bias = None if bias is None else bias.to(kind)
        # Evaluation needs no gradients, so inputs need no cut.
        least = self._cut(1, x) if self.training else 0.0
        if self.around is not None:
            x = functional.pad(x, *self.around)
        product: Callable[..., Tensor] = SparseProduct.apply
        return product(x, self.weight, used, bias, least, self.how)

    def _cut(self, place: int, values: Tensor) -> float:
        if self.training and (known := float(self.swat_cuts[place])) >= 0:
            return known
        least = cut(values, self.density)
        if self.training:
            self.swat_cuts[place] = least
        return least
