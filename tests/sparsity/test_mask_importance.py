"""PruneFL's rule: which weights are worth the time that they take."""

from __future__ import annotations

import doctest
from collections.abc import Sequence
from fractions import Fraction
from itertools import chain, combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mask_toys import channels_last, equal, inside, layout_with, mask, weights

from gossamer import Key, Masks, Params, Task
from gossamer.sparsity import (
    Importance,
    Pace,
    adjust,
    adjustment,
    count,
    largest,
    random_masks,
    worthwhile,
)

Candidate = tuple[int, int]
"""Importance and time, in whole numbers, whose products and sums are exact."""


def arrays(candidates: Sequence[Candidate]) -> tuple[np.ndarray, np.ndarray]:
    values, costs = zip(*candidates, strict=True) if candidates else ((), ())
    return np.array(values, np.float64), np.array(costs, np.float64)


def one_by_one(
    candidates: Sequence[Candidate], gain: int, time: int, most: int | None
) -> tuple[list[int], int, int]:
    """The rule as it is told, in exact fractions."""
    left, chosen = list(range(len(candidates))), list[int]()
    while left and (most is None or len(chosen) < most):
        best = max(left, key=lambda index: (Fraction(*candidates[index]), -index))
        value, cost = candidates[best]
        if not value * time > gain * cost:
            break
        left.remove(best)
        chosen.append(best)
        gain, time = gain + value, time + cost
    return sorted(chosen), gain, time


pools = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=9)


# candidates -------------------------------------------------------------------------------------


def test_candidates_are_added_as_long_as_the_ratio_grows() -> None:
    """Oracle R1: 4 / 4, then 7 / 5, then 8.5 / 6, and 1.1 is not worth it."""
    values, costs = np.array([1.1, 3.0, 1.5]), np.ones(3)
    steps = [worthwhile(values, costs, 4.0, 4.0, most) for most in (0, 1, 2, 3, None)]
    assert [(each.importance, each.time) for each in steps] == [
        (4.0, 4.0),
        (7.0, 5.0),
        (8.5, 6.0),
        (8.5, 6.0),
        (8.5, 6.0),
    ]
    assert steps[-1].chosen.tolist() == [False, True, True]


@given(pools, st.integers(0, 60), st.integers(0, 12), st.none() | st.integers(0, 9))
def test_all_at_once_is_one_by_one(
    candidates: list[Candidate], gain: int, time: int, most: int | None
) -> None:
    found = worthwhile(*arrays(candidates), gain, time, most)
    chosen, gained, spent = one_by_one(candidates, gain, time, most)
    assert np.flatnonzero(found.chosen).tolist() == chosen
    assert (found.importance, found.time) == (gained, spent)


@given(pools, st.integers(0, 60), st.integers(1, 12))
def test_no_other_choice_has_a_larger_ratio(
    candidates: list[Candidate], gain: int, time: int
) -> None:
    found = worthwhile(*arrays(candidates), gain, time)
    sizes = range(len(candidates) + 1)
    best = max(
        Fraction(gain + sum(v for v, _ in chosen), time + sum(t for _, t in chosen))
        for chosen in chain.from_iterable(combinations(candidates, size) for size in sizes)
    )
    assert Fraction(int(found.importance), int(found.time)) == best


def test_ties_go_to_the_lower_index() -> None:
    values, costs = np.array([2.0, 6.0, 3.0, 4.0, 2.0]), np.array([1.0, 3.0, 1.0, 2.0, 1.0])
    for most, wanted in enumerate([[], [2], [0, 2], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]):
        found = worthwhile(values, costs, 0.0, 9.0, most)
        assert np.flatnonzero(found.chosen).tolist() == wanted


def test_a_candidate_that_leaves_the_ratio_as_it_is_is_not_added() -> None:
    assert not worthwhile(np.array([2.0, 4.0]), np.array([1.0, 2.0]), 2.0, 1.0).chosen.any()


def test_nothing_is_worth_less_than_nothing() -> None:
    """Without importance there is no ratio to raise, and what is not a number is no candidate."""
    nothing = np.zeros(2)
    assert not worthwhile(nothing, np.ones(2), 0.0, 0.0).chosen.any()
    assert not worthwhile(nothing, np.ones(2), 0.0, 3.0).chosen.any()
    odd = worthwhile(np.array([np.nan, 1.0]), np.ones(2), 0.0, 3.0)
    assert odd.chosen.tolist() == [False, True]


# masks ------------------------------------------------------------------------------------------

WEIGHTS = torch.tensor([0.9, -0.5, 0.2, 0.1, 0.0, 0.0])


@pytest.mark.parametrize(
    ("values", "most", "wanted"),
    [
        ([4, 1, 9, 0.04, 1, 0.01], None, "111000"),
        ([4, 1, 9, 0.04, 3, 0.01], None, "111010"),
        ([4, 1, 9, 0.04, 3, 0.01], 3, "111000"),
        ([4, 1, 9, 0.04, 3, 0.01], 2, "110000"),
        ([4, 1, 9, 0.04, 3, 0.01], 0, "110000"),
    ],
)
def test_the_worked_examples(values: list[float], most: int | None, wanted: str) -> None:
    found = adjust(
        {"w": WEIGHTS},
        {"w": mask("111100")},
        Importance({"w": torch.tensor(values)}, 0.0),
        {"w": 1.0},
        fixed=2.0,
        drop=0.5,
        most=most,
    )
    assert torch.equal(found.masks["w"], mask(wanted))


def test_what_is_never_pruned_raises_the_bar() -> None:
    """R1 in masks: 1 and 3 of importance in 2 and 2 of time, candidates 3, 1.5 and 1.1."""
    params = {"a": torch.tensor([5.0, 4.0, 0.1]), "b": torch.tensor([0.0, 0.0])}
    masks = {"a": mask("111"), "b": mask("00")}
    weights = {"a": torch.tensor([0.5, 0.5, 1.5]), "b": torch.tensor([1.1, 3.0])}
    times = {"a": 1.0, "b": 1.0}
    found = adjust(params, masks, Importance(weights, 3.0), times, fixed=2.0, drop=0.4)
    assert (found.importance, found.time) == (8.5, 6.0)
    assert torch.equal(found.masks["a"], mask("111"))
    assert torch.equal(found.masks["b"], mask("01"))
    less = adjust(params, masks, Importance(weights, 9.0), times, fixed=2.0, drop=0.4)
    assert torch.equal(less.masks["a"], mask("110")) and torch.equal(less.masks["b"], mask("01"))


def test_a_weight_in_a_slow_layer_must_be_worth_more() -> None:
    params = {"fast": torch.zeros(2), "slow": torch.zeros(2)}
    masks = {name: mask("10") for name in params}
    weights = {"fast": torch.tensor([1.0, 2.0]), "slow": torch.tensor([1.0, 2.0])}
    found = adjust(params, masks, Importance(weights, 0.0), {"fast": 1.0, "slow": 3.0}, 0.0, 0.0)
    assert count(found.masks) == {"fast": 2, "slow": 1}
    assert (found.importance, found.time) == (4.0, 5.0)


@st.composite
def states(draw: st.DrawFn) -> tuple[Params, Masks, Importance, dict[str, float]]:
    layout = layout_with((3, 4), (2, 3, 2, 2), (5, 2))
    names = layout.prunable
    seed = draw(st.integers(0, 99))
    kept = {name: draw(st.integers(0, layout[name].count)) for name in names}
    masks = random_masks(Key(seed), layout, kept)
    squares = {name: tensor.square() for name, tensor in weights(layout, seed + 1).items()}
    times = {name: float(draw(st.integers(1, 3))) for name in names}
    rest = float(draw(st.integers(0, 50)))
    return weights(layout, seed), masks, Importance(squares, rest), times


@given(
    states(),
    st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]),
    st.integers(0, 40),
    st.none() | st.integers(0, 46),
)
def test_masks_keep_the_large_weights_and_add_what_is_worth_it(
    state: tuple[Params, Masks, Importance, dict[str, float]],
    drop: float,
    fixed: int,
    most: int | None,
) -> None:
    params, masks, found, times = state
    after = adjust(params, masks, found, times, fixed, drop, most)
    counts = {}
    for name, active in count(masks).items():
        removed = int(Fraction(str(drop)) * active)
        counts[name] = max(active - removed, min(active, 1))
    kept = largest(params, counts, masks)
    assert inside(kept, after.masks)

    gain, time, candidates, places = int(found.rest), fixed, list[Candidate](), []
    for name, stays in kept.items():
        for place, value in enumerate(found.weights[name].flatten().int().tolist()):
            if stays.flatten()[place]:
                gain, time = gain + value, time + int(times[name])
            else:
                candidates.append((value, int(times[name])))
                places.append((name, place))
    room = None if most is None else max(most - sum(counts.values()), 0)
    chosen, gained, spent = one_by_one(candidates, gain, time, room)
    wanted = {name: stays.flatten().clone() for name, stays in kept.items()}
    for index in chosen:
        name, place = places[index]
        wanted[name][place] = True
    assert equal({name: each.flatten() for name, each in after.masks.items()}, wanted)
    assert (after.importance, after.time) == (gained, spent)
    assert all(after.masks[name].shape == each.shape for name, each in masks.items())


@given(states())
def test_strides_do_not_matter_and_nothing_is_changed(
    state: tuple[Params, Masks, Importance, dict[str, float]],
) -> None:
    params, masks, found, times = state
    before = [{n: t.clone() for n, t in each.items()} for each in (params, masks, found.weights)]
    one = adjust(params, masks, found, times, 3.0, 0.3)
    assert all(map(equal, (params, masks, found.weights), before))
    turned = Importance(channels_last(found.weights), found.rest)
    two = adjust(channels_last(params), channels_last(masks), turned, times, 3.0, 0.3)
    assert equal(one.masks, two.masks)


def test_no_layer_is_left_empty() -> None:
    layout = layout_with((2, 2), (2, 2))
    masks = random_masks(Key(0), layout, {"a": 1, "b": 4})
    nothing = Importance({name: torch.zeros(2, 2) for name in masks}, 0.0)
    found = adjust(weights(layout, 1), masks, nothing, {"a": 1.0, "b": 1.0}, 1.0, drop=1.0)
    assert count(found.masks) == {"a": 1, "b": 1}


# importance and time ----------------------------------------------------------------------------


def test_importance_is_added_up_in_double_precision() -> None:
    one = Importance({"w": torch.tensor([1.0, 2.0**-30])}, 0.5)
    two = Importance({"w": torch.tensor([2.0**-30, 1.0])}, 0.25)
    assert one.plus(None) is one
    found = one.times(2.0).plus(two.times(1.0))
    assert found.weights["w"].dtype == torch.float64 and found.rest == 1.25
    assert found.weights["w"].tolist() == [2 + 2**-30, 1 + 2**-29]


def test_importance_knows_whether_there_is_any() -> None:
    nothing = {"w": torch.zeros(2), "v": torch.zeros(1)}
    assert not Importance(nothing, 0.0).any()
    assert Importance(nothing, 0.1).any()
    assert Importance({**nothing, "v": torch.tensor([-1.0])}, 0.0).any()


def test_a_weight_takes_its_products_and_its_way() -> None:
    """A convolution of 36 weights on 4 x 4 places, and a layer of 192 weights."""
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    )
    layout = Task.of(module, torch.zeros(2, 1, 6, 6), start="seed").layout
    pace = Pace(mac_time=0.5, weight_time=10.0, fixed_time=3.0)
    assert pace.times(layout, 2.0) == {"0.weight": 26.0, "2.weight": 11.0}
    assert pace.fixed(layout, 2.0) == 3.0 * (16 * 36 + 192)


def test_the_example_is_true() -> None:
    found = doctest.testmod(adjustment)
    assert found.attempted > 0 and found.failed == 0
