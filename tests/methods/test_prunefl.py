"""PruneFL: its two phases, and when and how masks are adjusted in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from flash_cases import bench, equal, federation, heard, net, total, worked, zero_outside
from hypothesis import given, settings
from hypothesis import strategies as st
from prunefl_cases import (
    PRUNABLE,
    SECOND,
    check_importance,
    counted,
    downs,
    played,
    toy,
    variant,
    wanted_masks,
)
from torch import nn

import gossamer as gs
from gossamer import Exchange, Params, Task, sparsity
from gossamer.conformance.toys import SIDE
from gossamer.core import Client
from gossamer.engine.client import train
from gossamer.methods.prunefl import Local, Measure, Measured, PruneFL, Train, Work
from gossamer.sparsity import Importance, Pace
from gossamer.wire import Revision, unpack
from helpers import client_ctx, server_ctx

# settings ---------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_paper() -> None:
    method, ctx = PruneFL(), server_ctx(net(), 10001, 20000)
    assert method.training.batch == 20
    assert method.training.rate(replace(ctx, round=1)) == 0.1
    assert method.training.rate(ctx) == pytest.approx(0.05)
    passes = method.first_rounds * method.adjust_every
    assert (passes, method.first_batches, method.steps) == (1000, 10, 5)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`target_density=0\.5` is above `max_density=0\.2`"):
        variant(max_density=0.2, target_density=0.5).init(server_ctx(net()))
    task = Task.of(nn.Linear(2, 2), torch.zeros(2, 2), prunable=(), start="seed")
    with pytest.raises(ValueError, match="no layer that may be pruned"):
        toy().init(server_ctx(task))


@settings(max_examples=60)
@given(st.integers(2, 60), st.integers(1, 25), st.integers(1, 40), st.booleans())
def test_a_client_takes_exactly_the_steps_asked_for(
    examples: int, batch: int, steps: int, norm: bool
) -> None:
    ctx = client_ctx(net(norm), federation().client(0).train)
    data = replace(
        ctx.own,
        train=gs.Examples(torch.zeros(examples, 1, SIDE, SIDE), torch.zeros(examples).long()),
    )
    ctx = replace(ctx, data=data)
    method = toy(steps=steps, batch=batch, **SECOND)
    down = method.down(server_ctx(net(norm)), method.init(server_ctx(net(norm))), Client(0, 1))
    assert train(method, ctx, down, None, dry=True).steps == steps


def test_the_first_phase_has_as_many_steps_as_lie_between_adjustments() -> None:
    found = heard(toy(first_batches=3, adjust_every=4), 3)
    assert [event.steps for event in found.finished] == [12, 12, 2, 2, 2, 2]


def test_without_steps_a_round_has_its_epochs() -> None:
    """And what it takes goes by the examples of the clients that measured."""
    method = toy(steps=0, epochs=2.0, **SECOND)
    found = heard(method, 1)
    assert all(event.examples == 2 * (17 + event.client % 5) for event in found.finished)
    assert method.examples(Client(0, 17)) == 34.0
    assert toy().examples(Client(0, 17)) == 16.0


# the first phase --------------------------------------------------------------------------------


def test_one_client_begins_alone_and_all_go_on() -> None:
    first, second, *others = played(toy(), 6)
    (one,), (two,) = first.exchanges, second.exchanges
    assert one.client == two.client
    assert all(each.down.first and each.up.ready is not None for each in (one, two))
    assert [len(round.exchanges) for round in others] == [4] * 4
    assert [downs(round) for round in others] == [{Train}, {Train}, {Measure}, {Train}]
    assert not any(getattr(each.down, "first", False) for r in others for each in r.exchanges)
    assert [round.merged.alone for round in (first, second, *others)] == [1, 2, 2, 2, 2, 2]
    assert [round.merged.rounds for round in others] == [1, 2, 3, 4]


def test_the_client_that_begins_is_of_the_largest_budget() -> None:
    for seed in range(3):
        ctx = server_ctx(net(), seed=seed)
        state = toy().init(ctx)
        (chosen,) = toy().cohort(ctx, state, federation(0.5, 0.5, 1.0).pool)
        assert chosen.budget == 1.0


def test_a_client_that_does_not_answer_is_replaced() -> None:
    method, pool = toy(first_rounds=9), federation().pool
    state = method.init(server_ctx(net()))
    chosen = {
        method.cohort(server_ctx(net(), number), state, pool)[0].id for number in range(1, 20)
    }
    assert len(chosen) > 5
    ids = set()
    for number in range(4, 9):  # three rounds were lost, and none since
        after = replace(state, alone=number - 4)
        ids.add(method.cohort(server_ctx(net(), number), after, pool)[0].id)
    assert len(ids) == 1


def test_importance_of_the_first_phase_is_the_sum_of_squares() -> None:
    """At the weights where each step begins, whatever the masks are."""
    method = toy()
    *_, second = played(method, 2)
    (exchange,), local = second.exchanges, second.results[0].local
    own = bench(method, 2).client(2, exchange.client)
    assert total(second.state.masks) < PRUNABLE
    check_importance(method, own, exchange.down, local, lambda grads, _: sum(g**2 for g in grads))


def test_nothing_is_pruned_before_the_model_is_better_than_guessing() -> None:
    method = toy(first_rounds=3, first_accuracy=10.0)
    rounds = played(method, 5)
    assert not any(round.exchanges[0].up.ready for round in rounds[:3])
    assert all(total(round.merged.masks) == PRUNABLE for round in rounds[:4])
    sums = None
    for round in rounds[:3]:
        sums = round.exchanges[0].up.importance.times(1.0).plus(sums)
        assert not round.merged.pruned
        assert equal(round.merged.importance.weights, sums.weights)
        assert round.merged.importance.rest == sums.rest
    late = replace(method, first_accuracy=0.0)
    ctx, third = bench(method, 5).server(3), rounds[2]
    ready = [replace(each, up=replace(each.up, ready=True)) for each in third.exchanges]
    after = late.merge(ctx, third.state, ready)
    assert after.pruned and after.importance is None and after.version == 1
    assert equal(after.masks, wanted_masks(late, third.state, after.params, sums, 0.3))


def test_a_client_is_ready_when_it_is_right_often_enough() -> None:
    task = Task.of(nn.Linear(2, 4, bias=False), torch.zeros(2, 2), start="seed")
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.5]])
    params = {"weight": torch.eye(4, 2)}  # says 0 or 1, whichever input is larger; 0 in a tie
    for labels, share in (([0, 1, 0, 0], 1.0), ([0, 2, 3, 0], 0.5), ([1, 2, 3, 3], 0.0)):
        ctx = client_ctx(task, gs.Examples(x, torch.tensor(labels)))
        assert task.share(params, ctx.own.train.first(10)) == (share, 0.25)
    assert task.share(params, ctx.own.train.first(1)) == (0.0, 0.25)
    method = toy(first_accuracy=1.5, first_rounds=4, adjust_every=10)
    for round, result in ((r, r.results[0]) for r in played(method, 4)):
        assert round.exchanges[0].up.ready == (result.metrics["accuracy"] >= 0.5)


def test_the_first_phase_ends_when_the_density_is_steady() -> None:
    """Two adjustments in a row that change it little; the first has nothing to compare with."""
    method = toy(first_rounds=9, first_patience=2, first_change=1.0)
    assert [len(round.exchanges) for round in played(method, 5)] == [1, 1, 1, 4, 4]
    late = replace(played(method, 5)[1].exchanges[0].up, ready=False)
    again = [replace(each, up=late) for each in played(method, 5)[1].exchanges]
    after = method.merge(bench(method, 5).server(2), played(method, 5)[1].state, again)
    assert after.steady == 1 and after.version == 2  # once begun, it goes on
    restless = toy(first_rounds=3, first_patience=1, first_change=0.0)
    rounds = played(restless, 4)
    assert [len(round.exchanges) for round in rounds] == [1, 1, 1, 4]
    assert [round.merged.steady for round in rounds] == [0] * 4


def test_steadiness_is_counted_in_a_row() -> None:
    method = toy(first_rounds=9, adjust_ratio=0.0, max_density=0.01)
    ctx, (round,) = bench(method, 1).server(1), played(method, 1)
    quiet = replace(round.state, pruned=True, steady=3)
    assert method.merge(ctx, quiet, round.exchanges).steady == 4  # nothing may change
    moving = replace(method, adjust_ratio=0.3)
    assert moving.merge(ctx, quiet, round.exchanges).steady == 0


def test_a_lost_round_of_the_first_phase_changes_nothing() -> None:
    (round,) = played(toy(), 1)
    assert toy().merge(bench(toy(), 1).server(1), round.state, []) is round.state


# the second phase -------------------------------------------------------------------------------


def test_importance_counts_examples_and_adds_up_over_rounds() -> None:
    """N times the square of the sum of a round's gradients, pruned weights included."""
    method = toy(**SECOND, adjust_every=3)
    rounds = played(method, 6)
    assert [downs(each) for each in rounds] == [{Train}] * 3 + [{Measure}] + [{Train}] * 2
    locals_: dict[int, Local | None] = {}
    for round in rounds:
        for exchange, result in zip(round.exchanges, round.results, strict=True):
            own = bench(method, 6).client(round.number, exchange.client)
            before = locals_.get(exchange.client.id)
            earlier = before.importance if before else None
            assert (earlier is None) == (round.number in (1, 5))
            if exchange.client.id < 2:
                check_importance(method, own, exchange.down, before, counted, earlier)
            locals_[exchange.client.id] = result.local
            sent = isinstance(exchange.up, Measured)
            assert (result.local.importance is None) == sent == (round.number == 4)


def test_what_was_gathered_with_another_mask_is_void() -> None:
    method = toy(**SECOND)
    *_, third, fourth = played(method, 4)
    exchange = fourth.exchanges[0]
    own = bench(method, 4).client(4, exchange.client)
    assert exchange.down.mask is not None and not equal(third.state.masks, fourth.state.masks)
    gathered = Importance({n: torch.ones(m.shape) for n, m in third.state.masks.items()}, 1.0)
    for masks, kept in ((third.state.masks, False), (fourth.state.masks, True)):
        job = method.begin(own, exchange.down, Local(masks, gathered))
        assert (job.work.earlier is gathered) == kept
    alone = replace(exchange.down, mask=Revision(fourth.state.masks))
    first = Measure(alone.model, alone.mask, True)
    assert method.begin(own, first, Local(fourth.state.masks, gathered)).work.earlier is None


@pytest.mark.parametrize("gathering", ["round", "last"])
def test_what_is_gathered_in_one_round_is_not_kept(gathering: str) -> None:
    method = variant(**SECOND, gathering=gathering)
    rounds = played(method, 4)
    count = counted if gathering == "round" else (lambda grads, _: grads[-1])
    for round in rounds:
        for exchange, result in zip(round.exchanges, round.results, strict=True):
            assert result.local.importance is None
            measured = round.number == 3
            assert bool(result.trained) == measured == isinstance(exchange.up, Measured)
    exchange = rounds[2].exchanges[0]
    own = bench(method, 4).client(3, exchange.client)
    check_importance(method, own, exchange.down, None, count, signed=gathering == "last")


def test_masks_are_adjusted_by_the_sum_of_what_clients_say() -> None:
    """With a part that falls by half in so many rounds of the second phase."""
    method = toy(**SECOND, adjust_half_life=2.0, adjust_ratio=0.4)
    rounds = played(method, 6)
    for round in rounds:
        adjusts = round.number in (3, 5)
        assert (round.merged.version > round.state.version) == adjusts
        if not adjusts:
            assert round.merged.masks is round.state.masks
            continue
        sums = None
        for exchange in round.exchanges:
            sums = exchange.up.importance.times(1.0).plus(sums)
        ratio = 0.4 * 0.5 ** ((round.number - 1) / 2)
        wanted = wanted_masks(method, round.state, round.merged.params, sums, ratio)
        assert equal(round.merged.masks, wanted)
        gone = total(sparsity.difference(round.state.masks, round.merged.masks))
        assert 0 < gone <= ratio * total(round.state.masks)


def test_last_gradients_are_averaged_before_they_are_squared() -> None:
    for weighting in ("samples", "uniform"):
        method = variant(**SECOND, gathering="last", weighting=weighting)
        round = played(method, 3)[-1]
        many = [
            replace(each, client=replace(each.client, examples=10 ** (each.client.id % 4)))
            for each in round.exchanges
        ]
        merged = method.merge(bench(method, 3).server(3), round.state, many)
        shares = [each.client.examples if weighting == "samples" else 1 for each in many]
        mean = None
        for each, share in zip(many, shares, strict=True):
            mean = each.up.importance.times(share / sum(shares)).plus(mean)
        squares = Importance({n: tensor**2 for n, tensor in mean.weights.items()}, mean.rest)
        assert equal(
            merged.masks, wanted_masks(method.pure, round.state, merged.params, squares, 0.3)
        )


def copy(work: Work) -> Params:
    return {name: tensor.clone() for name, tensor in work.model.params.items()}


def test_pruned_weights_stay_zero_while_their_gradients_are_gathered() -> None:
    method = toy(momentum=0.9, weight_decay=0.1, lr=1.0)
    rounds = played(method, 6)
    for round in rounds[1:]:
        masks, exchange = round.state.masks, round.exchanges[0]
        assert total(masks) < PRUNABLE
        own = bench(method, 6).client(round.number, exchange.client)
        whole = replace(exchange.down, mask=Revision(masks))
        seen: list[Params] = []
        worked(method, own, whole, None, lambda work, _, seen=seen: seen.append(copy(work)))
        assert seen and all(zero_outside(params, masks) for params in seen)


def test_the_server_adds_the_mean_of_what_clients_changed() -> None:
    """And leaves pruned weights as they were."""
    for weighting in ("samples", "uniform"):
        round = played(toy(weighting=weighting), 4, norm=True)[-1]
        state, shares = round.state, []
        change: dict[str, Any] = {}
        for exchange in round.exchanges:
            share = exchange.client.examples if weighting == "samples" else 1
            shares.append(share)
            up = exchange.up
            whole = {**unpack(up.model.values, state.masks), **up.model.dense, **up.model.buffers}
            was = sparsity.masked(state.params, state.masks)
            for name, tensor in whole.items():
                change[name] = change.get(name, 0) + share * (tensor.double() - was[name])
        for name, tensor in round.merged.params.items():
            wanted = state.params[name] + change[name] / sum(shares)
            torch.testing.assert_close(tensor, wanted.float())
            if name in state.masks:
                off = ~state.masks[name]
                assert torch.equal(tensor[off], state.params[name][off]) and tensor[off].all()


def test_a_weight_comes_back_as_it_was_or_from_zero() -> None:
    for comeback in ("kept", "zero"):
        method = variant(**SECOND, comeback=comeback)
        *_, third = played(method, 3)
        before = third.merged
        assert total(before.masks) < PRUNABLE
        pruned = {name: before.params[name][~mask] for name, mask in before.masks.items()}
        assert all(bool(values.all()) == (comeback == "kept") for values in pruned.values())
        model = method.model(bench(method, 3).server(3), before, None)
        assert not any(bool(model[name][~mask].any()) for name, mask in before.masks.items())
        pure = replace(method.pure, pace=Pace(weight_time=1e-30), adjust_ratio=0.0)
        everything = replace(method, pure=pure)
        found = Importance({n: 1e9 * ~mask for n, mask in before.masks.items()}, 0.0)
        ups = [replace(each, up=replace(each.up, importance=found)) for each in third.exchanges]
        start = replace(third.state, masks=before.masks, params=before.params)
        for index, each in enumerate(ups):
            down = method.resend(bench(method, 3).server(3), start, each.client)
            up = Measured(down.model, found, None)
            ups[index] = Exchange(each.client, down, up)
        after = everything.merge(bench(method, 3).server(3), start, ups)
        assert total(after.masks) == PRUNABLE
        for name, mask in before.masks.items():
            assert torch.equal(after.params[name][~mask], pruned[name])


def test_no_weight_is_added_above_the_density_allowed() -> None:
    """Importance asks for nearly all of them; what may be kept falls by a third at a time."""
    free = {**SECOND, "adjust_every": 1, "fixed_time": 1e6}
    assert played(toy(**free), 6)[-1].merged.version == 0
    rounds = played(toy(**free, max_density=0.4), 6)
    kept = [total(round.merged.masks) / PRUNABLE for round in rounds]
    assert kept[0] == 1.0 and kept[1] == pytest.approx(0.7, abs=0.01)
    assert kept[-1] == int(0.4 * PRUNABLE) / PRUNABLE
    aims = played(variant(**free, max_density=0.6, target_density=0.3), 6)
    assert total(aims[-1].merged.masks) == int((0.6 - 0.3 * 5 / 6) * PRUNABLE)
    early = played(toy(max_density=0.4, fixed_time=1e6, first_rounds=4, first_patience=9), 4)
    assert total(early[-1].merged.masks) == int(0.4 * PRUNABLE)


def test_time_decides_where_weights_are_pruned() -> None:
    """Where computing takes the time, a layer with few products a weight is spared."""

    def densities(**pace: float) -> dict[str, float]:
        rounds = played(variant(**{**SECOND, "adjust_every": 1}, gathering="round", **pace), 4)
        found = sparsity.layer_densities(rounds[-1].merged.masks)
        return {name: float(share) for name, share in found.items()}

    computing = densities(mac_time=1.0, weight_time=1e-9, fixed_time=0.0)
    sending = densities(mac_time=0.0, weight_time=1.0, fixed_time=0.0)
    assert computing["5.weight"] > sending["5.weight"] + 0.1
    assert computing["0.weight"] == pytest.approx(sending["0.weight"], abs=0.03)
