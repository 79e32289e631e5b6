"""Squared norms and copies by the kernels."""

import pytest
import torch

from gossamer.arithmetic import sums
from gossamer.arithmetic.library import FOLDER, Library, builds


def numbers(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000])
def test_the_square_of_a_difference(count: int) -> None:
    a, b = numbers(count, 1), numbers(count, 2)
    exact = (a.double() - b.double()).square().sum().item()
    assert sums.square(a, b) == pytest.approx(exact, rel=1e-14)
    assert sums.square(a) == pytest.approx(a.double().square().sum().item(), rel=1e-14)


def test_other_types_and_layouts_are_squared_too() -> None:
    a = numbers(60, 1).view(6, 10)
    whole = a.double().square().sum().item()
    assert sums.square(a.T) == pytest.approx(whole, rel=1e-14)
    assert sums.square(a.double(), torch.zeros(6, 10)) == pytest.approx(whole, rel=1e-14)


def test_large_and_infinite_numbers() -> None:
    assert sums.square(torch.full((3,), 1e30)) == pytest.approx(3e60, rel=1e-6)
    assert sums.square(torch.tensor([float("inf")])) == float("inf")


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("shape", [(0,), (17,), (6, 10), (4, 3, 5, 5)])
def test_sums_are_those_of_torch_with_and_without_a_mask(
    shape: tuple[int, ...], kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels:
        monkeypatch.setattr(sums, "library", lambda: None)
    draw = torch.Generator().manual_seed(1)
    values, mask = torch.randn(shape, generator=draw), torch.rand(shape, generator=draw) < 0.4
    before = torch.randn(shape, generator=draw).double()
    for kept in (
        None,
        mask,
        mask.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else mask,
    ):
        found = before.clone()
        sums.add(found, values, 0.3, kept)
        chosen = values if kept is None else torch.where(kept, values, 0)
        assert torch.equal(found, before.clone().add_(chosen, alpha=0.3))


def test_numbers_outside_of_a_mask_do_not_count() -> None:
    found, mask = torch.zeros(20).double(), torch.arange(20) < 3
    sums.add(found, torch.full((20,), float("nan")).masked_fill(mask, 1.0), 0.5, mask)
    assert found.sum().item() == 1.5


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("count", [0, 1, 17, 1000])
def test_a_copy_from_any_address(count: int, offset: int) -> None:
    values = numbers(count, 1)
    block = memoryview(b"-" * offset + values.numpy().tobytes())
    to = torch.empty(count)
    assert sums.copy(block[offset:], to)
    assert torch.equal(to, values)


@pytest.mark.parametrize("odd", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("place", [0, 16, 18])
def test_a_copy_says_whether_all_numbers_are_finite(
    place: int, dtype: torch.dtype, odd: float
) -> None:
    values = numbers(19, 1).to(dtype)
    to = torch.empty(19, dtype=dtype)
    assert sums.copy(memoryview(values.view(torch.uint8).numpy()), to)
    values[place] = odd
    assert not sums.copy(memoryview(values.view(torch.uint8).numpy()), to)
    assert torch.equal(to.view(torch.uint8), values.view(torch.uint8))


def test_a_copy_of_large_numbers_is_finite() -> None:
    values = torch.full((40,), 3e38)
    assert sums.copy(memoryview(values.view(torch.uint8).numpy()), torch.empty(40))


@pytest.mark.skipif(len(builds()) < 2, reason="this processor runs one build of the kernels only")
def test_all_builds_give_the_same_bits() -> None:
    a, b = numbers(1013, 1), numbers(1013, 2)
    found = {
        Library(FOLDER / f"kernels_{build}.so", build).square(a.data_ptr(), b.data_ptr(), 1013)
        for build in builds()
    }
    assert len(found) == 1
