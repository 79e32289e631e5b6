"""Indices of the True entries of masks, in one pass over memory."""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor

from gossamer.arithmetic.library import library

SPARSE = 8
"""Indices are remembered where they take no more memory than the mask."""

_known: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}
"""By the id of a mask that lives: itself, its version, and its indices."""


def true_indices(mask: Tensor) -> Tensor:
    """The indices of the True entries of a mask, row by row, on the processor; not to be changed.

    With them, values are gathered and scattered several times as fast as torch does by masks. A
    model is packed for every client of a round under the same mask, so those of sparse masks are
    remembered for as long as the mask lives and stays as it is.
    """
    number = id(mask)
    if (known := _known.get(number)) and known[0]() is mask and known[1] == mask._version:
        return known[2]
    found = _found(mask)
    if not mask.is_inference() and len(found) * SPARSE <= mask.numel():
        _known[number] = (
            weakref.ref(mask, lambda gone: _forget(number, gone)),
            mask._version,
            found,
        )
    return found


def _forget(number: int, gone: weakref.ref[Tensor]) -> None:
    if (known := _known.get(number)) and known[0] is gone:
        del _known[number]


def _found(mask: Tensor) -> Tensor:
    marks = mask.cpu().contiguous().numpy().reshape(-1)
    kernels = library()
    if kernels is None:
        return torch.from_numpy(np.flatnonzero(marks))
    room = int(np.count_nonzero(marks)) + 1  # the kernel may write one more, in vain
    found = torch.empty(room, dtype=torch.int64)
    count = kernels.indices(marks.ctypes.data, marks.size, found.data_ptr())
    return found[:count]
