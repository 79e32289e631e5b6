"""Places of masks: those of torch, for every size and density."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.arithmetic import places as module
from gossamer.arithmetic.library import library
from gossamer.arithmetic.places import places


@pytest.mark.parametrize("kernels", [True, False])
@given(st.lists(st.booleans(), max_size=70))
def test_places_are_those_of_torch(kernels: bool, bits: list[bool]) -> None:
    mask = torch.tensor(bits, dtype=torch.bool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "library", library if kernels else lambda: None)
        assert torch.equal(places(mask), mask.nonzero().flatten())


def test_places_are_counted_row_by_row_in_any_layout_of_memory() -> None:
    mask = torch.rand(5, 4, 3, 3, generator=torch.Generator().manual_seed(1)) < 0.3
    flat = mask.flatten().nonzero().flatten()
    assert torch.equal(places(mask), flat)
    assert torch.equal(places(mask.contiguous(memory_format=torch.channels_last)), flat)
