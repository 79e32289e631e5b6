"""Sums over models, and copies of them, in one pass over memory."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from gossamer.arithmetic.library import library


def add(sums: Tensor, values: Tensor, share: float, mask: Tensor | None = None) -> None:
    """`sums += share * values` where the mask is, with contiguous sums in float64.

    The kernels take half of torch's time, and round as torch does: once, if the processor can.
    """
    kernels = library()
    fits = _plain(values) and values.shape == sums.shape
    if mask is not None:
        fits = fits and mask.shape == sums.shape and mask.is_contiguous()
        fits = fits and mask.dtype == torch.bool and mask.is_cpu
    if kernels and kernels.fuses and fits:
        where = None if mask is None else mask.data_ptr()
        kernels.add(sums.data_ptr(), values.data_ptr(), where, values.numel(), share)
    else:
        sums.add_(values if mask is None else torch.where(mask, values, 0), alpha=share)


def square(values: Tensor, less: Tensor | None = None) -> float:
    """The squared L2 norm of `values`, or of `values - less`, in float64."""
    kernels = library()
    if kernels and _plain(values) and (less is None or _plain(less)):
        other = None if less is None else less.data_ptr()
        return float(kernels.square(values.data_ptr(), other, values.numel()))
    numbers = (values.double() if less is None else values.double() - less.double()).flatten()
    return float(numbers @ numbers)


def copy(values: memoryview, to: Tensor) -> bool:
    """Copies bytes, at any address, into a contiguous tensor; returns whether all are finite.

    False may also mean that their sum overflows: whoever cares looks at each of them.
    """
    kernels = library()
    if kernels and _plain(to):
        address, _ = np.frombuffer(values, np.uint8).__array_interface__["data"]
        return bool(kernels.copy(address, to.numel(), to.data_ptr()))
    bits = to.view(torch.int16) if to.dtype == torch.bfloat16 else to
    bits.numpy().data.cast("B")[:] = values
    return math.isfinite(to.sum().item())


def _plain(values: Tensor) -> bool:
    return values.dtype == torch.float32 and values.is_cpu and values.is_contiguous()
