"""Bytes that become inputs."""

from __future__ import annotations

import pytest
import torch
from arithmetic_cases import KERNELS

from gossamer.arithmetic.inputs import scaled

pytestmark = KERNELS


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 7), (50, 3072), (2, 0)])
def test_inputs_have_the_bits_of_torch(shape: tuple[int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(256, shape, generator=generator).to(dtype)
    factor, offset = torch.randn(2, shape[1], generator=generator)
    assert torch.equal(scaled(rows, factor, offset), rows.float().mul(factor).add(offset))
