"""Images as inputs of a model, in one pass over memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.arithmetic.library import library


def scaled(
    stored: np.ndarray, places: npt.NDArray[np.int64], factor: Tensor, offset: Tensor
) -> Tensor:
    """`stored[places] * factor + offset`, as float32.

    The kernels take half of the time of NumPy and torch, and give the same bits.

    Args:
        stored: of shape (examples, numbers).
        places: which rows, in which order.
        factor: float32, for each number of a row.
        offset: the same.
    """
    kernels = library()
    if kernels is None or stored.dtype != np.uint8 or not stored.flags.c_contiguous:
        return torch.from_numpy(stored[places]).to(torch.float32).mul_(factor).add_(offset)
    places = np.ascontiguousarray(places)
    to = torch.empty(len(places), stored.shape[1])
    parts = (tensor.data_ptr() for tensor in (factor, offset, to))
    if kernels.scale(_address(stored), *stored.shape, _address(places), len(places), *parts):
        raise IndexError(f"there are {len(stored)} examples, but not all of {places}")
    return to


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
