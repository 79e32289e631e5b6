"""Running sums of models, in one pass over memory."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.arithmetic.library import library


def add(sums: Tensor, values: Tensor, share: float) -> None:
    """`sums += share * values`, with contiguous sums in float64.

    The kernels take half of torch's time, and round as torch does: once, if the processor can.
    """
    kernels = library()
    plain = values.dtype == torch.float32 and values.is_cpu and values.is_contiguous()
    if kernels and kernels.fuses and plain and values.shape == sums.shape:
        kernels.add(sums.data_ptr(), values.data_ptr(), values.numel(), share)
    else:
        sums.add_(values, alpha=share)
