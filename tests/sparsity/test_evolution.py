"""Sparse learning on a client: FLASH's mask update, exact and as released."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

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
    weights,
)
from torch import Tensor

from gossamer import Batch, Key, Masks, Params
from gossamer.sparsity import (
    Carry,
    Regrowth,
    count,
    decayed,
    difference,
    evolve,
    masked,
    random_masks,
    removals,
    union,
    updates_masks,
)
from gossamer.sparsity.evolution import _rounded_up


def two_layers() -> tuple[Params, Masks]:
    """A: 8 of 20 active, mean 0.3; B: 12 of 100, mean 0.1."""
    a, b = torch.zeros(4, 5), torch.zeros(10, 10)
    a.view(-1)[::2][:8] = 0.3 + torch.linspace(-0.1, 0.1, 8)
    b.view(-1)[::8][:12] = -0.1 + torch.linspace(-0.05, 0.05, 12)
    params = {"a": a, "b": b}
    return params, {name: tensor != 0 for name, tensor in params.items()}


def total(masks: Masks) -> int:
    return sum(count(masks).values())


def test_layers_share_what_was_pruned_by_their_strength() -> None:
    """Oracle M1."""
    params, masks = two_layers()
    assert count(masks) == {"a": 8, "b": 12}
    exact = evolve(Key(1), params, masks, 0.25)
    assert count(exact.pruned) == {"a": 2, "b": 3}
    assert count(exact.grown) == {"a": 4, "b": 1} and total(exact.masks) == 20
    released = evolve(Key(1), params, masks, 0.25, Regrowth(exact=False))
    assert count(released.pruned) == {"a": 2, "b": 3}
    assert count(released.grown) == {"a": 4, "b": 2} and total(released.masks) == 21


def test_what_was_pruned_is_smallest_and_what_was_grown_is_zero() -> None:
    params, masks = two_layers()
    change = evolve(Key(1), params, masks, 0.25)
    smallest = params["a"].abs()[change.pruned["a"]]
    assert smallest.max() < params["a"].abs()[difference(masks, change.pruned)["a"]].min()
    assert not masked(params, change.kept)["a"][change.grown["a"]].any()
    assert equal(change.masks, union(change.kept, change.grown))


def test_the_carry_pays_back_what_was_grown_too_much() -> None:
    """0.25 of the old carry, 0.75 of the last difference, and the mean of all differences."""
    carry = Carry().after(-1)
    assert carry.owed == -1.75
    carry = carry.after(3)
    assert carry.owed == 0.25 * -1.75 + 0.75 * 3 + 1 and carry.missing == (-1, 3)
    params, masks = two_layers()
    change = evolve(Key(1), params, masks, 0.25, Regrowth(exact=False, carry=Carry().after(-1)))
    assert count(change.grown) == {"a": 3, "b": 1}  # of 3.25: 2.4375 and 0.8125, rounded up


def test_a_released_layer_takes_no_more_than_it_has_room_for() -> None:
    """Strength asks for 9 of 10; the room is 6, of which 99 % may be used; the rest is shared."""
    params = {"a": torch.zeros(12), "b": torch.zeros(100)}
    masks = {"a": torch.arange(12) < 8, "b": torch.arange(100) < 40}
    params["a"][:8], params["b"][:40] = 9.0, 1.0
    change = evolve(Key(1), params, masks, 0.2, Regrowth(exact=False))
    assert count(change.pruned) == {"a": 2, "b": 8}
    # 9 and 1 are asked for, 5.94 fit, and halves of the rest go round until all of it is with b.
    assert count(change.grown) == {"a": 5, "b": 4}
    exact = evolve(Key(1), params, masks, 0.2)
    assert count(exact.grown) == {"a": 6, "b": 4} and total(exact.masks) == 48


def test_a_strong_and_crowded_layer_prunes_less() -> None:
    """A tenth of layer a is free, which is less than a fifth, and its share is above the mean."""
    params = {"a": torch.ones(20), "b": torch.full((20,), 0.1)}
    masks = {"a": torch.arange(20) < 18, "b": torch.arange(20) < 10}
    assert count(evolve(Key(1), params, masks, 0.25).pruned) == {"a": 2, "b": 3}
    weak = {"a": params["a"] * 0.01, "b": params["b"]}
    assert count(evolve(Key(1), weak, masks, 0.25).pruned) == {"a": 5, "b": 3}


def test_without_redistribution_layers_get_back_what_they_lost() -> None:
    params, masks = two_layers()
    for exact in (True, False):
        change = evolve(Key(1), params, masks, 0.25, Regrowth(exact=exact, redistribution="none"))
        assert count(change.masks) == count(masks)


def test_momentum_can_say_where_and_how_much() -> None:
    params, masks = two_layers()
    momentum = {"a": torch.full((4, 5), 0.1), "b": torch.full((10, 10), 0.3)}
    momentum["b"][9, 7:] = 5.0
    change = evolve(
        Key(1),
        params,
        masks,
        0.25,
        Regrowth(redistribution="momentum", growth="momentum"),
        momentum=momentum,
    )
    assert count(change.grown) == {"a": 1, "b": 4}
    assert change.grown["b"][9, 7:].all()
    gradient = {"a": torch.zeros(4, 5), "b": torch.zeros(10, 10)}
    gradient["a"][3, 1:] = -1.0
    change = evolve(Key(1), params, masks, 0.25, Regrowth(growth="gradient"), gradient=gradient)
    assert change.grown["a"].nonzero().tolist() == [[3, 1], [3, 2], [3, 3], [3, 4]]
    with pytest.raises(ValueError, match="growth by gradient needs gradient=gradient"):
        evolve(Key(1), params, masks, 0.25, Regrowth(growth="gradient"))
    with pytest.raises(ValueError, match="redistribution by momentum needs momentum=momentum"):
        evolve(Key(1), params, masks, 0.25, Regrowth(redistribution="momentum"))


def test_bernoulli_growth_is_right_in_the_mean() -> None:
    params, masks = two_layers()
    grown = [
        total(
            evolve(Key(seed), params, masks, 0.25, Regrowth(exact=False, growth="bernoulli")).grown
        )
        for seed in range(300)
    ]
    assert len(set(grown)) > 3 and abs(sum(grown) / 300 - 6) < 0.5


def go_round(asked: list[float], room: list[int]) -> list[float]:
    """What does not fit is divided equally among all layers until nothing is left of it."""
    most, extra = [0.99 * free for free in room], 0.0
    for _ in range(1000):
        over = sum(max(number + extra - top, 0) for number, top in zip(asked, most, strict=True))
        asked = [min(number + extra, top) for number, top in zip(asked, most, strict=True)]
        extra = over / len(asked)
    return asked


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), min_size=1, max_size=5))
def test_what_does_not_fit_goes_round_as_in_the_released_code(
    layers: list[tuple[int, int]],
) -> None:
    names = "abcde"[: len(layers)]
    shares = {name: Fraction(each, 20) for name, (each, _) in zip(names, layers, strict=True)}
    room = dict(zip(names, (free for _, free in layers), strict=True))
    found = _rounded_up(shares, Fraction(40), room)
    expected = go_round([2.0 * each for each, _ in layers], list(room.values()))
    for number, limit in zip(found.values(), expected, strict=True):
        assert number - 1e-9 <= limit < number + 1 + 1e-9


rates = st.fractions(0, 1, max_denominator=20).map(float)


@fewer_examples
@given(cases(), rates, st.sampled_from(["magnitude", "momentum", "none"]), st.booleans())
def test_the_number_of_active_weights_is_kept_exactly(
    case: Case, rate: float, by: Any, random: bool
) -> None:
    momentum = weights(case.layout, case.key.seed + 1)
    how = Regrowth(by, "random" if random else "momentum")
    change = evolve(case.key, case.params, case.masks, rate, how, momentum=momentum)
    assert total(change.masks) == sum(case.counts.values())
    assert inside(change.pruned, case.masks) and inside(change.kept, case.masks)
    strided = channels_last(case.params), channels_last(case.masks)
    other = evolve(case.key, *strided, rate, how, momentum=momentum)
    assert equal(change.masks, other.masks) and equal(change.kept, other.kept)


@fewer_examples
@given(cases(), rates)
def test_no_layer_is_left_empty(case: Case, rate: float) -> None:
    change = evolve(case.key, case.params, case.masks, rate)
    assert all(number or not case.counts[name] for name, number in count(change.masks).items())


@fewer_examples
@given(cases(), rates)
def test_the_released_way_drifts_by_at_most_one_weight_a_layer(case: Case, rate: float) -> None:
    change = evolve(case.key, case.params, case.masks, rate, Regrowth(exact=False))
    drift = total(change.masks) - sum(case.counts.values())
    assert drift <= len(case.masks)


@fewer_examples
@given(cases(), rates)
def test_frozen_places_are_never_grown(case: Case, rate: float) -> None:
    frozen = random_masks(case.key, case.layout, {n: v // 2 for n, v in case.counts.items()})
    free, own = {n: ~m for n, m in frozen.items()}, difference(case.masks, frozen)
    for exact in (True, False):
        change = evolve(case.key, case.params, own, rate, Regrowth(exact=exact), among=free)
        assert inside(change.masks, free)
    assert total(evolve(case.key, case.params, own, rate, among=free).masks) == total(own)


def test_weights_that_are_not_numbers_do_no_harm() -> None:
    params = {"a": torch.tensor([float("nan"), 1.0, 2.0, 0.0]), "b": torch.ones(4)}
    masks = {"a": mask("1110"), "b": mask("1100")}
    assert total(evolve(Key(1), params, masks, 0.5).masks) == 5
    nothing = {"a": torch.zeros(4), "b": torch.zeros(4)}
    assert total(evolve(Key(1), nothing, masks, 0.5).masks) == 5


# when and how much --------------------------------------------------------------------------------


def batches(per_epoch: int, epochs: int) -> list[Batch]:
    nothing: Tensor = torch.zeros(0)
    steps = per_epoch * epochs
    return [
        Batch(nothing, nothing, Key(0), step, steps, step // per_epoch, epochs, per_epoch)
        for step in range(steps)
    ]


def rates_of_updates(per_epoch: int, epochs: int) -> list[float]:
    """FLASH's rate falls linearly within the round."""
    return [
        decayed(0.25, "linear", batch.step + 1, batch.steps)
        for batch in batches(per_epoch, epochs)
        if updates_masks(batch)
    ]


def test_masks_are_updated_once_in_a_round_of_one_epoch() -> None:
    """Oracle M2."""
    assert rates_of_updates(16, 1) == [0.109375]
    assert rates_of_updates(19, 1) == pytest.approx([0.11842], abs=5e-6)


def test_masks_are_updated_after_every_epoch_but_the_last() -> None:
    """Oracle M2."""
    expected = [0.225, 0.2, 0.175, 0.15, 0.125, 0.1, 0.075, 0.05, 0.025]
    assert rates_of_updates(7, 10) == pytest.approx(expected)


def test_a_single_batch_prunes_nothing() -> None:
    assert rates_of_updates(1, 1) == [0]
    params, masks = two_layers()
    assert equal(evolve(Key(1), params, masks, 0.0).masks, masks)


def test_a_layout_of_one_layer_only_churns() -> None:
    layout = layout_with((6, 6))
    masks = random_masks(Key(1), layout, {"a": 9})
    change = evolve(Key(2), weights(layout, 3), masks, 0.25)
    assert count(change.pruned) == count(change.grown) == {"a": 3}


def test_layers_that_are_strong_and_nearly_full_lose_less() -> None:
    params = {"full": torch.full((2, 16), 3.0), "thin": torch.full((4, 16), 0.5)}
    masks = {"full": torch.ones(2, 16, dtype=torch.bool), "thin": torch.zeros(4, 16) > 0}
    masks["thin"][:2] = True
    assert removals(params, masks, 0.25) == {"full": 0, "thin": 8}
    assert removals(params, masks, 0.25, "none") == {"full": 8, "thin": 8}
