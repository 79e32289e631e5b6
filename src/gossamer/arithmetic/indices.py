"""How many entries of masks are True, and which: found in one pass over memory, and remembered.

A round asks the same of the same masks again and again: models are packed for every client, and
every client states its density. What is known of a mask is kept for as long as it lives and stays
as it is.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gossamer.arithmetic.library import library

SPARSE = 8
"""Indices are remembered where they take no more memory than the mask."""
SMALL = 2**15
"""Those of masks with fewer entries are remembered too."""


@dataclass
class _Known:
    mask: weakref.ref[Tensor]
    version: int
    count: int
    indices: Tensor | None = None


_known: dict[int, _Known] = {}
"""By the id of a mask that lives."""


def true_count(mask: Tensor) -> int:
    """The number of entries that are True, or not zero."""
    if mask.is_inference():  # torch does not count its changes
        return int(torch.count_nonzero(mask))
    return _of(mask).count


def true_indices(mask: Tensor) -> Tensor:
    """The indices of the True entries of a mask, row by row, on the processor; not to be changed.

    With them, values are gathered and scattered several times as fast as torch does by masks.
    """
    if mask.is_inference():
        return _found(mask, int(torch.count_nonzero(mask)))
    known = _of(mask)
    if known.indices is not None:
        return known.indices
    found = _found(mask, known.count)
    if known.count * SPARSE <= mask.numel() or mask.numel() < SMALL:
        known.indices = found
    return found


def _of(mask: Tensor) -> _Known:
    number = id(mask)
    known = _known.get(number)
    if known is None or known.mask() is not mask or known.version != mask._version:
        reference = weakref.ref(mask, lambda gone: _forget(number, gone))
        known = _Known(reference, mask._version, int(torch.count_nonzero(mask)))
        _known[number] = known
    return known


def _forget(number: int, gone: weakref.ref[Tensor]) -> None:
    if (known := _known.get(number)) and known.mask is gone:
        del _known[number]


def _found(mask: Tensor, count: int) -> Tensor:
    marks = mask.cpu().contiguous().numpy().reshape(-1)
    kernels = library()
    if kernels is None:
        return torch.from_numpy(np.flatnonzero(marks))
    found = torch.empty(count + 1, dtype=torch.int64)  # the kernel may write one more, in vain
    kernels.indices(marks.ctypes.data, marks.size, found.data_ptr())
    return found[:count]
