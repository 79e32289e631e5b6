"""The limits agree with their formulas, and with each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from mask_cases import LENET, Masks, independent, mask_lists, mask_pairs, moved

from gossamer.wire.masks.entropy import conditional_bits, mask_bits, row_bits


def binary(chance: float) -> float:
    if chance in (0, 1):
        return 0.0
    return -chance * math.log2(chance) - (1 - chance) * math.log2(1 - chance)


def test_one_of_four_costs_eight_tenths_of_a_bit_each() -> None:
    masks = [np.array([True, False]), np.array(False), np.zeros((1, 1), np.bool_)]
    assert mask_bits(masks) == pytest.approx(4 * 0.8112781244591328, rel=1e-15)


@pytest.mark.parametrize("masks", [[], [np.zeros((0, 3), np.bool_)], [np.ones(5, np.bool_)]])
def test_what_is_certain_costs_nothing(masks: Masks) -> None:
    assert mask_bits(masks) == row_bits(masks) == conditional_bits(masks, masks) == 0.0


def test_few_ones_among_many_lose_no_precision() -> None:
    mask = np.zeros(10_000_000, np.bool_)
    mask[5] = True
    assert mask_bits([mask]) == pytest.approx(math.log2(1e7) + 1 / math.log(2), abs=1e-6)


def test_rows_have_densities_of_their_own() -> None:
    mask = np.zeros((2, 16), np.bool_)
    mask[0] = True
    mask[1, 0] = True
    assert row_bits([mask]) == pytest.approx(16 * binary(1 / 16))


@pytest.mark.parametrize(("density", "rate"), [(0.1, 0.3), (0.2, 0.05), (0.5, 0.01)])
def test_conditional_limit_is_that_of_losses_and_gains(density: float, rate: float) -> None:
    old = independent(LENET, density)
    new = moved(old, rate)
    n = sum(mask.size for mask in old)
    d = sum(int(mask.sum()) for mask in old) / n
    a = round(rate * d * n) / (d * n)
    limit = n * (d * binary(a) + (1 - d) * binary(a * d / (1 - d)))
    assert conditional_bits(new, old) == pytest.approx(limit, rel=1e-9)


@given(mask_lists())
def test_knowing_more_never_raises_the_limit(masks: Masks) -> None:
    whole = mask_bits(masks)
    assert 0 <= row_bits(masks) <= whole + 1e-9
    assert whole <= sum(mask.size for mask in masks) + 1e-9
    assert mask_bits([~mask for mask in masks]) == pytest.approx(whole)


@given(mask_pairs())
def test_a_known_mask_never_raises_the_limit(pair: tuple[Masks, Masks]) -> None:
    new, old = pair
    assert 0 <= conditional_bits(new, old) <= mask_bits(new) + 1e-6
    assert conditional_bits(old, old) == 0.0
