"""SPDST and JMWST over rounds: which masks move, what travels, and who holds what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from flash_cases import (
    KEPT,
    Heard,
    bench,
    density,
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

from gossamer import Ctx, Exchange, Result, Training, sparsity
from gossamer.engine.events import ClientFinished
from gossamer.methods.flash import Flash, Up
from gossamer.methods.parts.held_versions import Local
from gossamer.methods.parts.mask_learning import Update
from gossamer.methods.parts.masked_training import Work
from gossamer.wire import (
    Drawn,
    Revision,
    Schema,
    UnknownMask,
    decode,
    encode,
    held,
    unpack,
)
from helpers import fedavg


@dataclass(frozen=True)
class Faulty(Flash):
    """In one round, client 5 sends something that cannot be read, or nothing at all."""

    lost: int = 0
    raises: bool = False

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = super().finish(ctx, work)
        if (ctx.round, ctx.key.path[-1]) != (self.lost, 5):
            return done
        if self.raises:
            raise RuntimeError("out of battery")
        model = done.up.model
        odd = {name: tensor[:-1] for name, tensor in model.dense.items()}
        return replace(done, up=replace(done.up, model=replace(model, dense=odd)))


def version_of(state: Any) -> int:
    """The version of the masks, which variants keep for each budget."""
    return int(state.versions[0] if hasattr(state, "versions") else state.version)


def by_client(found: Heard) -> Mapping[int, list[ClientFinished]]:
    """What each client did from the second round on."""
    ids = sorted({event.client for event in found.finished})
    return {
        id: [each for each in found.finished if each.client == id and each.round > 1] for id in ids
    }


# SPDST ------------------------------------------------------------------------------------------


@settings(max_examples=8)
@given(
    st.sampled_from([0.03, 0.2, 0.5, 1.0]),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
)
def test_masks_of_spdst_never_change_after_the_first_round(
    share: float, momentum: float, decay: float, norm: bool
) -> None:
    method = toy(density=share, momentum=momentum, weight_decay=decay)
    first, *others = played(method, 4, norm=norm)
    masks = first.merged.masks
    assert total(masks[0]) == round(share * 324)
    for round_ in others:
        assert round_.merged.masks is masks and round_.merged.version == 1
        assert zero_outside(round_.merged.params, masks[0])
        assert not equal(round_.merged.params, round_.state.params)
        for exchange, result in zip(round_.exchanges, round_.results, strict=True):
            assert equal(result.masks, masks[0]) and exchange.up.mask is None
        assert round_.merged.union_density == pytest.approx(share, abs=1 / 324)


def test_a_run_of_spdst_measures_no_distance_after_the_first_round() -> None:
    start, first, *later = heard(toy(), 4).measured
    assert start.mismatch is None and first.mismatch > 0.5
    assert [event.mismatch for event in later] == [0.0] * 3
    assert all(event.density == KEPT / 324 for event in (start, first, *later))


def test_the_mean_of_spdst_is_that_of_fedavg_on_its_mask() -> None:
    """Weighted by examples, or by clients; what is not masked is averaged as well."""
    for weighting in ("samples", "uniform"):
        round = played(toy(weighting=weighting), 2, norm=True)[-1]
        ups = [result.up for result in round.results]
        shares = [
            exchange.client.examples if weighting == "samples" else 1
            for exchange in round.exchanges
        ]
        mask = round.state.masks[0]["2.weight"]
        for name, sent, found in (
            ("2.weight", [up.model.values.values["2.weight"] for up in ups], mask),
            ("5.bias", [up.model.dense["5.bias"] for up in ups], ...),
            ("1.running_var", [up.model.buffers["1.running_var"] for up in ups], ...),
        ):
            wanted = sum(share * each for share, each in zip(shares, sent, strict=True))
            torch.testing.assert_close(round.merged.params[name][found], wanted / sum(shares))


def test_masks_of_spdst_go_down_once_to_each_client_and_never_up() -> None:
    found = heard(toy(), 8)
    repeated = 0
    for events in by_client(found).values():
        for turn, event in enumerate(events):
            down, up = rows(event, "down"), rows(event, "up")
            assert ("mask" in down) == (turn == 0) and "mask" not in up
            repeated += turn > 0
    assert repeated > 10 and found.summary.failed == 0


def test_a_client_that_holds_the_mask_sends_as_much_as_it_receives() -> None:
    for norm in (False, True):
        for events in by_client(heard(toy(), 6, norm=norm)).values():
            for turn, event in enumerate(events):
                assert event.paper_up == event.paper_down
                assert (event.up == event.down) == (turn > 0)
                assert event.up <= event.down


@pytest.mark.parametrize("raises", [False, True], ids=["refused", "failed"])
@pytest.mark.parametrize("name", ["spdst", "pdst"])
def test_a_client_is_sent_the_mask_again_if_the_server_did_not_accept_its_reply(
    name: str, raises: bool
) -> None:
    """Everybody takes part in every round; one reply of client 5 is lost."""
    first = 2 if name == "spdst" else 1
    for lost in (first, first + 1):
        method = Faulty(**vars(toy(name, clients=6)), lost=lost, raises=raises)
        found = heard(method, first + 2, pool=6, on_client_error="skip")
        assert [(each.round, each.client) for each in found.failed] == [(lost, 5)]
        sent = {}
        for event in found.finished:
            if event.round >= first:
                sent[event.client, event.round] = "mask" in rows(event, "down")
        again = {(5, first + 1)} if lost == first else set()
        assert {where for where, mask in sent.items() if mask} == again | {
            where for where in sent if where[1] == first
        }


def test_pdst_sends_its_first_mask_in_the_first_round() -> None:
    found = heard(toy("pdst"), 3)
    for event in found.finished:
        assert event.metrics.keys() == {"loss"}
        assert event.round > 1 or "mask" in rows(event, "down")


# JMWST ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "mask_rounds"), [(1, {2, 3, 4, 5, 6, 7}), (3, {2, 5})])
def test_masks_of_jmwst_go_up_in_mask_rounds_only(every: int, mask_rounds: set[int]) -> None:
    found = heard(toy("jmwst", mask_every=every), 7)
    assert found.summary.failed == 0
    for event in found.finished:
        assert ("mask" in rows(event, "up")) == (event.round in mask_rounds)
        assert ("moved" in event.metrics) == (event.round in mask_rounds | {1})
    moved = {event.round for event in found.measured if event.mismatch}
    assert moved == mask_rounds | {1}
    assert all(event.density == KEPT / 324 for event in found.measured)


@settings(max_examples=8)
@given(
    st.sampled_from([0.03, 0.2, 0.5]),
    st.sampled_from([1, 2]),
    st.sampled_from(["random", "gradient"]),
    st.sampled_from(["magnitude", "none"]),
    st.booleans(),
)
def test_jmwst_keeps_its_density_whatever_clients_do(
    share: float, every: int, growth: str, redistribution: str, norm: bool
) -> None:
    method = toy(
        "jmwst",
        density=share,
        mask_every=every,
        growth=growth,
        redistribution=redistribution,
        momentum=0.5,
    )
    wanted = round(share * 324)
    rounds = played(method, 5, norm=norm)[1:]
    for round_, union in zip(rounds, unions(rounds), strict=True):
        moves = (round_.number - 2) % every == 0
        masks = round_.merged.masks[0]
        assert total(masks) == wanted and zero_outside(round_.merged.params, masks)
        assert all(total(result.masks) == wanted for result in round_.results)
        assert all((result.local is None) == moves for result in round_.results)
        assert density(union) >= share - 0.5 / 324
        assert round_.merged.union_density == pytest.approx(density(union))
        assert inside(masks, union)
        assert version_of(round_.merged) == version_of(round_.state) + moves
        if not moves:
            assert equal(union, masks)


def test_the_server_of_jmwst_keeps_the_largest_weights_of_the_mean_in_each_layer() -> None:
    """And as many of each layer as clients have on average."""
    rounds = played(toy("jmwst", prune_rate=0.5), 3)
    round, union = rounds[1], list(unions(rounds))[1]
    mean = {}
    for exchange, result in zip(round.exchanges, round.results, strict=True):
        whole = unpack(exchange.up.model.values, result.masks)
        for name in union:
            mean[name] = mean.get(name, 0) + exchange.client.examples * whole[name].double()
    counts = [sparsity.count(result.masks) for result in round.results]
    for name, mask in round.merged.masks[0].items():
        average = sum(each[name] for each in counts) / len(counts)
        assert abs(int(mask.sum()) - average) < 1
        size = mean[name].abs()
        assert size[mask].min() >= size[union[name] & ~mask].max() > 0


def test_clients_that_moved_a_mask_or_missed_one_are_sent_the_newest() -> None:
    """Who received the newest mask in a frozen round is not sent it again."""
    method = toy("jmwst", mask_every=3, clients=5)
    found = heard(method, 14)
    holds: dict[int, int] = {}
    version, kinds = 1, set()
    for number in range(2, 15):
        moves = (number - 2) % 3 == 0
        for event in (each for each in found.finished if each.round == number):
            stale = holds.get(event.client) != version
            assert ("mask" in rows(event, "down")) == stale
            kinds.add((moves, stale))
            holds[event.client] = -1 if moves else version
        version += moves
    assert kinds == {(moves, stale) for moves in (False, True) for stale in (False, True)}
    assert found.state.version == version
    assert {id: int(found.state.held[id]) for id in holds if holds[id] == version} == {
        id: version for id in holds if holds[id] == version
    }


def test_the_seed_of_a_mask_is_sent_as_long_as_the_mask_is_as_it_was_drawn() -> None:
    first, second, third = played(toy("jmwst"), 3)
    assert all(isinstance(each.down.mask, Drawn) for each in first.exchanges + second.exchanges)
    assert all(isinstance(each.down.mask, Revision) for each in third.exchanges)
    assert second.merged.version > first.merged.version
    assert first.merged.as_drawn and not second.merged.as_drawn


def test_a_moved_mask_is_told_as_changes_of_the_one_that_the_server_has() -> None:
    """Also by a client that was sent none, because it held it."""
    method = toy("jmwst", mask_every=2, clients=12)
    *_, frozen, moved = played(method, 4)
    ctx = bench(method).server(4)
    assert all(each.down.mask is not None for each in frozen.exchanges)
    for exchange in moved.exchanges:
        assert exchange.down.mask is None
        up = exchange.up
        assert equal(up.mask.base, moved.state.masks[0]) and not equal(up.mask.masks, up.mask.base)
        schema = Schema.of(up)
        assert schema in {Schema.of(form) for form in method.replies(ctx, exchange.down)}
        data = encode(up)
        again = decode(data, schema, held=held(exchange.down, moved.state))
        assert equal(again.mask.masks, up.mask.masks)
        with pytest.raises(UnknownMask):
            decode(data, schema, held=held(exchange.down))


@pytest.mark.parametrize(("name", "apart"), [("jmwst", True), ("spdst", False), ("nst", True)])
def test_how_far_clients_are_apart_is_told(name: str, apart: bool) -> None:
    """The mean of the distances between all of them; masks that all share are none."""
    method = toy(name, prune_rate=0.5)
    *_, last = played(method, 4)
    matrix = sparsity.mismatches(result.masks for result in last.results)
    pairs = [matrix[i][j] for i in range(len(matrix)) for j in range(i)]
    assert len(pairs) == 6 and (min(pairs) > 0) == apart
    shown = method.measures(bench(method).server(4), last.merged).metrics["client_mismatch"]
    assert shown == pytest.approx(sum(pairs) / 6)
    assert heard(method, 4).measured[-1].metrics["client_mismatch"] == pytest.approx(shown)


# both -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["spdst", "jmwst"])
def test_rounds_differ_and_runs_do_not(name: str) -> None:
    one, two = (heard(toy(name), 4).summary for _ in range(2))
    assert one.state_hash == two.state_hash
    states = [round.merged for round in played(toy(name), 4)]
    assert not any(equal(first.params, second.params) for first, second in pairwise(states))


@pytest.mark.parametrize("norm", [False, True])
def test_static_norms_send_no_statistics(norm: bool) -> None:
    method = toy("jmwst", bn="static", mask_every=2)
    for round in played(method, 3, norm=norm):
        assert all(exchange.down.model.buffers == {} for exchange in round.exchanges)
        updates = [each.up for each in round.exchanges if isinstance(each.up, Update)]
        assert all(update.model.buffers == {} for update in updates)
        assert len(updates) == (0 if round.number == 1 else len(round.exchanges))
        for name in bench(method, norm=norm).task.layout.buffers:
            assert torch.equal(round.merged.params[name], round.state.params[name])
    leaves = {
        leaf
        for event in heard(method, 3, norm=norm).finished
        for way in ("up", "down")
        for leaf in rows(event, way)
    }
    assert leaves == {"header", "model.values", "model.dense", "mask", "densities"}


def test_running_statistics_travel_and_are_averaged() -> None:
    *_, last = played(toy(), 3, norm=True)
    for each in last.exchanges:
        assert set(each.up.model.buffers) == set(each.down.model.buffers) != set()
    assert not torch.equal(
        last.merged.params["1.running_mean"], last.state.params["1.running_mean"]
    )


@pytest.mark.parametrize("name", ["spdst", "jmwst"])
def test_the_model_that_is_tested_is_sparse_or_the_mean_that_it_is_cut_from(name: str) -> None:
    masked, union = (toy(name, eval_model=kind) for kind in ("masked", "union"))
    rounds = played(union)
    for one, two, owned in zip(played(masked), rounds, unions(rounds), strict=True):
        ctx = bench(masked).server(one.number)
        assert equal(one.merged.params, two.merged.params)
        assert equal(masked.model(ctx, one.merged, None), one.merged.params)
        tested = union.model(ctx, two.merged, None)
        assert equal(sparsity.masked(tested, two.merged.masks[-1]), two.merged.params)
        nonzero = {each: tested[each] != 0 for each in two.merged.masks[-1]}
        bigger = name == "jmwst" and one.number > 1
        assert (total(nonzero) > KEPT) == bigger
        assert one.number == 1 or inside(nonzero, owned)


def test_a_dense_model_in_one_frozen_mask_is_fedavg() -> None:
    """The same steps on the same batches, whatever the way through masks."""
    training = Training(batch=8, lr=0.1, schedule="exponential-to", lr_end=0.001)
    plain = played(replace(fedavg(4), training=training), 3, norm=True)
    sparse = played(toy("pdst", density=1.0), 3, norm=True)
    for one, two in zip(plain, sparse, strict=True):
        ids = [[exchange.client.id for exchange in each.exchanges] for each in (one, two)]
        assert ids[0] == ids[1]
        for name, tensor in one.merged.params.items():
            torch.testing.assert_close(tensor, two.merged.params[name])


def test_a_round_is_merged_from_what_was_sent() -> None:
    """A client that sends back what it received changes nothing."""
    method = toy("jmwst", mask_every=2)
    found = bench(method)
    *_, last = played(method, 4)
    ctx = found.server(5)
    client = found.federation.pool[0]
    down = method.down(ctx, last.merged, client)
    (up,) = method.replies(ctx, down)
    assert up.mask is None
    after = method.merge(ctx, last.merged, [Exchange(client, down, up)])
    assert equal(after.params, last.merged.params) and after.masks is last.merged.masks
