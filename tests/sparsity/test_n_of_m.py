"""N:M masks: group counts, exact totals, and what a group is."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mask_toys import (
    Case,
    cases,
    channels_last,
    equal,
    fewer_examples,
    inside,
    layout_with,
    share,
    weights,
)

from gossamer import Key
from gossamer.sparsity import (
    allocate,
    apportion,
    count,
    group_counts,
    largest_in_groups,
    pattern,
    random_groups,
    regrow_in_groups,
    union,
)
from gossamer.sparsity.n_of_m import _Blocks

sizes = st.integers(1, 6)


def test_a_group_is_consecutive_input_channels_at_one_place_of_the_kernel() -> None:
    weight = torch.arange(2 * 8 * 3 * 3).reshape(2, 8, 3, 3)
    groups = _Blocks((2, 8, 3, 3), 4).split(weight.flatten().numpy(), -1)
    assert groups.shape == (36, 4)
    assert groups[0].tolist() == weight[0, 0:4, 0, 0].tolist()
    assert groups[1].tolist() == weight[0, 4:8, 0, 0].tolist()
    assert groups[2].tolist() == weight[0, 0:4, 0, 1].tolist()
    assert groups[35].tolist() == weight[1, 4:8, 2, 2].tolist()


def test_channels_that_do_not_divide_are_grouped_flat_with_a_short_last_group() -> None:
    weight = torch.arange(2 * 3 * 3 * 3).reshape(2, 3, 3, 3)
    groups = _Blocks((2, 3, 3, 3), 16).split(weight.flatten().numpy(), -1)
    assert groups.shape == (4, 16)
    assert groups[0].tolist() == list(range(16))
    assert groups[1].tolist() == [*range(16, 27), *[-1] * 5]
    assert groups[2].tolist() == list(range(27, 43))


def test_linear_layers_are_grouped_along_inputs() -> None:
    groups = _Blocks((2, 4), 2).split(torch.arange(8).numpy(), -1)
    assert groups.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@given(cases(), sizes)
def test_groups_can_be_joined_again(case: Case, size: int) -> None:
    for mask in case.masks.values():
        blocks = _Blocks(tuple(mask.shape), size)
        flags = mask.flatten().numpy()
        assert (blocks.join(blocks.split(flags, False)) == flags).all()


@given(cases(), sizes, st.booleans())
def test_groups_have_the_floor_or_the_ceiling_of_their_share(
    case: Case, size: int, random: bool
) -> None:
    if random:
        found = random_groups(case.key, case.layout, case.counts, size)
    else:
        found = largest_in_groups(case.params, case.counts, size)
    assert count(found) == case.counts
    whole = group_counts({name: torch.ones_like(mask) for name, mask in found.items()}, size)
    most = pattern(case.layout, case.counts, size)
    for name, active in group_counts(found, size).items():
        density = Fraction(case.counts[name], case.layout[name].count)
        for number, room in zip(active.tolist(), whole[name].tolist(), strict=True):
            assert floor(density * room) <= number <= ceil(density * room)
        assert int(active.max()) <= most[name]


def test_two_of_four() -> None:
    layout = layout_with((4, 8, 3, 3))
    found = random_groups(Key(1), layout, {"a": 144}, 4)
    assert set(group_counts(found, 4)["a"].tolist()) == {2}
    assert pattern(layout, {"a": 144}, 4) == {"a": 2}
    assert pattern(layout, {"a": 145}, 4) == {"a": 3}


def test_the_largest_of_each_group_are_kept() -> None:
    params = {"w": torch.tensor([[4.0, -9, 1, 2, 0, 0, 0.5, -0.1]])}
    found = largest_in_groups(params, {"w": 4}, 4)["w"]
    assert found.int().tolist() == [[1, 1, 0, 0, 0, 0, 1, 1]]
    ties = largest_in_groups({"w": torch.ones(1, 8)}, {"w": 4}, 4)["w"]
    assert ties.int().tolist() == [[1, 1, 0, 0, 1, 1, 0, 0]]


@fewer_examples
@given(cases(), sizes, st.fractions(0, 1, max_denominator=10))
def test_regrowing_keeps_the_count_of_every_group(case: Case, size: int, rate: Fraction) -> None:
    masks = random_groups(case.key, case.layout, case.counts, size)
    removed = share(case.counts, rate)
    change = regrow_in_groups(case.key, case.params, masks, removed, size)
    before, after = group_counts(masks, size), group_counts(change.masks, size)
    assert equal(before, after)
    expected = {n: min(r, max(case.counts[n] - 1, 0)) for n, r in removed.items()}
    assert count(change.pruned) == count(change.grown) == expected
    assert inside(change.pruned, masks)
    assert equal(change.masks, union(change.kept, change.grown))


def test_regrowing_prunes_the_smallest_and_draws_the_place() -> None:
    params = {"w": torch.tensor([[4.0, 0, 1, 0, 9, 8, 0, 0]])}
    masks = {"w": params["w"] != 0}
    seen = set()
    for seed in range(40):
        change = regrow_in_groups(Key(seed), params, masks, {"w": 1}, 4)
        assert change.pruned["w"].nonzero().tolist() == [[0, 2]]
        seen.add(int(change.grown["w"].nonzero()[0, 1]))
    assert seen == {1, 2, 3}


def test_regrowing_may_go_where_scores_of_the_group_are_largest() -> None:
    params = {"w": torch.tensor([[4.0, 0, 1, 0, 9, 8, 0, 0]])}
    masks = {"w": params["w"] != 0}
    slopes = {"w": torch.tensor([[9.0, 1, 2, -3, 9, 9, 9, 9]])}
    change = regrow_in_groups(slopes, params, masks, {"w": 1}, 4)
    assert change.pruned["w"].nonzero().tolist() == [[0, 2]]
    assert change.grown["w"].nonzero().tolist() == [[0, 3]]
    back = regrow_in_groups({"w": slopes["w"].abs().neg().exp()}, params, masks, {"w": 2}, 4)
    assert back.pruned["w"].nonzero().tolist() == [[0, 0], [0, 2]]
    assert back.grown["w"].nonzero().tolist() == [[0, 1], [0, 2]]


@fewer_examples
@given(cases(), sizes)
def test_nothing_depends_on_the_order_in_memory(case: Case, size: int) -> None:
    other = channels_last(case.params)
    first = largest_in_groups(case.params, case.counts, size)
    assert equal(first, largest_in_groups(other, case.counts, size))
    removed = share(case.counts, Fraction(1, 3))
    left = regrow_in_groups(case.key, case.params, first, removed, size)
    right = regrow_in_groups(case.key, other, channels_last(first), removed, size)
    assert equal(left.masks, right.masks)


def test_counts_from_any_allocation_fit() -> None:
    layout = layout_with((8, 3, 3, 3), (16, 16, 3, 3), (10, 32))
    counts = apportion(layout, allocate(layout, 0.2, "erk"))
    found = random_groups(Key(1), layout, counts)
    assert count(found) == counts
    assert count(largest_in_groups(weights(layout, 1), counts)) == counts
    with pytest.raises(ValueError, match="a layer of 216 weights cannot keep 217"):
        random_groups(Key(1), layout, {"a": 217})
