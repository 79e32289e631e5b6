"""FedTiny: candidates that clients choose from, and a mask that is adjusted block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import cos, floor, pi
from typing import Any

import pytest
import torch
from flash_cases import LAYERS, bench, equal, federation, heard, net, rows, worked, zero_outside
from torch import nn

from gossamer import Client, Ctx, Exchange, Key, Task, fields, sparsity
from gossamer.conformance.bench import Round
from gossamer.core import Missing
from gossamer.methods.as_published.fedtiny import (
    AdjustmentReadings,
    FedTinyVariants,
    WholeUpdate,
    WholeVotes,
    clean,
)
from gossamer.methods.fedmef import FedMef
from gossamer.methods.fedtiny import (
    WORST,
    Candidates,
    FedTiny,
    Losses,
    Score,
    Server,
    Statistics,
)
from gossamer.methods.parts import mask_adjustment
from gossamer.methods.parts.mask_adjustment import Adjustment, Largest, Seeded, Train, Update
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.wire import HEADER, Packed, Revision, WireError
from helpers import server_ctx

SMALL: dict[str, Any] = {
    "clients": 4,
    "select_clients": 3,
    "batch": 8,
    "epochs": 1.0,
    "density": 0.25,
    "candidates": 3,
    "adjust_every": 2,
    "adjust_until": 20,
}
KEPT = 81
"""A quarter of the 324 prunable weights of `net`."""
OFTEN: dict[str, Any] = {"candidates": 1, "adjust_every": 1}
"""Training from the first round on, and an adjustment in every round but that."""


def toy(**changes: Any) -> FedTiny:
    return fields.replace(FedTiny(), {**SMALL, **changes})


def variant(**changes: Any) -> FedTinyVariants:
    return fields.replace(FedTinyVariants(), {**SMALL, **changes})


@cache
def played(method: FedTiny | FedTinyVariants, rounds: int = 5, norm: bool = False) -> list[Round]:
    return list(bench(method, rounds, norm=norm).history())


def at(number: int, task: Task | None = None, rounds: int = 500) -> Ctx:
    return server_ctx(task or net(), round=number + 1, rounds=rounds)


def kinds(round: Round) -> tuple[set[type], set[type]]:
    return {type(e.down) for e in round.exchanges}, {type(e.up) for e in round.exchanges}


def steps(method: FedTiny, ctx: Ctx, down: Any, local: Any) -> list[tuple[Any, Any]]:
    """Each batch of a client's job, and its work, which is the same one all along."""
    seen: list[tuple[Any, Any]] = []
    worked(method, ctx, down, local, lambda work, batch: seen.append((work, batch)))
    return seen


# when and where -----------------------------------------------------------------------------------


def test_every_tenth_round_of_the_first_hundred_adjusts_fewer_and_fewer_weights() -> None:
    """The count is 0.15 (1 + cos(pi r / 100)) of a layer's weights, rounded down."""
    task = Task.of(nn.Linear(100, 100), torch.zeros(2, 100), start="seed")
    found = [Adjustment().due(at(number, task), {"weight": 2000}) for number in range(120)]
    assert [number for number, asked in enumerate(found) if asked] == list(range(10, 100, 10))
    for number in range(10, 100, 10):
        assert found[number]["weight"] == floor(0.15 * (1 + cos(pi * number / 100)) * 2000)
    assert (found[10], found[50], found[90]) == ({"weight": 585}, {"weight": 300}, {"weight": 14})
    at_once = AdjustmentReadings(adjust_at_once=True)
    assert at_once.due(Adjustment(), at(0, task), {"weight": 2000}) == {"weight": 600}


@pytest.mark.parametrize(
    ("adjustment", "first", "last"),
    [
        (FedTiny().adjustment, Fraction(3, 10), 100),
        (clean().pure.adjustment, Fraction(1, 5), 300),
        (FedMef().adjustment, Fraction(2, 5), 300),
    ],
)
def test_ratios_begin_and_end_as_published(
    adjustment: Adjustment, first: Fraction, last: int
) -> None:
    assert adjustment.adjust_every == 10
    assert adjustment.ratio(at(0)) == first
    assert adjustment.ratio(at(last // 2)) == first / 2
    assert adjustment.ratio(at(last)) == 0 < adjustment.ratio(at(last - 1))


def deep(layers: int) -> Task:
    return Task.of(
        nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers))), torch.zeros(2, 4), start="seed"
    )


@pytest.mark.parametrize(("layers", "blocks"), [(7, 5), (5, 5), (3, 5), (12, 5), (4, 1)])
def test_blocks_take_turns_from_the_output_to_the_input(layers: int, blocks: int) -> None:
    layout = deep(layers).layout
    adjustment, parts = Adjustment(blocks=blocks), min(blocks, layers)
    turns = [adjustment.block(layout, turn) for turn in range(2 * parts)]
    assert turns[:parts] == turns[parts:]
    backwards = [name for block in turns[:parts] for name in reversed(block)]
    assert backwards == list(reversed(layout.prunable))
    sizes = [len(block) for block in turns]
    assert max(sizes) - min(sizes) <= 1


def test_adjustments_go_on_with_the_next_block() -> None:
    active = dict.fromkeys(deep(5).layout.prunable, 10)
    found = [list(Adjustment().due(at(n, deep(5)), active)) for n in range(10, 70, 10)]
    assert found == [[f"{layer}.weight"] for layer in (4, 3, 2, 1, 0, 4)]


def test_layers_that_have_little_room_or_few_weights_adjust_less() -> None:
    active = {"0.weight": 35, "2.weight": 216, "5.weight": 3}
    found = Adjustment(blocks=1).counts(at(0), active, active)
    assert found == {"0.weight": 1, "2.weight": 0, "5.weight": 0}
    assert Adjustment(blocks=1).due(at(10), LAYERS) == {}


# candidates ---------------------------------------------------------------------------------------


def test_candidates_have_the_density_asked_for_and_other_densities_of_layers() -> None:
    method, ctx = toy(candidates=6), at(0)
    drawn = [method.candidate(ctx, number) for number in range(6)]
    counts = [sparsity.count(masks) for _, masks in drawn]
    assert [sum(each.values()) for each in counts] == [KEPT] * 6
    assert counts[0] == {"0.weight": 9, "2.weight": 54, "5.weight": 18}  # a quarter of each
    assert len({tuple(each.values()) for each in counts}) == 6
    for (params, masks), kept in zip(drawn, counts, strict=True):
        assert equal(params, drawn[0][0])
        assert equal(masks, sparsity.largest(params, kept))
        for name, size in LAYERS.items():
            # Within the spread of a half, scaled so that all layers together are as dense.
            assert 0.25 * 0.5 / 1.5 * size - 1 < kept[name] < 0.25 * 1.5 / 0.5 * size + 1


def test_candidates_may_differ_in_weights_instead_as_in_the_library() -> None:
    method, ctx = variant(differ="weights"), at(0)
    (first, one), (second, two) = (method.candidate(ctx, number) for number in (0, 2))
    assert sparsity.count(one) == sparsity.count(two)
    assert not torch.equal(first["2.weight"], second["2.weight"])
    assert equal(one, sparsity.largest(first, sparsity.count(one)))
    assert equal(two, sparsity.largest(second, sparsity.count(two)))


def test_the_first_rounds_choose_and_train_nothing() -> None:
    first, second, third, *_ = played(toy(), 3, norm=True)
    assert kinds(first) == ({Candidates}, {Statistics})
    assert kinds(second) == ({Score}, {Losses})
    assert kinds(third) == ({Train}, {Update})
    ids = [[exchange.client.id for exchange in round.exchanges] for round in (first, second, third)]
    assert ids[0] == ids[1] and [len(each) for each in ids] == [3, 3, 4]
    assert all(result.local is None for result in (*first.results, *second.results))


@pytest.mark.parametrize(
    ("changes", "norm"), [({}, False), ({"adapt": False}, True)], ids=["no norm", "no statistics"]
)
def test_without_statistics_there_is_one_round_of_choice(
    changes: dict[str, Any], norm: bool
) -> None:
    first, second = played(toy(**changes), 2, norm)
    assert kinds(first) == ({Score}, {Losses}) and kinds(second) == ({Train}, {Update})
    assert first.exchanges[0].down.statistics == ({}, {}, {})


def test_with_one_candidate_training_begins_at_once() -> None:
    assert kinds(played(toy(candidates=1), 1, norm=True)[0]) == ({Train}, {Update})


def test_statistics_and_losses_are_all_that_travels_to_choose() -> None:
    """Nothing goes down at first, 8 numbers of 3 candidates go up and down, 3 losses go up."""
    found = heard(toy(), 4, norm=True)
    assert not found.failed
    for event in found.finished:
        up, down = rows(event, "up"), rows(event, "down")
        match event.round:
            case 1:
                assert set(down) == {"header"} and event.down == 8 * HEADER
                assert set(up) == {"header", "means"} and event.paper_up == 32 * 3 * 8
            case 2:
                assert event.paper_down == 32 * 3 * 8
                assert set(up) == {"header", "losses"} and event.paper_up == 32 * 3
            case 3:
                model = {"model.values", "model.dense", "model.buffers"}
                assert set(down) == {"header", *model, "mask.number"}
                assert down["model.values"].paper == 32 * KEPT
                assert set(up) == {"header", *model}


def test_clients_find_the_mean_of_their_batches_and_the_server_that_of_clients() -> None:
    method, task = toy(), net(norm=True)
    found = bench(method, 3, norm=True)
    first = played(method, 3, norm=True)[0]
    for exchange in first.exchanges:
        ctx = found.client(1, exchange.client)
        params, masks = method.candidate(ctx, 1)
        seen = [batch for _, batch in steps(method, ctx, exchange.down, None)]
        sizes = [len(batch.y) for batch in seen]
        each = [task.batch_statistics(sparsity.masked(params, masks), batch.x) for batch in seen]
        assert sum(sizes) == exchange.client.examples
        for name in ("1.running_mean", "1.running_var"):
            mean = sum(n * s[name] for n, s in zip(sizes, each, strict=True)) / sum(sizes)
            torch.testing.assert_close(exchange.up.means[1][name], mean)
    shares = [exchange.client.examples for exchange in first.exchanges]
    assert len(set(shares)) > 1
    for number in range(3):
        for name, tensor in first.merged.statistics[number].items():
            told = [exchange.up.means[number][name] for exchange in first.exchanges]
            mean = sum(n * each for n, each in zip(shares, told, strict=True)) / sum(shares)
            torch.testing.assert_close(tensor, mean)


def test_losses_are_those_of_all_own_data_with_the_statistics_that_were_sent() -> None:
    method, task = toy(), net(norm=True)
    second = played(method, 3, norm=True)[1]
    for exchange in second.exchanges:
        data = federation().client(exchange.client.id).train
        for number, loss in enumerate(exchange.up.losses.tolist()):
            params, masks = method.candidate(at(0, task), number)
            whole = {**sparsity.masked(params, masks), **exchange.down.statistics[number]}
            wanted = task.criterion(task.logits(whole, data.x), data.y)
            assert loss == pytest.approx(float(wanted), rel=1e-5)


def chosen(method: FedTinyVariants, *answers: Sequence[float], examples: Sequence[int]) -> Server:
    task = net(norm=True)
    statistics = tuple(
        {name: torch.full((4,), float(number)) for name in task.running_statistics}
        for number in range(3)
    )
    ctx = server_ctx(task, round=2)
    state = replace(method.init(ctx), statistics=statistics)
    exchanges = [
        Exchange(Client(id, count), Score(statistics), Losses(torch.tensor(list(answer))))
        for id, (answer, count) in enumerate(zip(answers, examples, strict=True))
    ]
    return method.merge(ctx, state, exchanges)


@pytest.mark.parametrize(
    ("weighting", "answers", "wanted"),
    [
        ("uniform", [[3.0, 1.0, 2.0], [1.0, 2.0, 1.5]], 1),
        ("samples", [[3.0, 1.0, 2.0], [1.0, 2.0, 1.5]], 0),
        ("uniform", [[2.0, 1.0, 1.0], [2.0, 1.0, 1.0]], 1),
        ("uniform", [[2.0, WORST, 1.9], [2.0, WORST, 1.9]], 2),
    ],
    ids=["mean", "by examples", "tie", "infinite"],
)
def test_the_lowest_mean_loss_wins(weighting: str, answers: list[list[float]], wanted: int) -> None:
    """With 10 and 90 examples: (3 + 1) / 2, 1.5, 1.75, or by examples 1.2, 1.9, 1.55."""
    method = variant(loss_weighting=weighting)
    after = chosen(method, *answers, examples=[10, 90])
    assert after.model.number == wanted and after.statistics == ()
    params, masks = method.candidate(at(0, net(norm=True)), wanted)
    assert equal(after.model.masks, masks)
    assert torch.equal(after.model.params["1.running_var"], torch.full((4,), float(wanted)))
    assert torch.equal(after.model.params["5.weight"], params["5.weight"] * masks["5.weight"])


def test_a_loss_that_is_no_number_is_told_as_the_worst() -> None:
    method, found = toy(), bench(toy(), 3)
    ctx = found.client(1, Client(0, 17))
    work = method.begin(ctx, Score(({},) * 3), None).work
    work.sums[1]["loss"].fill_(float("nan"))
    work.sums[2]["loss"].fill_(float("inf"))
    work.examples = 1
    up = method.finish(ctx, work).up
    assert up.losses.tolist() == [0.0, WORST, WORST]


def test_a_choice_in_which_nobody_answers_leaves_the_first_candidate() -> None:
    method, found = toy(), bench(toy(), 4, norm=True)
    state = found.init()
    for number in (1, 2):
        state = method.merge(found.server(number), state, iter(()))
    assert state.model.number == 0 and state.statistics == ()
    assert method.down(found.server(2), state, Client(0, 17)) == Score(({},) * 3)
    assert method.down(found.server(3), state, Client(0, 17)).mask == Seeded(0)


def test_clients_draw_the_mask_that_was_chosen() -> None:
    method = toy()
    third = played(method, 3, norm=True)[2]
    number = third.state.model.number
    ctx = bench(method, 3, norm=True).client(3, third.exchanges[0].client)
    assert third.exchanges[0].down.mask == Seeded(number)
    work = method.begin(ctx, third.exchanges[0].down, None).work
    assert equal(work.model.masks, third.state.model.masks)
    assert equal(work.model.params, third.state.model.params)


# adjustments --------------------------------------------------------------------------------------


def test_the_server_grows_the_mean_gradient_and_prunes_the_smallest_weight() -> None:
    """Missing gradients are zeros: 10 * 4 / 40 at one place, 30 * -2 / 40 at the other, which wins.

    Six weights, three active; 0.4 of them is one. Weight 1 is the smallest after the mean.
    """
    task = Task.of(nn.Linear(3, 2, bias=False), torch.zeros(2, 3), start="seed")
    method = variant(candidates=1, adjust_ratio=0.4, adjust_at_once=True, density=0.5)
    mask = {"weight": torch.tensor([[True, True, True], [False, False, False]])}
    state = Server(mask_adjustment.start(task.init(Key(1)), mask, 0), ())
    ctx = at(0, task)
    down = method.down(ctx, state, Client(0, 10))
    exchanges = []
    for client, values, place, grad in (
        (Client(0, 10), [0.5, 0.3, 0.3], (1, 0), 4.0),
        (Client(1, 30), [0.5, -0.1, 0.3], (1, 1), -2.0),
    ):
        places = {"weight": torch.zeros(2, 3) > 0}
        places["weight"][place] = True
        shapes = {"weight": (2, 3)}
        said = Largest(places, Packed({"weight": torch.tensor([grad])}, shapes))
        model = SparseModel(Packed({"weight": torch.tensor(values)}, shapes), {}, {})
        up = Update(model, said)
        exchanges.append(Exchange(client, down, up))
    after = method.merge(ctx, state, exchanges).model
    assert after.masks["weight"].int().tolist() == [[1, 0, 1], [0, 1, 0]]
    torch.testing.assert_close(after.params["weight"], torch.tensor([[0.5, 0, 0.3], [0, 0, 0]]))
    assert after.version == 1 and equal(after.before, mask)
    assert after.held.tolist() == [0, 0]


def test_what_was_just_pruned_may_come_back_from_zero_if_pruning_is_first() -> None:
    params, masks = {"w": torch.tensor([0.5, 0.1, 0.0])}, {"w": torch.tensor([True, True, False])}
    state = mask_adjustment.start(params, masks)
    empty = SparseModel(Packed({}, {}), {}, {})
    for first, wanted, kept in (
        (False, [True, False, True], [True, False, False]),
        (True, [True, True, False], [True, False, False]),
    ):
        votes = WholeVotes({"w": 1}, prune_first=first)
        votes.read(WholeUpdate(empty, {"w": torch.tensor([9.0, 3.0, -2.0])}), 1.0)
        change = votes.change(state)
        assert change.masks["w"].tolist() == wanted
        assert change.kept["w"].tolist() == kept


def test_clients_send_the_largest_gradients_of_missing_weights_after_training() -> None:
    method = toy(**OFTEN, blocks=1)
    found, (_, second) = bench(method, 2), played(method, 2)
    for exchange, result in zip(second.exchanges, second.results, strict=True):
        ctx = found.client(2, exchange.client)
        held = mask_adjustment.Local(second.state.model.masks)
        work, batch = steps(method, ctx, exchange.down, held)[-1]
        model = work.model
        grads = ctx.task.gradients(model.params, batch, model.masks, everywhere=True).grads
        asked = method.adjustment.due(found.server(2), sparsity.count(second.state.model.masks))
        assert isinstance(exchange.up.gradients, Largest) and list(asked) == list(LAYERS)
        for name, count in asked.items():
            places = exchange.up.gradients.places[name]
            free = ~second.state.model.masks[name]
            order = torch.where(free, grads[name].abs(), -1).flatten().argsort(descending=True)
            assert count > 0
            assert sorted(order[:count].tolist()) == places.flatten().nonzero().flatten().tolist()
            told = exchange.up.gradients.values.values[name]
            assert torch.equal(told, grads[name][places])
        assert equal(result.local.masks, second.state.model.masks)


def test_one_block_changes_at_a_time_and_counts_stay() -> None:
    last = None
    for round in played(toy(**OFTEN), 5):
        before, after = round.state.model, round.merged.model
        assert sparsity.count(after.masks) == sparsity.count(before.masks)
        assert zero_outside(after.params, after.masks)
        moved = [n for n in LAYERS if not torch.equal(before.masks[n], after.masks[n])]
        if round.number == 1:
            assert not moved and not round.exchanges[0].up.gradients
            continue
        block = [["5.weight"], ["2.weight"], ["0.weight"]][(round.number - 2) % 3]
        assert moved == block
        assert list(round.exchanges[0].up.gradients.places) == block
        for name in block:
            grown = after.masks[name] & ~before.masks[name]
            said = [exchange.up.gradients.places[name] for exchange in round.exchanges]
            assert not (grown & ~torch.stack(said).any(0)).any()
        last = after
    assert last is not None and last.version == 4


def test_whole_gradients_go_up_if_asked_for() -> None:
    found = heard(variant(**OFTEN, blocks=1, upload="all", prune_first=True), 3)
    assert not found.failed
    for event in found.finished:
        up = rows(event, "up")
        assert ("gradients" in up) == (event.round > 1)
        assert event.round == 1 or up["gradients"].paper == 32 * 324


def test_a_mask_goes_to_who_lacks_it_and_only_its_changes_to_who_has_the_last_one() -> None:
    """Four clients take part in every round: all hold the mask of one adjustment ago."""
    found = heard(toy(candidates=1), 6, pool=4)
    assert not found.failed
    sizes: dict[int, set[str]] = {}
    for event in found.finished:
        sizes.setdefault(event.round, set()).update(
            leaf for leaf in rows(event, "down") if leaf.startswith("mask")
        )
    assert sizes == {1: {"mask.number"}, 2: set(), 3: set(), 4: {"mask"}, 5: set(), 6: {"mask"}}
    state = found.state.model
    method, ctx = toy(**OFTEN), at(9)
    known, stale = (replace(state, held=torch.tensor([state.version - n])) for n in (1, 2))
    client = Client(0, 17)
    told = [mask_adjustment.send(ctx, each, client, method.bn).mask for each in (known, stale)]
    assert isinstance(told[0], Revision) and equal(told[0].base or {}, state.before)
    assert isinstance(told[1], Revision) and told[1].base is None
    again = method.resend(ctx, Server(known, ()), client)
    assert isinstance(again.mask, Revision) and again.mask.base is None


def test_a_client_that_lost_its_mask_asks_for_it() -> None:
    method = toy(**OFTEN)
    state = played(method, 5)[-1].merged
    client = Client(0, 17)
    holds = replace(state, model=replace(state.model, held=torch.tensor([state.model.version])))
    ctx = bench(method, 6).client(6, client)
    down = method.down(bench(method, 6).server(6), holds, client)
    assert down.mask is None
    with pytest.raises(Missing, match="sent no mask, and none is held here"):
        method.begin(ctx, down, None)
    again = method.begin(ctx, method.resend(ctx, holds, client), None).work
    kept = method.begin(ctx, down, mask_adjustment.Local(state.model.masks)).work
    assert equal(again.model.params, kept.model.params)


# refusals -----------------------------------------------------------------------------------------


def test_gradients_that_were_not_asked_for_are_refused() -> None:
    method = toy(**OFTEN, blocks=1)
    first, second = played(method, 2)
    ctx = bench(method, 2).server(2)
    good = second.exchanges[0]
    said = good.up.gradients
    masks = second.state.model.masks
    fewer = {name: mask & False for name, mask in said.places.items()}
    blank = Packed({name: torch.zeros(0) for name in fewer}, said.values.shapes)
    active = sparsity.largest(
        second.state.model.params, {n: int(m.sum()) for n, m in said.places.items()}, masks
    )
    for gradients, text in (
        (None, "asked for and did not"),
        (Largest(fewer, blank), "gradients of 0.weight that were asked for"),
        (replace(said, places=active), "gradients of 0.weight that were asked for"),
    ):
        bad = replace(good, up=replace(good.up, gradients=gradients))
        with pytest.raises(WireError, match=text):
            method.merge(ctx, second.state, [bad])
    unasked = replace(first.exchanges[0], up=replace(first.exchanges[0].up, gradients=said))
    with pytest.raises(WireError, match="came back unasked"):
        method.merge(bench(method, 2).server(1), first.state, [unasked])


def test_answers_of_another_kind_are_refused() -> None:
    method = toy()
    rounds = played(method, 3, norm=True)
    server = bench(method, 3, norm=True).server
    for number, other, text in ((1, 1, "statistics"), (2, 2, "losses"), (3, 0, "weights")):
        round, wrong = rounds[number - 1], rounds[other].exchanges[0].up
        bad = replace(round.exchanges[0], up=wrong)
        with pytest.raises(WireError, match=f"{text} were asked for, and something else"):
            method.merge(server(number), round.state, [bad])
    means = tuple({name: tensor - 9 for name, tensor in each.items()} for each in wrong.means)
    bad = replace(rounds[0].exchanges[0], up=Statistics(means))
    with pytest.raises(WireError, match="a variance came back that is below zero"):
        method.merge(server(1), rounds[0].state, [bad])


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="add `upload='all'`"):
        variant(prune_first=True).init(at(0))
    with pytest.raises(ValueError, match="use `rounds=3` or more, or `candidates=1`"):
        toy().init(at(0, net(norm=True), rounds=2))
    toy(candidates=1).init(at(0, net(norm=True), rounds=1))
    nothing = Task.of(nn.BatchNorm1d(4), torch.zeros(2, 4), start="seed")
    with pytest.raises(ValueError, match="no layer that may be pruned"):
        toy().init(at(0, nothing))


# presets ------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_paper() -> None:
    method = FedTiny()
    assert (method.clients, method.training.epochs, method.training.batch) == (10, 5, 64)
    assert method.training.lr == 0.1 and method.training.momentum == 0
    assert method.adjustment == Adjustment(
        adjust_every=10, adjust_until=100, adjust_ratio=0.3, blocks=5
    )


def test_the_library_adjusts_everything_at_once_by_all_gradients() -> None:
    method = fields.replace(clean(), {"clients": 4, "batch": 8, "epochs": 1.0, "adjust_every": 1})
    found = heard(method, 3, norm=True)
    assert not found.failed and found.state.model.version == 2
    assert (method.pure.allocation, method.pure.candidates) == ("erk", 1)


def test_variants_with_their_defaults_give_the_bits_of_the_method() -> None:
    plain, other = heard(toy(), 6, norm=True), heard(variant(), 6, norm=True)
    assert other.summary.state_hash == plain.summary.state_hash
    assert [event.up for event in other.finished] == [event.up for event in plain.finished]


@pytest.mark.parametrize("upload", ["largest", "all"])
def test_replies_of_variants_are_checked(upload: str) -> None:
    method = variant(**OFTEN, blocks=1, upload=upload)
    _, second = played(method, 2)
    ctx, good = bench(method, 2).server(2), second.exchanges[0]
    other = Update if upload == "all" else WholeUpdate
    for up, text in (
        (other(good.up.model, None), "something else came back"),
        (replace(good.up, gradients=None), "asked for and did not"),
    ):
        with pytest.raises(WireError, match=text):
            method.merge(ctx, second.state, [replace(good, up=up)])
