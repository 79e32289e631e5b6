"""Distances of masks, densities of layers, and masks a given way apart."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mask_toys import Case, cases, equal, inside, layout_with, mask, shapes

from gossamer import Key
from gossamer.sparsity import (
    churn,
    count,
    inactive,
    layer_densities,
    layer_mismatch,
    masked,
    mismatch,
    mismatches,
    random_masks,
    union,
)


def test_mismatch_of_two_layers() -> None:
    """Oracle M3."""
    first = {"a": mask("1100"), "b": mask("100")}
    second = {"a": mask("1010"), "b": mask("110")}
    assert mismatch(first, second) == pytest.approx(0.6)
    assert layer_mismatch(first, second) == pytest.approx({"a": 2 / 3, "b": 0.5})


@given(cases(), st.integers(0, 9))
def test_mismatch_is_a_symmetric_distance_between_zero_and_one(case: Case, seed: int) -> None:
    other = random_masks(Key(seed), case.layout, case.counts)
    distance = mismatch(case.masks, other)
    assert distance == mismatch(other, case.masks) and 0 <= distance <= 1
    assert mismatch(case.masks, case.masks) == 0
    layers = layer_mismatch(case.masks, other)
    assert layers == layer_mismatch(other, case.masks)
    assert all(0 <= each <= 1 for each in layers.values())
    assert (distance == 0) == equal(case.masks, other)


@given(cases(), st.integers(1, 4))
def test_distances_of_all_from_all_are_those_of_two(case: Case, clients: int) -> None:
    sets = [random_masks(Key(n), case.layout, case.counts) for n in range(clients)]
    found = mismatches(sets)
    for row, first in zip(found, sets, strict=True):
        assert row == pytest.approx([mismatch(first, second) for second in sets])


def test_empty_masks_are_no_way_apart() -> None:
    assert mismatch({"w": mask("00")}, {"w": mask("00")}) == 0
    assert mismatch({"w": mask("00")}, {"w": mask("01")}) == 1


@given(cases())
def test_densities_of_layers_are_exact(case: Case) -> None:
    assert layer_densities(case.masks) == {
        name: Fraction(number, case.layout[name].count) for name, number in case.counts.items()
    }


def test_swaps_for_a_distance() -> None:
    """At 0.8 two thirds are exchanged, at 0.5 one third."""
    masks = random_masks(Key(1), layout_with((30, 30)), {"a": 300})
    for distance, swapped in ((0.8, 200), (0.5, 100), (0, 0), (1, 300)):
        change = churn(Key(2), masks, distance)
        assert count(change.grown) == count(change.pruned) == {"a": swapped}
        assert mismatch(masks, change.masks) == pytest.approx(distance)


@given(shapes, st.fractions(0, 1, max_denominator=50), st.integers(0, 99), st.data())
def test_a_distance_is_met_up_to_one_swap(
    shape: tuple[int, ...], distance: Fraction, seed: int, data: st.DataObject
) -> None:
    layout = layout_with(shape)
    size = layout["a"].count
    active = data.draw(st.integers(0, size))
    masks = random_masks(Key(seed), layout, {"a": active})
    change = churn(Key(seed), masks, float(distance))
    assert count(change.masks) == {"a": active}
    assert inside(change.grown, inactive(masks)) and inside(change.pruned, masks)
    assert equal(change.masks, union(change.kept, change.grown))
    swapped = active * distance / (2 - distance)
    if swapped <= size - active:
        # One swap more or less is 2x / (k + x) at x +- 1/2.
        least, most = max(swapped - Fraction(1, 2), Fraction(0)), swapped + Fraction(1, 2)
        achieved = mismatch(masks, change.masks)
        assert float(2 * least) <= achieved * float(active + least) + 1e-9
        assert achieved * float(active + most) <= float(2 * most) + 1e-9
    else:
        assert count(change.grown) == {"a": size - active}


def test_churn_leaves_other_layers_alone() -> None:
    masks = random_masks(Key(1), layout_with((10, 10), (10, 10)), {"a": 30, "b": 30})
    change = churn(Key(2), masks, 0.5, layers=["b"])
    assert torch.equal(change.masks["a"], masks["a"])
    assert layer_mismatch(masks, change.masks)["b"] == pytest.approx(0.5)


def test_what_churn_grows_starts_from_zero() -> None:
    masks = random_masks(Key(1), layout_with((10, 10)), {"a": 30})
    change = churn(Key(2), masks, 0.8)
    left = masked({"a": torch.ones(10, 10)}, change.kept)["a"]
    assert not left[change.grown["a"]].any() and int(left.sum()) == 10


def test_a_distance_beyond_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, not 1\.5"):
        churn(Key(1), {"w": mask("10")}, 1.5)
