"""Means: weighted, in float64, independent of the order within rounding."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer import Client, Params
from gossamer.merge import fitting, mean, weight
from gossamer.wire import WireError


def scalars(*values: float) -> list[Params]:
    return [{"w": torch.tensor([float(value)])} for value in values]


def test_a_client_counts_for_its_examples_or_for_one() -> None:
    assert weight(Client(3, 17), "samples") == 17.0
    assert weight(Client(3, 17), "uniform") == 1.0


def test_the_mean_is_weighted() -> None:
    found = mean(zip(scalars(1, 4), [1.0, 3.0], strict=True))
    assert found["w"].tolist() == [3.25]


@pytest.mark.parametrize("shares", [(50.0, 7.0, 613.0), (1 / 3, 0.7, 1e-3)])
def test_the_mean_has_the_bits_of_torch(shares: tuple[float, ...]) -> None:
    """Kernels, where there are any, must not change a result."""
    generator = torch.Generator().manual_seed(1)
    for size in (*range(1, 40), 1001, 40_003):
        parts = [torch.randn(size, 2, generator=generator) for _ in shares]
        for each in (parts, [part.t().contiguous().t() for part in parts]):  # also not contiguous
            wanted = torch.zeros(size, 2, dtype=torch.float64)
            for part, share in zip(each, shares, strict=True):
                wanted.add_(part, alpha=share)
            found = mean(({"w": part}, share) for part, share in zip(each, shares, strict=True))
            assert torch.equal(found["w"], (wanted / sum(shares)).float())


def test_nothing_to_combine_is_empty() -> None:
    assert mean(iter(())) == {}


def test_small_parts_are_not_lost_in_large_sums() -> None:
    """2^24 + 1 + 1 is 2^24 in float32."""
    found = mean((part, 1.0) for part in scalars(2.0**24, 1.0, 1.0))
    assert found["w"].item() == (2**24 + 2) / 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_mean_has_the_type_and_shape_of_its_parts(dtype: torch.dtype) -> None:
    found = mean([({"w": torch.full((2, 3), 2.0, dtype=dtype)}, 5.0)])["w"]
    assert found.dtype == dtype and found.shape == (2, 3) and found.eq(2).all()


def test_the_parts_are_not_changed() -> None:
    parts = scalars(1, 2)
    mean((part, 2.0) for part in parts)
    assert [part["w"].item() for part in parts] == [1, 2]


@given(
    st.lists(st.tuples(st.floats(-10, 10, width=32), st.integers(1, 50)), min_size=1, max_size=4)
)
def test_the_mean_does_not_depend_on_the_order_of_arrival(
    clients: list[tuple[float, int]],
) -> None:
    parts = [({"w": torch.tensor([value])}, float(count)) for value, count in clients]
    first = mean(parts)["w"]
    for order in itertools.permutations(parts):
        torch.testing.assert_close(mean(order)["w"], first, rtol=1e-6, atol=1e-12)


def test_a_reply_that_fits_is_returned_as_it_is() -> None:
    found = {"w": torch.ones(2, 3)}
    assert fitting(found, {"w": torch.zeros(2, 3)}) is found


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, "lacks or adds w"),
        ({"w": torch.ones(2), "v": torch.ones(1)}, "lacks or adds v"),
        ({"w": torch.ones(1)}, r"shape \(1,\), but torch.float32 of shape \(2,\) was sent"),
        ({"w": torch.ones(2, dtype=torch.float64)}, "came back as torch.float64"),
    ],
)
def test_a_reply_of_other_names_shapes_or_types_is_refused(found: Params, said: str) -> None:
    with pytest.raises(WireError, match=said):
        fitting(found, {"w": torch.zeros(2)})
