"""Indices of the True entries of masks, in one pass over memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gossamer.arithmetic.library import library


def true_indices(mask: Tensor) -> Tensor:
    """The indices of the True entries of a mask, row by row, on the processor.

    With them, values are gathered and scattered several times as fast as torch does by masks.
    """
    marks = mask.cpu().contiguous().numpy().reshape(-1)
    kernels = library()
    if kernels is None:
        return torch.from_numpy(np.flatnonzero(marks))
    room = int(np.count_nonzero(marks)) + 1  # the kernel may write one more, in vain
    found = torch.empty(room, dtype=torch.int64)
    count = kernels.indices(marks.ctypes.data, marks.size, found.data_ptr())
    return found[:count]
