"""NST: every client has a mask of its own, and the server what they come to together."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from flash_cases import (
    KEPT,
    LAYERS,
    bench,
    equal,
    heard,
    inside,
    played,
    rows,
    total,
    toy,
    unions,
    zero_outside,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import METHODS, NST, Client, Ctx, Exchange, Key, sparsity
from gossamer.accounting import Accounting, paper_bits
from gossamer.conformance.toys import plain_task
from gossamer.engine.client import train
from gossamer.methods.as_published.flash import Horizon
from gossamer.methods.as_published.mask_learning import Learning
from gossamer.methods.nst import Sparse, Whole
from gossamer.methods.parts.mask_learning import Update
from gossamer.wire import Revision, Schema, UnknownMask, decode, encode, held, pack
from helpers import Toy, client_ctx, linear, server_ctx


def test_everybody_begins_with_the_same_mask_of_one_density() -> None:
    first, *_ = played(toy("nst"), 1)
    masks = first.state.masks
    assert total(masks) == KEPT and zero_outside(first.state.params, masks)
    for share, size in zip(sparsity.layer_densities(masks).values(), LAYERS.values(), strict=True):
        assert abs(float(share) - 0.2) * size < 1
    method, found = toy("nst"), bench(toy("nst"))
    for exchange in first.exchanges:
        job = method.begin(found.client(1, exchange.client), exchange.down, None)
        assert equal(job.work.model.masks, masks)


def test_clients_keep_their_masks_between_participations() -> None:
    method = toy("nst")
    found = bench(method, 6)
    kept: dict[int, Any] = {}
    again = 0
    for round in found.history():
        for exchange, result in zip(round.exchanges, round.results, strict=True):
            id, own = exchange.client.id, found.client(round.number, exchange.client)
            work = method.begin(own, exchange.down, kept.get(id)).work.model
            begins = kept[id].masks if id in kept else found.init().masks
            assert equal(work.masks, begins)
            # It trains what the server has of its own weights, and nothing else.
            assert zero_outside(work.params, begins)
            for name, mask in begins.items():
                assert torch.equal(work.params[name][mask], round.state.params[name][mask])
            done = train(method, own, exchange.down, kept.get(id)).result
            assert equal(done.local.masks, result.local.masks)
            assert equal(result.local.masks, result.masks)
            again += id in kept
            kept[id] = result.local
    assert again > 5


def test_masks_of_clients_differ_and_have_the_same_count() -> None:
    for round in played(toy("nst", prune_rate=0.5), 3):
        for one, two in combinations((result.masks for result in round.results), 2):
            assert not equal(one, two) and total(one) == total(two) == KEPT


@settings(max_examples=6)
@given(
    st.sampled_from([0.05, 0.3]),
    st.sampled_from(["random", "gradient"]),
    st.sampled_from([0.0, 0.9]),
    st.booleans(),
)
def test_the_server_has_the_union_of_the_clients_of_a_round(
    density: float, growth: str, momentum: float, norm: bool
) -> None:
    method = toy("nst", density=density, growth=growth, momentum=momentum)
    rounds = played(method, 3, norm=norm)
    for round_, union in zip(rounds, unions(rounds), strict=True):
        assert equal(round_.merged.masks, union)
        assert zero_outside(round_.merged.params, union)
        assert total(union) > round(density * 324)
        assert all(total(result.masks) == round(density * 324) for result in round_.results)
        shown = method.measures(bench(method).server(round_.number), round_.merged)
        assert equal(shown.masks, union)


@pytest.mark.parametrize(("averaging", "owners_only"), [("fedavg", False), ("wfa", True)])
def test_the_mean_is_over_all_clients_or_over_those_with_a_weight(
    averaging: str, owners_only: bool
) -> None:
    *_, round = played(toy("nst", averaging=averaging), 2)
    for name, found in round.merged.params.items():
        above = torch.zeros(found.shape).double()
        below = torch.zeros(found.shape).double()
        for exchange, result in zip(round.exchanges, round.results, strict=True):
            share, mask = exchange.client.examples, result.masks.get(name)
            if mask is None:
                whole = exchange.up.model.dense[name]
            else:
                whole = torch.zeros(found.shape)
                whole[mask] = exchange.up.model.values.values[name]
            above += share * whole.double()
            below += share * (mask if owners_only and mask is not None else 1)
        torch.testing.assert_close(found, (above / below.clamp(min=1)).float())


# what travels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 100, 313, 314, 324])
def test_a_nearly_dense_model_goes_down_without_a_mask(kept: int) -> None:
    """A mask is a bit for each weight: it pays as long as a 32nd of the weights is zero."""
    method = toy("nst")
    found = bench(method, norm=True)
    state, layout = found.init(), found.task.layout
    counts = {"0.weight": min(kept, 36), "2.weight": 0, "5.weight": 0}
    counts["2.weight"] = min(kept - counts["0.weight"], 216)
    counts["5.weight"] = kept - sum(counts.values())
    masks = sparsity.random_masks(found.server(1).key, layout, counts)
    params = sparsity.masked(found.task.init(found.server(1).key), masks)
    down = method.down(found.server(1), type(state)(params, masks), Client(0, 20))
    whole = kept > 324 * 31 / 32  # 313.9
    assert isinstance(down, Whole if whole else Sparse)
    dense = 32 * layout.total("count", (*layout.dense, *layout.buffers))
    cost = paper_bits(down, method.accounting) - dense
    assert cost == min(32 * 324, 32 * kept + 324)
    job = method.begin(found.client(1, found.federation.pool[0]), down, None)
    model = job.work.model
    assert equal(model.params, sparsity.masked(params, model.masks))


def test_masks_go_up_in_every_round_as_changes_of_what_came_down() -> None:
    method = toy("nst")
    for event in heard(method, 4, norm=True).finished:
        assert {"model.values", "mask"} < set(rows(event, "up"))
        assert rows(event, "up")["model.values"].paper == 32 * KEPT
        assert rows(event, "up")["mask"].paper == 324  # a bitmap
        assert "moved" in event.metrics
    *_, last = played(method, 3)
    for exchange in last.exchanges:
        up = exchange.up
        assert isinstance(up, Update) and equal(up.mask.base, last.state.masks)
        again = decode(encode(up), Schema.of(up), held=held(exchange.down))
        assert equal(again.mask.masks, up.mask.masks)
        with pytest.raises(UnknownMask):
            decode(encode(up), Schema.of(up))


def test_a_whole_model_is_answered_with_a_whole_mask() -> None:
    method = toy("nst", density=0.9, clients=12, prune_rate=1.0)
    *_, last = played(method, 4)
    assert {type(exchange.down) for exchange in last.exchanges} == {Whole}
    assert all(exchange.up.mask.base is None for exchange in last.exchanges)
    found = heard(method, 4)
    assert found.summary.failed == 0
    late = [event for event in found.finished if event.round == 4]
    assert {leaf for event in late for leaf in rows(event, "down")} == {"header", "params"}


def test_static_norms_send_no_statistics() -> None:
    method = toy("nst", bn="static")
    leaves = {
        leaf
        for event in heard(method, 2, norm=True).finished
        for way in ("up", "down")
        for leaf in rows(event, way)
    }
    assert leaves == {"header", "model.values", "model.dense", "mask", "masks"}
    first = bench(method, norm=True).init().params
    last = played(method, 2, norm=True)[-1].merged.params
    names = bench(method, norm=True).task.layout.buffers
    assert names and all(torch.equal(first[name], last[name]) for name in names)


# one client that has all data -------------------------------------------------------------------


def test_a_single_client_is_ordinary_sparse_training() -> None:
    """Of one density to the last weight; the server has what the client has."""
    method = toy("nst", clients=1)
    found = bench(method, 5)
    client = found.federation.pool[3]
    state, local = found.init(), None
    for number in range(1, 6):
        ctx = found.server(number)
        down = method.down(ctx, state, client)
        assert isinstance(down, Sparse)
        own = found.client(number, client)
        if number > 1:
            assert equal(method.begin(own, down, local).work.model.params, state.params)
        done = train(method, own, down, local).result
        before, local = state, done.local
        state = method.merge(ctx, state, [Exchange(client, down, done.up)])
        assert equal(state.masks, local.masks) and total(state.masks) == KEPT
        assert not equal(state.masks, before.masks)
        assert zero_outside(state.params, state.masks)
        sent = pack({name: state.params[name] for name in state.masks}, state.masks)
        assert equal(sent.values, done.up.model.values.values)


# settings ---------------------------------------------------------------------------------------


def test_an_empty_round_leaves_the_server_as_it_is() -> None:
    method = toy("nst")
    state = bench(method).init()
    assert method.merge(bench(method).server(1), state, []) is state


def test_growth_by_momentum_is_refused_without_momentum() -> None:
    with pytest.raises(ValueError, match="`momentum=` above 0"):
        bench(toy("nst", growth="momentum")).init()


def test_the_rate_falls_from_a_tenth_to_a_thousandth_over_all_rounds() -> None:
    """There is no round that does not train."""
    task = linear()
    for name, wanted in (
        ("nst", {1: 0.1, 301: 0.01, 601: 0.001}),
        ("nst-code", {1: 0.1, 2: 0.1, 400: 0.016, 600: 0.00637, 800: 0.00254}),
    ):
        method = METHODS[name]
        for number, rate in wanted.items():
            server = server_ctx(task, round=number, rounds=600)
            down = method.down(server, method.init(server), Client(0, 20))
            ctx = client_ctx(task, Toy().make(server.key, 20), round=number, rounds=600)
            assert method.begin(ctx, down, None).work.model.rate == pytest.approx(rate, abs=5e-6)


def test_the_released_codes_way_has_counts_that_drift() -> None:
    method = toy("nst-code", prune_rate=0.5)
    loose = Learning(exact=False, growth="bernoulli")
    assert method.pure.weighting == "uniform" and method.bernoulli and method.learning == loose
    assert method.horizon == Horizon(1000, 1)
    counts = {total(result.masks) for round in played(method, 6) for result in round.results}
    assert len(counts) > 3
    assert heard(method, 6).summary.failed == 0  # they are let through
    assert equal(bench(method).init().masks, bench(method).init().masks)


def test_a_mask_is_priced_as_a_bitmap() -> None:
    assert NST().accounting == Accounting(mask_code="bitmap")
    (first,) = played(toy("nst"), 1)
    up = first.exchanges[0].up
    assert isinstance(up.mask, Revision) and inside(up.mask.masks, first.merged.masks)
    assert paper_bits(up, NST().accounting) == 32 * (KEPT + 13) + 324


def test_budgets_below_the_density_are_refused() -> None:
    task = plain_task()
    poor = Ctx(task, 0, 4, Key(1), Key(2), budgets=(0.1, 0.2))
    with pytest.raises(ValueError, match=r"smallest budget is 0\.1"):
        NST(density=0.2).init(poor)
    NST(density=0.1).init(poor)
