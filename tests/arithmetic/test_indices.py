"""Indices of masks: those of torch, for every size and density."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.arithmetic import indices
from gossamer.arithmetic.indices import true_indices
from gossamer.arithmetic.library import library


@pytest.mark.parametrize("kernels", [True, False])
@given(st.lists(st.booleans(), max_size=70))
def test_indices_are_those_of_torch(kernels: bool, bits: list[bool]) -> None:
    mask = torch.tensor(bits, dtype=torch.bool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indices, "library", library if kernels else lambda: None)
        assert torch.equal(true_indices(mask), mask.nonzero().flatten())


def test_indices_are_counted_row_by_row_in_any_layout_of_memory() -> None:
    mask = torch.rand(5, 4, 3, 3, generator=torch.Generator().manual_seed(1)) < 0.3
    flat = mask.flatten().nonzero().flatten()
    assert torch.equal(true_indices(mask), flat)
    assert torch.equal(true_indices(mask.contiguous(memory_format=torch.channels_last)), flat)
