"""FLASH's first round: who is asked, what comes back, and what the server makes of it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from flash_cases import (
    KEPT,
    LAYERS,
    bench,
    equal,
    heard,
    model_of,
    played,
    rows,
    total,
    toy,
    zero_outside,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import METHODS, Client, Exchange, sparsity
from gossamer.conformance.bench import Round
from gossamer.core import Missing
from gossamer.engine.client import train
from gossamer.methods.as_published.flash import FlashVariants, Horizon, released
from gossamer.methods.as_published.mask_learning import Learning
from gossamer.methods.flash import Flash, Server, Train
from gossamer.methods.parts.held_versions import Local
from gossamer.methods.parts.mask_learning import Update
from gossamer.methods.parts.sensitivity_probe import Probe, Sensitivity
from gossamer.wire import Drawn, Revision
from helpers import Toy, client_ctx, linear, server_ctx

NAMES = tuple(LAYERS)


def test_the_first_round_asks_for_densities_and_the_others_for_weights() -> None:
    first, *others = played(toy())
    for exchange in first.exchanges:
        assert isinstance(exchange.down, Probe) and isinstance(exchange.up, Sensitivity)
        assert isinstance(exchange.down.mask, Drawn)
    assert len(first.exchanges) == 3 and all(len(round.exchanges) == 4 for round in others)
    for round in others:
        assert {type(exchange.down) for exchange in round.exchanges} == {Train}
        assert {type(exchange.up) for exchange in round.exchanges} == {Update}


def test_clients_answer_with_the_densities_of_masks_that_they_moved() -> None:
    (first,) = played(toy(), 2)[:1]
    for exchange, result in zip(first.exchanges, first.results, strict=True):
        told = dict(zip(NAMES, exchange.up.densities.tolist(), strict=True))
        assert told == pytest.approx(
            {name: float(share) for name, share in sparsity.layer_densities(result.masks).items()}
        )
        assert total(result.masks) == KEPT and result.local is None
        assert not equal(result.masks, first.state.masks[-1])


def test_nothing_but_densities_travels_up_in_the_first_round() -> None:
    found = heard(toy(), 2)
    for event in (each for each in found.finished if each.round == 1):
        assert set(rows(event, "up")) == {"header", "densities"}
        assert event.paper_up == 32 * len(NAMES)
        assert {"model.values", "model.dense", "mask"} < set(rows(event, "down"))


def test_all_rates_but_the_first_decay_from_the_second_round_on() -> None:
    method = toy()
    found = bench(method)
    state, client = found.init(), found.federation.pool[0]
    ctx = found.client(1, client)
    job = method.begin(ctx, method.down(found.server(1), state, client), None)
    assert job.work.rate == 0.1 and job.epochs == 2.0 and method.probing(ctx)


# what the server makes of it --------------------------------------------------------------------


def allocated(method: Any, *answers: list[float]) -> tuple[Server, Server]:
    """The server before and after clients told how dense layers are."""
    found = bench(method)
    ctx, state = found.server(1), found.init()
    exchanges = []
    for id, answer in enumerate(answers):
        client = Client(id, 20 + 100 * id)
        down = method.down(ctx, state, client)
        exchanges.append(Exchange(client, down, Sensitivity(torch.tensor(answer))))
    return state, method.merge(ctx, state, exchanges)


def test_layers_have_the_mean_of_the_densities_scaled_to_the_whole() -> None:
    """Eq. 3: clients count the same, however many examples they have."""
    _, after = allocated(toy(), [0.5, 0.1, 0.2], [0.7, 0.2, 0.4])
    share = Fraction(1, 5) * 324 / (Fraction("0.6") * 36 + Fraction("0.15") * 216 + 21.6)
    wanted = {"0.weight": 0.6 * 36, "2.weight": 0.15 * 216, "5.weight": 0.3 * 72}
    exact = {name: float(share) * size for name, size in wanted.items()}
    for name, kept in sparsity.count(after.masks[-1]).items():
        assert abs(kept - exact[name]) < 1
    assert total(after.masks[-1]) == KEPT


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3), min_size=1, max_size=3),
    st.sampled_from([0.02, 0.2, 0.7, 1.0]),
)
def test_any_answers_lead_to_the_density_asked_for(
    answers: list[list[float]], density: float
) -> None:
    _, after = allocated(toy(density=density), *answers)
    assert total(after.masks[-1]) == round(density * 324)
    assert zero_outside(after.params, after.masks[-1])
    assert all(sparsity.count(after.masks[-1]).values())


def test_layers_that_would_be_over_full_leave_the_rest_to_others_or_lose_it() -> None:
    answer = [1.0, 0.01, 0.01]
    _, waterfill = allocated(toy(), answer)
    assert sparsity.count(waterfill.masks[-1])["0.weight"] == 36
    assert total(waterfill.masks[-1]) == KEPT
    _, clipped = allocated(toy(probe_saturate="clip"), answer)
    assert sparsity.count(clipped.masks[-1])["0.weight"] == 36
    assert total(clipped.masks[-1]) == 36 + 5 < KEPT  # 64.8 / 38.88 of 2.16 and of 0.72


def test_weights_and_masks_are_drawn_anew_after_the_first_round() -> None:
    method = toy()
    before, after = allocated(method, [0.2, 0.2, 0.2])
    assert not equal(before.masks[-1], after.masks[-1])
    both = before.masks[-1]["2.weight"] & after.masks[-1]["2.weight"]
    assert both.any()
    assert (before.params["2.weight"] != after.params["2.weight"])[both].all()
    assert (after.version, before.version) == (1, 0)


def test_weights_that_were_probed_may_be_gone_on_with() -> None:
    """All of those that the new mask has, not only what the first one had too."""
    method = toy(reuse_init=True)
    before, after = allocated(method, [0.2, 0.2, 0.2])
    assert not equal(before.masks[-1], after.masks[-1])
    found = bench(method)
    first = found.task.init(found.server(0).common.fold("init"))
    assert equal(after.params, sparsity.masked(first, after.masks[-1]))
    assert equal(before.params, sparsity.masked(first, before.masks[-1]))


def test_a_first_round_without_answers_leaves_the_first_mask() -> None:
    method = toy()
    found = bench(method)
    state = found.init()
    assert method.merge(found.server(1), state, []) is state
    down = method.down(found.server(2), state, Client(0, 20))
    assert isinstance(down, Train) and equal(down.mask.masks, state.masks[0])


def test_a_mask_that_moved_without_a_first_round_is_sent_itself() -> None:
    """Its version is then the one that a seed would have had."""
    method = toy("jmwst")
    found = bench(method)
    state, client = found.init(), found.federation.pool[0]
    down = method.down(found.server(2), state, client)
    done = train(method, found.client(2, client), down, None).result
    moved = method.merge(found.server(2), state, [Exchange(client, down, done.up)])
    again = method.down(found.server(3), moved, client)
    assert not equal(moved.masks[0], state.masks[0])
    assert isinstance(again, Train) and equal(again.mask.masks, moved.masks[0])


def test_clients_that_count_loosely_know_what_to_aim_at() -> None:
    """A part of all weights by their budget, whether they are sent a mask or hold it."""
    method = toy("jmwst-code", mask_every=2, clients=12)
    found, kinds = bench(method, 5, 0.05, 0.2), set()
    for played_ in found.history():
        for exchange in played_.exchanges:
            down, budget = exchange.down, exchange.client.budget
            held = Local(played_.state.masks[budget == 0.2])
            work = method.begin(found.client(played_.number, exchange.client), down, held).work
            assert work.intended == round(budget * 324)
            kinds.add((type(down.mask), total(work.model.masks) == work.intended))
    assert {kind for kind, _ in kinds} == {Drawn, Revision, type(None)}
    assert any(not same for _, same in kinds)  # so it is no count of what is there


# who is asked -----------------------------------------------------------------------------------


def asked(method: Any, *budgets: float) -> set[float]:
    found = bench(method, 4, *budgets)
    state = found.init()
    return {client.budget for number in (1,) for client in found.cohort(number, state)}


def test_only_the_richest_clients_are_probed() -> None:
    assert asked(toy(probe_clients=4), 0.05, 0.1, 0.2) == {0.2}
    assert asked(toy(probe_clients=12), 0.05, 0.1, 0.2) == {0.2}  # four of them, which is all
    assert asked(toy(probe_clients=12, probe_among="any"), 0.05, 0.1, 0.2) == {0.05, 0.1, 0.2}


def test_who_cannot_afford_the_model_may_be_probed_with_its_part_of_it() -> None:
    method = toy(probe_clients=12, probe_among="any")
    (first,) = played(method, 2, 0.05, 0.1, 0.2)[:1]
    for exchange, result in zip(first.exchanges, first.results, strict=True):
        level = (0.05, 0.1, 0.2).index(exchange.client.budget)
        assert total(result.masks) == total(first.state.masks[level])
        assert exchange.down.budget == (None if level == 2 else exchange.client.budget)
    assert total(first.merged.masks[-1]) == KEPT


# other allocations ------------------------------------------------------------------------------


def probes(rounds: list[Round]) -> int:
    return sum(isinstance(each.down, Probe) for round in rounds for each in round.exchanges)


def test_pdst_has_no_such_round() -> None:
    rounds = played(toy("pdst"))
    assert probes(rounds) == 0 and all(len(round.exchanges) == 4 for round in rounds)
    for round in rounds:
        assert equal(round.merged.masks[0], rounds[0].state.masks[0])
        assert not equal(round.merged.params, round.state.params)
    found = sparsity.layer_densities(rounds[0].state.masks[0])
    assert all(abs(share - Fraction(1, 5)) * LAYERS[name] < 1 for name, share in found.items())


@pytest.mark.parametrize("allocation", ["er", "erk", "erk-plus", "erk-feddst", "uniform"])
def test_rules_need_no_first_round(allocation: Any) -> None:
    method = toy(allocation=allocation, density=0.4)
    rounds = played(method, 1)
    shares = sparsity.allocate(bench(method).task.layout, 0.4, allocation)
    assert probes(rounds) == 0
    assert sparsity.count(rounds[0].merged.masks[0]) == sparsity.apportion(LAYERS, shares)


# the learning rate ------------------------------------------------------------------------------


def rate(method: Flash | FlashVariants, passed: int, rounds: int) -> float:
    """Of a client, after so many rounds of training out of so many."""
    pure = method if isinstance(method, Flash) else method.pure
    before = int(pure.allocation == "sensitivity")
    task = linear()
    whole = (passed + 1 + before, rounds + before)
    server = server_ctx(task, round=whole[0], rounds=whole[1])
    down = method.down(server, method.init(server), Client(0, 20))
    ctx = client_ctx(task, Toy().make(server.key, 20), round=whole[0], rounds=whole[1])
    assert isinstance(down, Train)
    return model_of(method.begin(ctx, down, None).work).rate


@pytest.mark.parametrize("name", ["spdst", "jmwst", "pdst"])
def test_the_rate_falls_from_a_tenth_to_a_thousandth(name: str) -> None:
    """Oracle M7: as printed, it would be 10 at the end."""
    found = [rate(METHODS[name], passed, 600) for passed in (0, 300, 599)]
    assert found[:2] == pytest.approx([0.1, 0.01])
    assert found[2] == pytest.approx(0.001, rel=0.01)
    assert found[2] * 0.01 ** (1 / 600) == pytest.approx(0.001)


@pytest.mark.parametrize("name", ["spdst-code", "jmwst-code"])
def test_the_rate_of_the_released_code_is_late_and_goes_by_a_thousand_rounds(name: str) -> None:
    """Oracle M7, whatever the number of rounds is."""
    for passed, wanted in ((399, 0.01600), (599, 0.00637), (799, 0.00254)):
        for rounds in (passed + 1, 1_000):
            assert rate(METHODS[name], passed, rounds) == pytest.approx(wanted, abs=5e-6)
    assert rate(METHODS[name], 0, 600) == rate(METHODS[name], 1, 600) == 0.1


# the released code's ways -----------------------------------------------------------------------


def test_random_masks_may_be_those_of_the_released_code_too() -> None:
    method = METHODS["pdst-code"]
    assert method == released(METHODS["pdst"]) and method.pure.allocation == "uniform"
    assert method.pure.weighting == "uniform" and method.horizon == Horizon(1000, 1)
    code = METHODS["spdst-code"]
    assert replace(method, pure=code.pure) == code


@pytest.mark.parametrize("name", ["spdst-code", "jmwst-code"])
def test_the_presets_of_the_released_code_are_those_of_the_specification(name: str) -> None:
    method = METHODS[name]
    assert method == released(METHODS[name.removesuffix("-code")])
    pure = method.pure
    assert method.horizon == Horizon(1000, 1)
    assert method.learning == Learning(exact=False, growth="bernoulli")
    assert (method.saturate, method.rounding, method.bernoulli) == ("cap-ratio", "floor", True)
    assert (method.probe_among, method.probe_saturate) == ("any", "clip")
    assert method.resample and (pure.weighting, method.eval_model) == ("uniform", "union")


@pytest.mark.parametrize("budgets", [(), (0.05, 0.2)])
@pytest.mark.parametrize("name", ["spdst-code", "jmwst-code"])
def test_the_presets_of_the_released_code_run(name: str, budgets: tuple[float, ...]) -> None:
    found = heard(toy(name), 5, *budgets, norm=True)
    assert found.summary.failed == 0 and len(found.finished) == 3 + 4 * 4
    kept = [total(masks) for masks in found.state.masks]
    assert kept == sorted(kept) and zero_outside(found.state.params, found.state.masks[-1])


def test_masks_of_the_released_code_are_drawn_weight_by_weight() -> None:
    counts = set()
    for seed in range(12):
        method = toy("spdst-code")
        ctx = replace(bench(method).server(0), common=server_ctx(linear(), seed=seed).common)
        state = method.init(ctx)
        counts.add(total(state.masks[0]))
        drawn = method.draw(ctx, state.drawn, probing=True)
        assert equal(drawn, state.masks[0])  # clients draw the same
    assert len(counts) > 3


def test_a_client_that_lost_its_mask_asks_for_it_and_is_sent_it() -> None:
    method = toy("jmwst", mask_every=3)
    found = bench(method)
    *_, last = played(method, 3)
    ctx, client = found.server(4), last.exchanges[0].client
    down, again = (send(ctx, last.merged, client) for send in (method.down, method.resend))
    assert down.mask is None and equal(again.mask.masks, last.merged.masks[0])
    own = found.client(4, client)
    with pytest.raises(Missing):
        method.begin(own, down, None)
    kept = method.begin(own, down, last.results[0].local).work
    assert equal(kept.params, method.begin(own, again, None).work.params)
