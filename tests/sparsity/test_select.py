"""Exact choices: counts, ties, frozen weights, and growth in both ways."""

from __future__ import annotations

import doctest
import time
from fractions import Fraction

import numpy as np
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
    mask,
    share,
    weights,
)

import gossamer.sparsity
from gossamer import Key
from gossamer.sparsity import (
    Change,
    count,
    counts_after_removal,
    difference,
    grow_largest,
    grow_random,
    inactive,
    largest,
    largest_of_all,
    masked,
    numbers,
    random_masks,
    readjust,
    top,
    union,
)
from gossamer.sparsity.algebra import ranked

shares = st.fractions(0, 1, max_denominator=20)


def test_the_examples_of_the_package_are_right() -> None:
    found = doctest.testmod(gossamer.sparsity)
    assert found.attempted > 5 and not found.failed


# top ----------------------------------------------------------------------------------------------


def test_top_keeps_exactly_count_under_ties() -> None:
    assert top(torch.tensor([2.0, 5, 5, 1, 5, 2]), 2).tolist() == mask("011000").tolist()
    assert top(torch.tensor([2.0, 5, 5, 1, 5, 2]), 4).tolist() == mask("111010").tolist()
    assert top(torch.zeros(5), 3).tolist() == mask("11100").tolist()


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    st.data(),
)
def test_top_is_a_stable_sort(values: list[int], data: st.DataObject) -> None:
    wanted = data.draw(st.integers(0, len(values)))
    scores = torch.tensor(values, dtype=torch.float32)
    order = np.argsort(-scores.numpy(), kind="stable")[:wanted]
    assert sorted(order.tolist()) == top(scores, wanted).nonzero().flatten().tolist()


def test_what_is_not_a_number_ranks_last() -> None:
    nan, inf = float("nan"), float("inf")
    scores = torch.tensor([nan, 1.0, nan, inf, -inf])
    assert top(scores, 2).tolist() == mask("01010").tolist()
    assert int(top(scores, 4).sum()) == 4


def test_only_candidates_are_chosen() -> None:
    chosen = top(torch.tensor([9.0, 8, 7, 6]), 2, among=mask("0111"))
    assert chosen.tolist() == mask("0110").tolist()
    with pytest.raises(ValueError, match="largest 4 of 3"):
        top(torch.ones(4), 4, among=mask("0111"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_kind_of_number_can_be_ranked(dtype: torch.dtype) -> None:
    assert top(torch.tensor([1, 3, 2], dtype=dtype), 2).tolist() == [False, True, True]


def test_top_is_several_times_faster_than_a_sort() -> None:
    """At 400 000 weights; the ratio is about a hundred, asked for are five."""
    scores = torch.rand(400_000, generator=Key(1).generator())

    def quickest(call: object) -> float:
        found = []
        for _ in range(3):
            start = time.perf_counter()
            call()  # type: ignore[operator]
            found.append(time.perf_counter() - start)
        return min(found)

    sort = quickest(lambda: torch.sort(scores, stable=True, descending=True))
    assert 5 * quickest(lambda: top(scores, 20_000)) < sort


# pruning ------------------------------------------------------------------------------------------


def test_frozen_weights_survive_pruning() -> None:
    """Oracle M6."""
    params = {"w": torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])}
    frozen = {"w": mask("11000")}
    assert largest(params, {"w": 3}, frozen=frozen)["w"].tolist() == mask("11001").tolist()
    both = largest(params, {"w": 3}, {"w": mask("11110")}, frozen)
    assert both["w"].tolist() == mask("11010").tolist()
    with pytest.raises(ValueError, match="keep 1 weights, but has 5, 2 of them frozen"):
        largest(params, {"w": 1}, frozen=frozen)


@given(cases(), shares)
def test_pruning_meets_its_counts_inside_the_masks(case: Case, left: Fraction) -> None:
    wanted = share(case.counts, left)
    found = largest(case.params, wanted, case.masks, least=0)
    assert count(found) == wanted and inside(found, case.masks)
    for name, kept in found.items():
        size = case.params[name].abs()
        gone = case.masks[name] & ~kept
        if kept.any() and gone.any():
            assert size[kept].min() >= size[gone].max()


@fewer_examples
@given(cases(), shares, shares)
def test_pruning_keeps_what_is_frozen(case: Case, frozen: Fraction, left: Fraction) -> None:
    fixed = random_masks(case.key, case.layout, share(case.counts, frozen))
    both = union(case.masks, fixed)
    floor_, all_ = count(fixed), count(both)
    wanted = {name: floor_[name] + int((all_[name] - floor_[name]) * left) for name in all_}
    found = largest(case.params, wanted, both, fixed, least=0)
    assert count(found) == wanted and inside(fixed, found) and inside(found, both)


@given(cases())
def test_no_layer_is_left_empty(case: Case) -> None:
    nothing = dict.fromkeys(case.counts, 0)
    some = {name: min(number, 1) for name, number in case.counts.items()}
    assert count(largest(case.params, nothing, case.masks)) == some
    assert counts_after_removal(case.masks, case.counts) == some
    assert counts_after_removal(case.masks, case.counts, least=0) == nothing


def test_a_layer_with_fewer_than_its_count_keeps_all_it_has() -> None:
    params, few = {"w": torch.ones(4)}, {"w": mask("0100")}
    assert equal(largest(params, {"w": 3}, few), few)
    with pytest.raises(ValueError, match="w is to keep 5 weights, but has 4"):
        largest(params, {"w": 5})


def test_pruning_by_percentages_drops_one_at_a_time() -> None:
    """A fifth of five, again and again (the vector of Sub-FedAvg)."""
    params = {"w": torch.tensor([0.1, -0.2, 0.3, -0.4, 0.5])}
    masks, seen = {"w": mask("11111")}, []
    for _ in range(4):
        masks = largest(params, counts_after_removal(masks, {"w": 1}), masks)
        seen.append("".join(str(int(kept)) for kept in masks["w"]))
    assert seen == ["01111", "00111", "00011", "00001"]


@given(cases(), shares)
def test_the_largest_of_all_layers_are_the_largest_of_one(case: Case, left: Fraction) -> None:
    total = int(sum(case.counts.values()) * left)
    found = largest_of_all(case.params, total, case.masks, least=0)
    assert sum(count(found).values()) == total and inside(found, case.masks)
    joined = torch.cat([tensor.flatten() for tensor in case.params.values()])
    among = torch.cat([kept.flatten() for kept in case.masks.values()])
    whole = torch.cat([kept.flatten() for kept in found.values()])
    assert torch.equal(whole, top(joined.abs(), total, among))


def test_the_largest_of_all_leave_something_in_every_layer() -> None:
    params = {"a": torch.tensor([0.1, 0.2]), "b": torch.tensor([5.0, 6.0, 7.0])}
    every = {"a": mask("11"), "b": mask("111")}
    assert count(largest_of_all(params, 3, every)) == {"a": 1, "b": 2}
    frozen = {"a": mask("10"), "b": mask("000")}
    found = largest_of_all(params, 3, every, frozen, least=0)
    assert found["a"].tolist() == [True, False] and count(found) == {"a": 1, "b": 2}


# growing ------------------------------------------------------------------------------------------


@given(cases(), shares)
def test_growth_meets_its_counts_outside_the_masks(case: Case, more: Fraction) -> None:
    free = count(inactive(case.masks))
    added = share(free, more)
    for grown in (
        grow_random(case.key, case.masks, added),
        grow_largest(case.params, case.masks, added),
    ):
        assert count(grown) == added
        assert inside(grown, inactive(case.masks))


@fewer_examples
@given(cases(), shares, shares)
def test_growth_stays_where_it_is_allowed(case: Case, part: Fraction, more: Fraction) -> None:
    allowed = random_masks(case.key, case.layout, share(count(inactive(case.masks)), part))
    added = share(count(difference(allowed, case.masks)), more)
    for grown in (
        grow_random(case.key, case.masks, added, allowed),
        grow_largest(case.params, case.masks, added, allowed),
    ):
        assert count(grown) == added and inside(grown, difference(allowed, case.masks))


def test_growth_of_more_than_there_is_room_for_is_refused() -> None:
    with pytest.raises(ValueError, match="w is to grow by 3 weights, but 2 may be grown"):
        grow_random(Key(1), {"w": mask("1100")}, {"w": 3})
    with pytest.raises(ValueError, match="w is to grow by 3 weights, but 2 may be grown"):
        grow_largest({"w": torch.ones(4)}, {"w": mask("1100")}, {"w": 3})


def test_every_place_is_grown_as_often_as_any_other() -> None:
    seen = torch.zeros(6)
    for index in range(3000):
        seen += grow_random(Key(index), {"w": mask("010000")}, {"w": 2})["w"]
    assert seen[1] == 0
    assert (seen[[0, 2, 3, 4, 5]] / 3000 - 2 / 5).abs().max() < 0.04


def test_bernoulli_growth_meets_its_count_in_the_mean() -> None:
    masks = {"w": torch.zeros(100, dtype=torch.bool)}
    counts = [
        int(grow_random(Key(index), masks, {"w": 20}, bernoulli=True)["w"].sum())
        for index in range(400)
    ]
    assert len(set(counts)) > 5 and abs(np.mean(counts) - 20) < 0.8
    assert grow_random(Key(0), masks, {"w": 100}, bernoulli=True)["w"].all()
    assert not grow_random(Key(0), masks, {"w": 0}, bernoulli=True)["w"].any()


# readjusting --------------------------------------------------------------------------------------

PARAMS = {"w": torch.tensor([0.6, -0.5, 0.4, 0.3, 0.0, 0.0])}
GRADS = {"w": torch.tensor([9.0, -1, 5, 2, -4, 3])}
MASKS = {"w": mask("111100")}


def test_feddst_restores_its_count() -> None:
    """The vector of FedDST and FedSpa, and oracle M5."""
    change = readjust(PARAMS, MASKS, {"w": 2}, {"w": 4}, GRADS)
    assert change.masks["w"].tolist() == mask("111010").tolist()
    assert torch.equal(masked(PARAMS, change.kept)["w"], PARAMS["w"] * mask("110000"))
    assert change.pruned["w"].tolist() == mask("001100").tolist()
    assert change.grown["w"].tolist() == mask("001010").tolist()


def test_the_released_feddst_loses_weights() -> None:
    """The vector of the released code, and the other half of oracle M5."""
    change = readjust(PARAMS, MASKS, {"w": 2}, {"w": 4}, GRADS, everywhere=True)
    assert change.masks["w"].tolist() == mask("111000").tolist()
    assert torch.equal(masked(PARAMS, change.kept)["w"], PARAMS["w"] * mask("010000"))


@fewer_examples
@given(cases(), shares, st.booleans())
def test_readjusting_restores_counts(case: Case, left: Fraction, random: bool) -> None:
    low = share(case.counts, left)
    by = case.key if random else weights(case.layout, case.key.seed + 1)
    change = readjust(case.params, case.masks, low, case.counts, by)
    assert count(change.masks) == case.counts
    assert equal(change.masks, union(change.kept, change.grown))
    assert inside(change.pruned, case.masks) and inside(change.kept, case.masks)
    assert equal(difference(case.masks, change.pruned), change.kept)


@fewer_examples
@given(cases(), shares, shares)
def test_released_growth_never_exceeds_the_count_nor_touches_what_is_frozen(
    case: Case, frozen: Fraction, left: Fraction
) -> None:
    fixed = largest(case.params, share(case.counts, frozen), case.masks, least=0)
    free = difference(case.masks, fixed)
    low = {name: number + int(count(free)[name] * left) for name, number in count(fixed).items()}
    grads = weights(case.layout, case.key.seed + 1)
    change = readjust(case.params, case.masks, low, case.counts, grads, fixed, everywhere=True)
    assert all(number <= case.counts[name] for name, number in count(change.masks).items())
    assert inside(fixed, change.kept)


# memory and algebra -------------------------------------------------------------------------------


@fewer_examples
@given(cases(), shares)
def test_nothing_depends_on_the_order_in_memory(case: Case, left: Fraction) -> None:
    low = share(case.counts, left)
    grads = weights(case.layout, case.key.seed + 1)
    other, masks = channels_last(case.params), channels_last(case.masks)
    for by, again in ((case.key, case.key), (grads, channels_last(grads))):
        first = readjust(case.params, case.masks, low, case.counts, by)
        second = readjust(other, masks, low, case.counts, again)
        assert equal(first.masks, second.masks) and equal(first.grown, second.grown)
    total = sum(low.values())
    assert equal(
        largest_of_all(case.params, total, case.masks), largest_of_all(other, total, masks)
    )


def test_masked_weights_and_numbers_are_laid_out_like_their_weights() -> None:
    layout = layout_with((2, 4, 3, 3), (3, 3))
    params = channels_last(weights(layout, 1))
    masks = largest(params, {"a": 10, "b": 4})
    found = numbers(masks, params)
    for name, tensor in found.items():
        assert tensor.stride() == params[name].stride() and tensor.dtype == torch.float32
        assert torch.equal(tensor.bool(), masks[name])
    zeroed = masked(params, masks)
    assert equal(zeroed, {n: params[n] * found[n] for n in params})
    assert all(zeroed[name].stride() == tensor.stride() for name, tensor in params.items())


def test_masking_hands_on_what_has_no_mask_and_forgets_what_is_not_a_number() -> None:
    bias, weight = torch.ones(2), torch.tensor([1.0, float("nan")])
    found = masked({"w": weight, "b": bias}, {"w": mask("10")})
    assert found["b"] is bias and found["w"].tolist() == [1.0, 0.0]


def test_a_change_tells_what_happened() -> None:
    change = Change.of({"w": mask("1110")}, {"w": mask("1100")}, {"w": mask("0011")})
    assert change.masks["w"].tolist() == mask("1111").tolist()
    assert change.kept["w"].tolist() == mask("1100").tolist()
    assert change.pruned["w"].tolist() == mask("0010").tolist()


def test_arguments_are_not_changed() -> None:
    params, masks = {"w": PARAMS["w"].clone()}, {"w": MASKS["w"].clone()}
    readjust(params, masks, {"w": 2}, {"w": 4}, GRADS)
    readjust(params, masks, {"w": 2}, {"w": 4}, Key(1))
    assert equal(params, PARAMS) and equal(masks, MASKS)


@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -2.0, 3.5, np.inf, -np.inf, np.nan]), min_size=1),
    st.integers(0, 10**6),
    st.sampled_from([np.float32, np.float64]),
)
def test_a_rank_is_that_of_sorted_numbers_however_many_are_equal(
    some: list[float], place: int, kind: type
) -> None:
    rest = np.random.default_rng(place).normal(size=1500)
    values = np.concatenate([np.tile(some, 2000 // len(some) + 1), rest]).astype(kind)
    place %= len(values)
    assert ranked(values, place) == pytest.approx(np.sort(values)[place], abs=0, nan_ok=True)
    assert ranked(rest, place % 1500) == np.sort(rest)[place % 1500]


def test_numbers_of_which_most_are_no_numbers_have_ranks_too() -> None:
    values = np.full(5000, np.nan)
    values[::7] = 1.0
    assert ranked(values, 3) == 1.0 and np.isnan(ranked(values, 4999))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.95])
def test_the_largest_of_a_sparse_layer_are_those_of_a_sort(share: float) -> None:
    draw = np.random.default_rng(1)
    scores = np.where(draw.random(20_000) < share, 0, draw.normal(size=20_000) ** 2)
    order = np.argsort(-scores, kind="stable")
    for wanted in (1, 500, 4_000, 19_000):
        found = top(torch.from_numpy(scores), wanted).numpy()
        assert set(np.flatnonzero(found)) == set(order[:wanted])
