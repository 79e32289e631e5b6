"""Bytes that become inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from arithmetic_cases import KERNELS

from gossamer.arithmetic.inputs import scaled

pytestmark = KERNELS


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (50, 3072), (20, 100), (2, 0)])
def test_inputs_have_the_bits_of_torch(shape: tuple[int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(256, shape, generator=generator).to(dtype)
    factor, offset = torch.randn(2, shape[1], generator=generator)
    for count in (0, 1, 17):
        places = torch.randint(shape[0], (count,), generator=generator)
        exact = rows[places].float().mul(factor).add(offset)
        for stored in (rows.numpy(), rows.T.contiguous().numpy().T):
            assert torch.equal(scaled(stored, places.numpy(), factor, offset), exact)


@pytest.mark.parametrize("place", [-8, 7])
def test_places_that_are_not_there_are_refused(place: int) -> None:
    rows, one = np.zeros((7, 3), np.uint8), torch.ones(3)
    with pytest.raises(IndexError):
        scaled(rows, np.array([0, place]), one, one)
