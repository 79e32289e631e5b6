"""The parts that the Golomb code is made of, each against the plain way to do it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.wire import WireError
from gossamer.wire.masks.bits import BitReader, before, digits, field, near, pack, places, planes


@given(st.integers(0, 2**40), st.integers(0, 40))
def test_a_number_near_another_comes_back_and_costs_little_over_it(value: int, order: int) -> None:
    line = near(value, order)
    reader = BitReader(pack(line))
    assert reader.near(order, "numbers") == value
    reader.end()
    assert len(line) <= max(order + 1, 2 * (value + 1).bit_length() + 1)


@given(st.lists(st.integers(0, 2), max_size=30))
def test_digits_come_back_five_to_a_byte(values: list[int]) -> None:
    line = digits(np.array(values, np.int64))
    assert len(line) == 8 * -(-len(values) // 5)
    reader = BitReader(pack(line))
    assert reader.digits(len(values), "digits").tolist() == values
    reader.end()


@given(st.integers(0, 16), st.lists(st.integers(0, 2**16 - 1), max_size=30), st.integers(0, 7))
def test_planes_come_back_wherever_they_begin(width: int, values: list[int], start: int) -> None:
    values = [value % (1 << width) for value in values]
    line = np.concatenate([field(0, start), planes(np.array(values, np.int64), width)])
    reader = BitReader(pack(line))
    assert not reader.take(start, "zeros").any()
    assert reader.planes(len(values), width, "numbers").tolist() == values
    reader.end()


@pytest.mark.parametrize("density", [0.0, 0.01, 0.04, 0.07, 0.1, 0.11, 0.5, 1.0])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000, 4321])
def test_ones_are_found_and_counted_at_every_density(density: float, size: int) -> None:
    mask = np.random.default_rng(size).random(size) < density
    assert np.array_equal(places(mask), np.flatnonzero(mask))
    every = np.arange(size + 1)
    wanted = np.concatenate([[0], np.cumsum(mask)])
    assert np.array_equal(before(mask, every), wanted)


def test_what_follows_the_last_bit_is_refused_unless_it_fills_a_byte() -> None:
    reader = BitReader(b"\x01\x00")
    reader.take(1, "bits")
    with pytest.raises(WireError, match="1 bytes follow the end of a mask"):
        reader.end()
    reader.take(8, "bits")
    reader.end()
    reader = BitReader(b"\x02")
    reader.take(1, "bits")
    with pytest.raises(WireError, match="unused bits are not zero"):
        reader.end()
