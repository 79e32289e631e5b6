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


def test_indices_of_sparse_masks_are_remembered_until_the_mask_changes_or_dies() -> None:
    mask = torch.zeros(80, dtype=torch.bool)
    mask[7] = True
    assert true_indices(mask) is true_indices(mask)
    mask[9] = True
    assert true_indices(mask).tolist() == [7, 9]
    other = mask.clone()
    other[1] = True
    assert true_indices(other).tolist() == [1, 7, 9]
    number = id(mask)
    del mask
    assert number not in indices._known


def test_indices_that_would_take_more_memory_than_the_mask_are_not_kept() -> None:
    mask = torch.ones(indices.SMALL, dtype=torch.bool)
    assert true_indices(mask) is not true_indices(mask)
    assert true_indices(mask[1:]).tolist() == list(range(indices.SMALL - 1))


def test_masks_without_versions_are_read_each_time() -> None:
    with torch.inference_mode():
        mask = torch.zeros(80, dtype=torch.bool)
        assert true_indices(mask).tolist() == []
        mask[3] = True
        assert true_indices(mask).tolist() == [3]
