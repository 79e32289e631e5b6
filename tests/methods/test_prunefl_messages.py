"""PruneFL: what travels, what is refused, what is counted, and what it comes to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from flash_cases import Heard, bench, equal, federation, heard, net, rows, total
from prunefl_cases import (
    PRUNABLE,
    SECOND,
    Faulty,
    FaultyVariant,
    Forgetful,
    ones,
    played,
    toy,
    variant,
    zero,
)
from torch import nn

import gossamer as gs
from gossamer import Task, Training, data, models
from gossamer.accounting.dry_run import price
from gossamer.conformance.promises import PROMISES, check
from gossamer.conformance.toys import CLASSES, SIDE
from gossamer.core import Missing
from gossamer.methods.as_published.prunefl import PruneFLVariants
from gossamer.methods.prunefl import PruneFL, Update
from gossamer.wire import HEADER, WireError
from helpers import server_ctx

# the promises -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        (toy(), 6),
        (variant(**SECOND | {"adjust_every": 1}, gathering="last", comeback="zero"), 3),
    ],
    ids=["both phases", "second phase"],
)
def test_the_method_keeps_every_promise(method: PruneFL | PruneFLVariants, rounds: int) -> None:
    found = list(check(method, rounds))
    assert [finding for finding in found if not finding.ok] == []
    assert [finding.name for finding in found] == ["settings are sound", *PROMISES]


@pytest.mark.parametrize("gathering", ["all", "round", "last"])
@pytest.mark.parametrize("norm", [False, True])
def test_the_engine_refuses_no_reply(gathering: str, norm: bool) -> None:
    found = heard(variant(gathering=gathering), 7, norm=norm)
    assert not found.failed and found.state.rounds == 5 and found.state.version >= 3


def test_a_model_of_nothing_but_weights_can_be_measured() -> None:
    """Nothing is left for the rest, which is a number all the same."""
    parts = [nn.Conv2d(1, 4, 3, bias=False), nn.Flatten(), nn.Linear(64, CLASSES, bias=False)]
    task = Task.of(nn.Sequential(*parts), torch.zeros(2, 1, SIDE, SIDE), start="seed")
    found = Heard()
    gs.run(toy(), task, federation(), rounds=5, sinks=[found], options=gs.Options(workers=1))
    assert not found.failed and found.measured[-1].density < 1


def test_variants_with_their_defaults_give_the_bits_of_the_method() -> None:
    plain, other = heard(toy(), 6, norm=True), heard(variant(), 6, norm=True)
    assert other.summary.state_hash == plain.summary.state_hash
    assert [event.up for event in other.finished] == [event.up for event in plain.finished]


# what travels -----------------------------------------------------------------------------------


def test_importance_goes_up_only_in_adjustment_rounds() -> None:
    """32 bits for each prunable weight, pruned or not, and for the rest."""
    found = heard(toy(**SECOND), 6)
    dense = net().layout.total("count", net().layout.dense)
    for event in found.finished:
        up = rows(event, "up")
        adjusts = event.round in (3, 5)
        assert ("importance.weights" in up) == adjusts
        if adjusts:
            assert up["importance.weights"].paper == 32 * PRUNABLE
            assert up["importance.rest"].paper == 32
        assert up["model.values"].paper + up["model.dense"].paper == 32 * (
            round(event.density * PRUNABLE) + dense
        )


def test_masks_go_down_when_they_are_stale() -> None:
    """Not as long as the model is dense, and not to who has them; by bitmap in the paper."""
    found = heard(toy(first_rounds=0, clients=5), 12)
    version, holds, kinds = 0, dict[int, int](), set()
    for number in range(1, 13):
        for event in (each for each in found.finished if each.round == number):
            down = rows(event, "down")
            stale = version > 0 and holds.get(event.client) != version
            assert ("mask" in down) == stale
            assert not stale or down["mask"].paper == PRUNABLE
            kinds.add((version > 0, stale))
            holds[event.client] = version
        version += number in (3, 5, 7, 9, 11)
    assert kinds == {(False, False), (True, False), (True, True)}
    assert found.state.version == version == 5 and not found.failed


def test_a_client_that_lost_its_mask_is_sent_it() -> None:
    settings = vars(variant(**SECOND, gathering="round"))
    plain = heard(PruneFLVariants(**settings), 5)
    forgot = heard(Forgetful(**settings, lost=5), 5)
    assert forgot.summary.state_hash == plain.summary.state_hash
    for before, event in zip(plain.finished, forgot.finished, strict=True):
        asked = [row for row in event.traffic if row.message == "Missing"]
        assert len(asked) == (event.round == 5)
        assert event.up == before.up + 8 * HEADER * len(asked)
        assert event.paper_down >= before.paper_down
    method, state = toy(), played(toy(), 3)[-1].merged
    down = method.down(server_ctx(net(), 4), replace(state, held=torch.zeros(9).int() + 2), zero())
    assert down.mask is None
    with pytest.raises(Missing, match="sent no mask, and none is held here"):
        method.begin(bench(method).client(4, zero()), down, None)
    again = method.resend(server_ctx(net(), 4), state, zero())
    assert method.begin(bench(method).client(4, zero()), again, None).work.model.masks is not None


@pytest.mark.parametrize("says", ["nan", "inf", "-1"])
def test_importance_that_cannot_be_is_refused_and_costs_the_round(says: str) -> None:
    method = Faulty(**vars(toy(**SECOND)), lost=3, says=says)
    found = heard(method, 4, on_client_error="skip")
    assert [(each.round, each.client) for each in found.failed] == [(3, 5)]
    assert ("below zero" if says == "-1" else "not finite") in found.failed[0].reason
    assert found.state.version == 1
    signed = FaultyVariant(**vars(variant(**SECOND, gathering="last")), lost=3, says=says)
    assert bool(heard(signed, 4, on_client_error="skip").failed) == (says != "-1")


def test_answers_of_another_kind_are_refused() -> None:
    method = toy(**SECOND)
    ctx = bench(method, 3).server(3)
    first, _, third = played(method, 3)
    one, other = third.exchanges[0], first.exchanges[0]
    up = one.up
    plain = Update(up.model)
    for round, exchange in ((third, replace(one, up=plain)), (first, replace(other, up=up))):
        with pytest.raises(WireError, match="unasked, or was asked for and did not"):
            method.merge(ctx, round.state, [exchange])
    strange = replace(up, importance=replace(up.importance, rest=-1.0))
    with pytest.raises(WireError, match="numbers below zero; no square is"):
        method.merge(ctx, third.state, [replace(one, up=strange)])


def test_gradients_of_all_weights_are_paid_for_where_they_are_needed() -> None:
    for gathering, rounds in (
        ("all", {1, 2, 3, 4, 5, 6}),
        ("round", {1, 2, 5}),
        ("last", {1, 2, 5}),
    ):
        for round in played(variant(gathering=gathering), 6):
            for result in round.results:
                assert equal(result.masks, round.state.masks)
                assert equal(result.trained, ones() if round.number in rounds else {})


def test_measures_tell_the_phase() -> None:
    method = toy()
    found = heard(method, 4)
    assert [event.metrics["phase"] for event in found.measured] == [1.0, 1.0, 2.0, 2.0, 2.0]
    assert found.measured[-1].density == total(found.state.masks) / PRUNABLE


def test_statistics_of_norms_travel_only_if_they_are_kept() -> None:
    for bn in ("running", "static"):
        round = played(toy(bn=bn), 3, norm=True)[-1]
        sent = {name for exchange in round.exchanges for name in exchange.up.model.buffers}
        assert sent == (set(net(True).layout.buffers) if bn == "running" else set())


def test_a_dry_run_goes_through_both_phases_and_stays_dense() -> None:
    """Without a step nothing is important, and the price is the most that it can be."""
    where: dict[str, Any] = {"classes": CLASSES, "pool": 12, "examples": 20}
    found = price(toy(first_rounds=9), net(), rounds=6, **where)
    dense = 32 * net().layout.total("count", net().layout.parameters)
    lines = {(way, message): 0.0 for way, message, _ in found.lines}
    for (way, message, _), bits in found.lines.items():
        lines[way, message] += bits.paper
    assert lines["down", "Train"] == lines["up", "Update"] == 3 * 4 * dense
    assert lines["down", "Measure"] == (1 + 2 * 4) * (dense + 32)
    assert lines["up", "Measured"] == 9 * (dense + 32 * PRUNABLE + 32) + 32
    assert not any(leaf == "mask" for _, _, leaf in found.lines)


def test_without_pruning_it_is_fedavg() -> None:
    training = Training(batch=8, lr=0.1, epochs=1.0)
    method = replace(toy(clients=4, first_rounds=0, steps=0, adjust_ratio=0.0), training=training)
    plain = gs.FedAvg(clients=4, training=training)
    pairs = zip(played(method, 3, True), bench(plain, 3, norm=True).history(), strict=True)
    for one, two in pairs:
        assert one.merged.version == 0
        for name, tensor in two.merged.params.items():
            torch.testing.assert_close(one.merged.params[name], tensor)


# on real images ---------------------------------------------------------------------------------


def test_it_finds_a_density_and_learns() -> None:
    federation = data.federation("fmnist-mini", "dirichlet:1", pool=20, seed=1)
    module = models.build("lenet5_caffe", federation.shape, 10)
    task = gs.Task.of(module, federation.test.x[:2], start="seed")
    method = toy(
        clients=5, steps=5, batch=20, lr=0.05, adjust_every=5, first_batches=10, first_accuracy=1.5
    )
    found = gs.run(
        method,
        task,
        federation,
        rounds=9,
        seed=1,
        options=gs.Options(workers=1, eval_every=9, personal=False),
    )
    assert found.failed == 0
    assert 0.3 < found.density < 0.9
    assert 0.45 < found.accuracy["global"] < 0.85
