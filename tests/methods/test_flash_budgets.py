"""FLASH with clients of several budgets: masks inside masks, and weights that some do not have."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import Any

import numpy as np
import pytest
import torch
from flash_cases import (
    KEPT,
    bench,
    equal,
    heard,
    inside,
    model_of,
    net,
    played,
    rows,
    total,
    toy,
    unions,
    worked,
    zero_outside,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import Exchange, Masks, Options, sparsity
from gossamer.accounting.dry_run import price
from gossamer.conformance.bench import Round
from gossamer.conformance.promises import PROMISES
from gossamer.methods.parts.held_versions import Local
from gossamer.wire import Drawn

BUDGETS = (0.05, 0.1, 0.2)
METHODS_OF_BUDGETS = {
    "spdst": {},
    "resample": {"resample": True},
    "jmwst": {"mask_every": 2},
    "churn": {"churn": 0.3},
}


def level(exchange: Exchange[Any, Any]) -> int:
    return BUDGETS.index(exchange.client.budget)


def nested(masks: tuple[Masks, ...]) -> bool:
    return all(inside(inner, outer) for inner, outer in pairwise(masks))


@pytest.mark.parametrize("name", METHODS_OF_BUDGETS)
def test_every_budget_has_a_mask_inside_those_of_larger_ones(name: str) -> None:
    for round in played(toy(**METHODS_OF_BUDGETS[name]), 5, *BUDGETS):
        assert len(round.merged.masks) == 3 and nested(round.merged.masks)
        kept = [sparsity.count(masks) for masks in round.merged.masks]
        top = Fraction(sum(kept[2].values()), 324)
        for budget, counts in zip((Fraction(1, 20), Fraction(1, 10)), kept, strict=False):
            assert counts == {
                layer: max(floor(budget / top * number), 1) for layer, number in kept[2].items()
            }


def test_layers_keep_their_share_of_the_source() -> None:
    """By hand: 65 weights are kept of 324, of which budgets of a tenth have 324 / 650."""
    (first,) = played(toy(), 2, *BUDGETS)[:1]
    small, middle, top = (list(sparsity.count(masks).values()) for masks in first.state.masks)
    assert top == [7, 43, 15]
    assert middle == [3, 21, 7] and small == [1, 10, 3]


@settings(max_examples=6)
@given(
    st.lists(
        st.fractions(Fraction(1, 50), 1, max_denominator=50), min_size=1, max_size=5, unique=True
    ),
    st.sampled_from([0.1, 0.3]),
)
def test_any_budgets_have_nested_masks_of_their_size(
    budgets: list[Fraction], density: float
) -> None:
    """Clients with more than the model needs have all of it."""
    known = sorted({*map(float, budgets), 0.4})
    method = toy(density=density, clients=len(known))
    *_, last = played(method, 3, *known)
    affords = sorted({min(budget, density) for budget in known})
    assert len(last.merged.masks) == len(affords) and nested(last.merged.masks)
    for wanted, masks in zip(affords, last.merged.masks, strict=True):
        assert total(masks) <= round(wanted * 324) + 3  # every layer has a weight at least
        assert total(masks) > wanted * 324 - 4
    for exchange, result in zip(last.exchanges, last.results, strict=True):
        place = affords.index(min(exchange.client.budget, density))
        assert equal(result.masks, last.merged.masks[place])


@pytest.mark.parametrize("name", METHODS_OF_BUDGETS)
def test_a_client_trains_inside_its_mask_only(name: str) -> None:
    method = toy(**METHODS_OF_BUDGETS[name])
    found = bench(method, 4, *BUDGETS)
    for round in found.history():
        if round.number == 1:
            continue
        moves = name == "jmwst" and round.number % 2 == 0
        for exchange in round.exchanges:
            allowed = round.state.masks[level(exchange)]
            ctx = found.client(round.number, exchange.client)
            held = Local(allowed) if exchange.down.mask is None else None  # it was told before

            def seen(work: Any, batch: Any, allowed: Masks = allowed, moves: bool = moves) -> None:
                model = model_of(work)
                assert zero_outside(model.params, model.masks)
                assert total(model.masks) == total(allowed)
                assert moves or inside(model.masks, allowed)

            result = worked(method, ctx, exchange.down, held, seen)
            assert equal(result.up.model.values.values, exchange.up.model.values.values)


def test_cohorts_have_every_budget_in_its_share() -> None:
    for round in played(toy(clients=6), 4, *BUDGETS)[1:]:
        assert sorted(exchange.client.budget for exchange in round.exchanges) == [
            *[0.05] * 2,
            *[0.1] * 2,
            *[0.2] * 2,
        ]


# averaging --------------------------------------------------------------------------------------


def mean_of(round: Round, name: str, owners_only: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of what clients sent, and where somebody has a weight."""
    shape = round.state.params[name].shape
    above, below = torch.zeros(shape).double(), torch.zeros(shape).double()
    owned = torch.zeros(shape, dtype=torch.bool)
    for exchange, result in zip(round.exchanges, round.results, strict=True):
        mask, weight = result.masks[name], exchange.client.examples
        whole = torch.zeros(shape).masked_scatter(mask, exchange.up.model.values.values[name])
        above += weight * whole.double()
        below += weight * (mask if owners_only else 1)
        owned |= mask
    return (above / below.clamp(min=1)).float(), owned


@pytest.mark.parametrize(
    ("averaging", "budgets", "owners_only"),
    [
        ("auto", BUDGETS, True),
        ("auto", (), False),
        ("wfa", BUDGETS, True),
        ("fedavg", BUDGETS, False),
    ],
)
def test_the_mean_is_over_those_who_have_a_weight_if_budgets_differ(
    averaging: str, budgets: tuple[float, ...], owners_only: bool
) -> None:
    for mask_every in (0, 1):
        round = played(toy(averaging=averaging, mask_every=mask_every), 2, *budgets)[-1]
        for name, mask in round.merged.masks[-1].items():
            wanted, owned = mean_of(round, name, owners_only)
            both = mask & owned
            assert both.any()
            torch.testing.assert_close(round.merged.params[name][both], wanted[both])


def test_the_two_means_differ() -> None:
    """So that the test above can fail."""
    round = played(toy(), 2, *BUDGETS)[-1]
    (one, owned), (two, _) = (mean_of(round, "2.weight", kind) for kind in (True, False))
    assert not torch.allclose(one[owned], two[owned])


def test_weights_that_nobody_was_offered_keep_their_value_in_frozen_rounds() -> None:
    method = toy(clients=12)
    found = bench(method, 2, *BUDGETS)
    *_, last = found.history()
    poor = [exchange for exchange in last.exchanges if exchange.client.budget < 0.2]
    ctx = found.server(2)
    after = method.merge(ctx, last.state, poor)
    top, middle = last.state.masks[2], last.state.masks[1]
    kept = sparsity.difference(top, middle)
    assert all(mask.any() for mask in kept.values())
    for name, mask in kept.items():
        assert torch.equal(after.params[name][mask], last.state.params[name][mask])
        assert after.params[name][mask].any()
        trained = middle[name]
        assert not torch.equal(after.params[name][trained], last.state.params[name][trained])
    assert after.union_density == pytest.approx(total(middle) / 324)


def test_a_mask_round_without_rich_clients_keeps_what_nobody_was_offered() -> None:
    method = toy(clients=12, mask_every=1)
    found = bench(method, 2, *BUDGETS)
    *_, last = found.history()
    poor = [exchange for exchange in last.exchanges if exchange.client.budget < 0.2]
    after = method.merge(found.server(2), last.state, poor)
    assert total(after.masks[2]) == KEPT
    kept = sparsity.difference(last.state.masks[2], last.state.masks[1])
    stays = {name: mask & after.masks[2][name] for name, mask in kept.items()}
    assert any(mask.any() for mask in stays.values())
    for name, mask in stays.items():
        assert torch.equal(after.params[name][mask], last.state.params[name][mask])


# masks that follow weights ----------------------------------------------------------------------


def test_smaller_masks_may_follow_the_largest_weights_in_every_round() -> None:
    method = toy(resample=True, lr=0.5, schedule="constant", epochs=3.0)
    first, *others = played(method, 5, *BUDGETS)
    top, moved = first.merged.masks[2], []
    for round in others:
        assert equal(round.merged.masks[2], top)
        for lower in (0, 1):
            masks = round.merged.masks[lower]
            moved.append(not equal(masks, round.state.masks[lower]))
            for name, mask in masks.items():
                size = round.merged.params[name].abs()
                assert size[mask].min() >= size[top[name] & ~mask].max()
        before, after = round.state.versions, round.merged.versions
        assert after == (before[0] + moved[-2], before[1] + moved[-1], before[2])
    assert all(moved)


def test_resampling_sends_masks_only_to_budgets_whose_masks_changed() -> None:
    """Everybody takes part; the mask of the whole model is sent once, and as a seed."""
    method = toy(resample=True, lr=0.5, schedule="constant", epochs=3.0, clients=12)
    _, first, *others = played(method, 5, *BUDGETS)
    assert all(isinstance(exchange.down.mask, Drawn) for exchange in first.exchanges)
    before, sent = first.state.masks, set()
    for round in others:
        for exchange in round.exchanges:
            place, mask = level(exchange), exchange.down.mask
            assert (mask is None) == equal(before[place], round.state.masks[place])
            assert mask is None or equal(mask.masks, round.state.masks[place])
            sent |= set() if mask is None else {place}
        before = round.state.masks
    assert sent == {0, 1}
    assert heard(method, 5, *BUDGETS).summary.failed == 0


def test_masks_stay_frozen_otherwise() -> None:
    first, *others = played(toy(), 5, *BUDGETS)
    assert all(round.merged.masks is first.merged.masks for round in others)


def test_resampling_changes_nothing_without_budgets() -> None:
    one, two = (played(toy(resample=resample), 4)[-1].merged for resample in (False, True))
    assert equal(one.params, two.params) and one.versions == two.versions


def test_counts_of_the_model_may_be_rounded_down_as_in_the_released_code() -> None:
    rounds = played(toy("jmwst", prune_rate=0.5, rounding="floor"), 4, *BUDGETS)[1:]
    counts = [total(round.merged.masks[2]) for round in rounds]
    assert all(KEPT - 3 <= count <= KEPT for count in counts) and min(counts) < KEPT


def test_the_server_of_jmwst_cuts_its_model_from_the_union() -> None:
    """Counts of layers are their share of the union, ranked by the mean's magnitude, and exact."""
    rounds = played(toy("jmwst", prune_rate=0.5, eval_model="union"), 4, *BUDGETS)
    for round, union in list(zip(rounds, unions(rounds), strict=True))[1:]:
        top = round.merged.masks[2]
        share = min(Fraction(1, 5) / Fraction(total(union), 324), Fraction(1))
        for name, number in sparsity.count(top).items():
            assert 0 <= number - floor(share * sparsity.count(union)[name]) <= 1
        assert inside(top, union) and nested(round.merged.masks)
        assert total(top) == KEPT
        for masks, outer in pairwise((*round.merged.masks, union)):
            for name, mask in masks.items():
                size = round.merged.tested[name].abs()
                rest = outer[name] & ~mask
                assert not rest.any() or size[mask].min() >= size[rest].max()


# over the wire ----------------------------------------------------------------------------------


def test_clients_draw_the_mask_of_their_budget_from_the_seed() -> None:
    """No mask but the seed travels, and frozen masks go down once."""
    found = heard(toy(clients=12), 5, *BUDGETS)
    assert found.summary.failed == 0
    for event in found.finished:
        assert "mask" not in rows(event, "up")
        assert ("mask" in rows(event, "down")) == (event.round <= 2)
        if event.round > 1:
            wanted = found.state.masks[event.client % 3]
            assert event.density == pytest.approx(total(wanted) / 324)


@pytest.mark.parametrize("name", ["resample", "jmwst", "churn"])
def test_moving_masks_arrive_at_clients_of_every_budget(name: str) -> None:
    found = heard(toy(**METHODS_OF_BUDGETS[name]), 6, *BUDGETS)
    assert found.summary.failed == 0
    assert nested(found.state.masks)


def test_prices_know_budgets() -> None:
    """In a dry run masks stay where they were drawn."""
    method = toy(clients=12)
    budgets = np.array([BUDGETS[id % 3] for id in range(12)])
    where = {"classes": 3, "pool": 12, "examples": 20, "budgets": budgets}
    found = price(method, net(), rounds=3, options=Options(workers=1, eval_every=0), **where)
    state = bench(method, 3, *BUDGETS).init()
    probes, trains = 3 * 32 * 3, 2 * 4 * sum(32 * (total(masks) + 13) for masks in state.masks)
    assert found.total("up").paper == probes + trains


@pytest.mark.parametrize("promise", PROMISES)
def test_methods_keep_their_promises_with_budgets(promise: str) -> None:
    """With every kind of message: seeds, masks, nothing, and counts that chance decides."""
    PROMISES[promise](bench(toy("jmwst-code", mask_every=2), 4, *BUDGETS, norm=True))


@pytest.mark.parametrize(("method", "mask_rounds"), [("spdst", set()), ("jmwst", {2, 4, 6})])
def test_with_budgets_too_masks_go_up_in_mask_rounds_only(
    method: str, mask_rounds: set[int]
) -> None:
    found = heard(toy(**METHODS_OF_BUDGETS[method]), 6, *BUDGETS)
    assert {event.round for event in found.finished} == {1, 2, 3, 4, 5, 6}
    sent = {event.round for event in found.finished if "mask" in rows(event, "up")}
    assert sent == mask_rounds
    for event in found.finished:
        assert event.round not in mask_rounds or rows(event, "up")["mask"].sent > 0
