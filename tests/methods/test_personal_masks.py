"""Sub-FedAvg, LotteryFL and FedSpa: masks of clients' own that the server knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flash_cases import bench, equal, heard, inside, played, toy, zero_outside
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gossamer import METHODS, Client, Exchange, Masks, Task, sparsity
from gossamer.accounting import paper_bits
from gossamer.core import Data, Examples
from gossamer.methods import FedSpa, LotteryFL, SubFedAvg, subfedavg
from gossamer.methods.as_published.personal import FedSpaVariants, LotteryFLVariants, deciding_on
from gossamer.methods.parts import personal_masks, sparse_model
from gossamer.methods.parts.personal_masks import NO_MASKS, Down, Local, Server, Up
from gossamer.methods.parts.sparse_model import SparseModel, total
from gossamer.task.layout import Layout
from gossamer.wire import Packed, Revision, WireError
from helpers import client_ctx, linear, server_ctx

THREE = ["subfedavg", "lotteryfl", "fedspa"]
VARIANTS = [f"{name}-variants" for name in THREE]


def bits(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)


def line(inputs: int, outputs: int = 1) -> Task:
    return Task.of(nn.Linear(inputs, outputs), torch.zeros(2, inputs), start="seed")


def eager(name: str, **changes: Any) -> Any:
    """A method whose clients prune whatever comes of it."""
    return toy(name, **changes) if "fedspa" in name else toy(name, accurate=0.0, **changes)


# what the server knows ----------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 40), st.integers(0, 2**15 - 1), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_the_register_tells_every_mask_back(known: dict[int, int]) -> None:
    layout = linear().layout
    shape = layout["weight"].shape

    def masks(number: int) -> Masks:
        flags = [bool(number >> place & 1) for place in range(15)]
        return {"weight": torch.tensor(flags).reshape(shape)}

    register = NO_MASKS
    for client, number in known.items():
        register = register.updated(layout, {client: masks(number)})
    for client in range(42):
        found = register.find(layout, client)
        assert (found is None) == (client not in known)
        assert found is None or equal(found, masks(known[client]))
    assert register.updated(layout, {}) is register


def merged(method: Any, server: list[float], *models: tuple[list[float], list[int], float]) -> Any:
    """What a server makes of weights, masks and biases of clients."""
    task = line(3)
    state = Server({"weight": torch.tensor([server]), "bias": torch.zeros(1)})
    exchanges = []
    for id, (values, mask, bias) in enumerate(models):
        masks = {"weight": bits(*mask)[None]}
        kept = torch.tensor(values)[masks["weight"][0]]
        values = Packed({"weight": kept}, {"weight": (1, 3)})
        up = Up(SparseModel(values, {"bias": torch.tensor([bias])}, {}), Revision(masks))
        down = method.down(server_ctx(task), state, Client(id, 10))
        exchanges.append(Exchange(Client(id, 10), down, up))
    return method.merge(server_ctx(task), state, exchanges)


@pytest.mark.parametrize("name", ["subfedavg", "lotteryfl"])
def test_a_weight_is_the_mean_over_clients_that_have_it(name: str) -> None:
    one, two = ([1.0, 0, 3], [1, 0, 1], 2.0), ([3.0, 0, 0], [1, 0, 0], 4.0)
    state = merged(METHODS[name], [9.0, 9, 9], one, two)
    assert state.params["weight"].tolist() == [[2, 9, 3]]
    assert state.params["bias"].tolist() == [3]
    assert state.known.find(line(3).layout, 1)["weight"].tolist() == [[True, False, False]]


def test_what_a_client_does_not_have_counts_as_unchanged_in_fedspa() -> None:
    task, method = line(3), FedSpa(density=2 / 3)
    ctx = server_ctx(task)
    first = method.initial(ctx)
    held = [place for place in range(3) if first["weight"][0, place]]
    state = Server({"weight": torch.full((1, 3), 9.0), "bias": torch.zeros(1)})
    free = next(place for place in range(3) if place not in held)
    moved = {"weight": bits(*(place in (held[0], free) for place in range(3)))[None]}
    values = Packed({"weight": torch.tensor([1.0, 2])}, {"weight": (1, 3)})
    up = Up(SparseModel(values, {"bias": torch.ones(1)}, {}), Revision(moved))
    down = method.down(ctx, state, Client(0, 10))
    once = method.merge(ctx, state, [Exchange(Client(0, 10), down, up)])
    assert once.params["weight"][0, held].tolist() == [10, 11]
    assert once.params["weight"][0, free] == 9
    # The next message lies on the mask that the client told; its change counts half of two.
    again = method.down(ctx, once, Client(0, 10))
    assert again.own and again.mask is None
    other = method.down(ctx, once, Client(1, 10))
    still = replace(up, mask=Revision(first))
    kept = replace(up, mask=Revision(moved))
    both = [Exchange(Client(0, 10), again, kept), Exchange(Client(1, 10), other, still)]
    later = method.merge(ctx, once, both).params["weight"][0]
    order = sorted([held[0], free])
    expected = once.params["weight"][0].clone()
    for place, change in zip(order, (1.0, 2.0), strict=True):
        expected[place] += change / 2
    for place, change in zip(held, (1.0, 2.0), strict=True):
        expected[place] += change / 2
    assert later.tolist() == expected.tolist()
    variant = FedSpaVariants(method, averaging="wfa")
    counted = variant.merge(ctx, once, both).params["weight"][0]
    assert counted[free] == once.params["weight"][0, free] + (2.0 if order[1] == free else 1.0)


@pytest.mark.parametrize("name", ["subfedavg", "lotteryfl"])
def test_a_mask_that_grew_is_refused(name: str) -> None:
    task, method = line(3), METHODS[name]
    ctx = server_ctx(task)
    small = {"weight": bits(1, 0, 0)[None]}
    params = {"weight": torch.ones(1, 3), "bias": torch.zeros(1)}
    state = Server(params, NO_MASKS.updated(task.layout, {0: small}))
    down = method.down(ctx, state, Client(0, 10))
    assert down.own and down.model.values.values["weight"].numel() == 1
    large = {"weight": bits(1, 1, 0)[None]}
    values = Packed({"weight": torch.ones(2)}, {"weight": (1, 3)})
    up = Up(SparseModel(values, {"bias": torch.zeros(1)}, {}), Revision(large))
    with pytest.raises(WireError, match="1 weights that the client did not have"):
        method.merge(ctx, state, [Exchange(Client(0, 10), down, up)])


def test_a_mask_of_another_size_is_refused_by_fedspa() -> None:
    state = bench(toy("fedspa")).init()
    found = bench(toy("fedspa"))
    method, client = found.method, Client(0, 17)
    ctx = found.server(1)
    down = method.down(ctx, state, client)
    more = {name: torch.ones_like(mask) for name, mask in method.initial(ctx).items()}
    up = replace(method.replies(ctx, down)[0], mask=Revision(more))
    with pytest.raises(WireError, match="another number of weights in a layer"):
        method.merge(ctx, state, [Exchange(client, down, up)])


# rounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", THREE)
def test_variants_with_their_defaults_give_the_bits_of_the_method(name: str) -> None:
    pure, variants = (heard(eager(each), 4, norm=True) for each in (name, f"{name}-variants"))
    assert variants.summary.state_hash == pure.summary.state_hash
    assert variants.summary.cost == pure.summary.cost
    assert not variants.failed


@pytest.mark.parametrize("name", ["subfedavg", "lotteryfl"])
def test_variants_may_decide_on_test_data(name: str) -> None:
    method = toy(f"{name}-variants", accurate=0.4, validate_on="test")
    pure = toy(name, accurate=0.4)
    ours, theirs = ([round.merged for round in played(each, 3)] for each in (method, pure))
    assert not all(equal(a.params, b.params) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", THREE)
def test_a_client_is_sent_what_its_mask_keeps_and_no_mask(name: str, norm: bool) -> None:
    method = eager(name)
    found = bench(method, 6, norm=norm)
    masks: dict[int, Masks] = {}
    told: set[int] = set()
    for round in found.history():
        for exchange, result in zip(round.exchanges, round.results, strict=True):
            id, down = exchange.client.id, exchange.down
            assert down.own == (id in told) and down.mask is None
            if id in masks:
                kept = {n: int(m.sum()) for n, m in masks[id].items()}
                assert {n: v.numel() for n, v in down.model.values.values.items()} == kept
            masks[id] = result.local.masks
            up = exchange.up
            told |= {id} if up.mask else set()
            sent = up.mask.masks if up.mask and name != "fedspa" else result.masks
            assert {n: v.numel() for n, v in up.model.values.values.items()} == sparsity.count(sent)
    assert len(told) > 4


@pytest.mark.parametrize("name", [*THREE, *VARIANTS])
def test_a_client_that_lost_its_mask_is_sent_it(name: str) -> None:
    method = eager(name)
    found = bench(method, 3)
    *_, last = found.history()
    place = next(i for i, exchange in enumerate(last.exchanges) if exchange.up.mask)
    client = last.exchanges[place].client
    down = method.down(found.server(4), last.merged, client)
    assert down.own
    with pytest.raises(Exception, match="not held here"):
        method.begin(found.client(4, client), down, None)
    again = method.resend(found.server(4), last.merged, client)
    assert again.mask is not None
    work = method.begin(found.client(4, client), again, None).work
    kept = method.begin(found.client(4, client), down, last.results[place].local).work
    ours, theirs = (getattr(each, "model", each) for each in (work, kept))
    assert equal(ours.masks, theirs.masks) and equal(ours.params, theirs.params)


@pytest.mark.parametrize("name", THREE)
def test_masks_travel_as_changes_and_runs_count_them(name: str) -> None:
    run = heard(eager(name), 4)
    assert not run.failed
    rows = [entry for event in run.finished for entry in event.traffic if "mask" in entry.leaf]
    assert rows and all(entry.direction == "up" for entry in rows)
    weights = 324
    assert all(entry.paper in (0.0, weights) for entry in rows)
    assert any(entry.paper == weights for entry in rows)


# percentiles --------------------------------------------------------------------------------------


def test_a_fifth_of_five_weights_is_one_at_a_time() -> None:
    params = {"w": torch.tensor([0.1, -0.2, 0.3, -0.4, 0.5])}
    masks = {"w": torch.ones(5, dtype=torch.bool)}
    seen = []
    for _ in range(4):
        masks = sparsity.above_percentile(params, masks, 0.2)
        seen.append(masks["w"].int().tolist())
    assert seen == [[0, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]


@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=30), st.floats(0, 0.99))
@settings(max_examples=60, deadline=None)
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    weights = torch.tensor(values)
    found = sparsity.above_percentile({"w": weights}, {"w": torch.ones(len(values)) > 0}, share)[
        "w"
    ]
    sizes = np.abs(np.asarray(values, np.float64))
    limit = np.percentile(sizes[sizes > 0], 100 * share) if (sizes > 0).any() else 0.0
    close = np.isclose(sizes, limit, rtol=1e-12)
    assert (found.numpy() == (sizes >= limit))[~close].all()


# Sub-FedAvg ---------------------------------------------------------------------------------------


def judged(task: Task, examples: int = 20, right: bool = True) -> Any:
    """A client whose validation data any model with positive weights gets right, or wrong."""
    ctx = client_ctx(task, Examples(torch.ones(examples, 100), torch.zeros(examples).long()))
    held = Examples(torch.ones(8, 100), torch.full((8,), 0 if right else 1))
    assert ctx.data is not None
    return replace(ctx, data=replace(ctx.data, valid=held))


def hundred(pruned: int) -> tuple[Task, dict[str, torch.Tensor], Masks]:
    """A layer without bias whose weights are all different, and a mask without the smallest."""
    task = Task.of(nn.Linear(100, 2, bias=False), torch.zeros(2, 100), start="seed")
    weights = torch.stack([torch.arange(1.0, 101), -torch.arange(101.0, 201)])
    return task, {"weight": weights}, {"weight": weights.abs() > 2 * pruned}


def test_the_last_steps_of_subfedavg_are_small_and_end_at_the_target() -> None:
    task = Task.of(nn.Linear(100_000, 2, bias=False), torch.zeros(2, 100_000), start="seed")
    weights = torch.stack([torch.arange(1.0, 100_001), -torch.arange(100_001.0, 200_001)])
    method, seen = SubFedAvg(accurate=0.0), []
    masks: Masks = {"weight": weights.abs() > 0.36 * 200_000}
    ctx = client_ctx(task, Examples(torch.ones(2, 100_000), torch.zeros(2).long()))
    other = {"weight": torch.zeros_like(masks["weight"])}
    for _ in range(6):
        masks = method.next_masks(ctx, {"weight": weights}, masks, other)
        seen.append(round(100 * subfedavg.pruned(task.layout, masks), 3))
    assert seen == [39.2, 42.24, 45.128, 47.872, 50.0, 50.0]


@pytest.mark.parametrize("right", [True, False])
def test_subfedavg_prunes_what_stays_accurate(right: bool) -> None:
    task, params, masks = hundred(0)
    other = {"weight": ~masks["weight"]}
    found = SubFedAvg().next_masks(judged(task, right=right), params, masks, other)
    assert total(found) == (160 if right else 200)
    assert (found is masks) == (not right)
    assert total(SubFedAvg(accurate=1.0).next_masks(judged(task), params, masks, other)) == 200


def test_subfedavg_waits_until_candidates_differ_and_stops_when_they_agree() -> None:
    task, params, masks = hundred(0)
    same = sparsity.above_percentile(params, masks, 0.2)
    assert SubFedAvg().next_masks(judged(task), params, masks, same) is masks
    assert subfedavg.mean_difference(same, same) == 0
    one = {"weight": same["weight"].clone()}
    one["weight"][1, 99] = False
    assert subfedavg.mean_difference(one, same) == 1 / 200


def test_subfedavg_counts_biases_among_what_is_left() -> None:
    task = line(3)
    assert subfedavg.pruned(task.layout, {"weight": bits(1, 0, 0)[None]}) == 2 / 4


def test_subfedavg_refuses_a_single_epoch() -> None:
    method = replace(SubFedAvg(), training=replace(SubFedAvg().training, epochs=1))
    with pytest.raises(ValueError, match="`epochs=2` or more"):
        method.init(server_ctx(linear()))


def test_personal_models_of_subfedavg_are_as_clients_left_them() -> None:
    method = eager("subfedavg")
    found = bench(method, 2, norm=True)
    *_, last = found.history()
    result, exchange = last.results[0], last.exchanges[0]
    model = method.model(found.server(2), last.merged, result.local)
    assert zero_outside(model, result.local.masks)
    sent = {**exchange.up.model.dense, **exchange.up.model.buffers}
    assert all(torch.equal(model[name], tensor) for name, tensor in sent.items())
    variant = eager("subfedavg-variants", personal_model="masked")
    masked = variant.model(found.server(2), last.merged, result.local)
    assert equal(masked, sparsity.masked(last.merged.params, result.local.masks))


# LotteryFL ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overshoot", "densities"),
    [(True, [0.8, 0.64, 0.512, 0.4096, 0.4096]), (False, [0.8, 0.64, 0.512, 0.5, 0.5])],
)
def test_densities_of_tickets(overshoot: bool, densities: list[float]) -> None:
    size = 20_000
    task = Task.of(nn.Linear(size, 2, bias=False), torch.zeros(2, size), start="seed")
    weights = {"weight": torch.arange(1.0, 2 * size + 1).reshape(2, size)}
    ctx = client_ctx(task, Examples(torch.ones(2, size), torch.ones(2).long()))
    method = LotteryFLVariants(overshoot=True) if overshoot else LotteryFL()
    masks: Masks = {"weight": torch.ones(2, size) > 0}
    seen = []
    for _ in densities:
        down = Down(sparse_model.send(ctx, weights, masks), True, None)
        masks = method.begin(ctx, down, Local(masks)).work.masks
        seen.append(total(masks) / (2 * size))
    assert seen == pytest.approx(densities, abs=1e-4)


def test_a_client_that_prunes_rewinds_to_the_first_weights() -> None:
    method = eager("lotteryfl", epochs=1.0)
    found = bench(method, 1, norm=True)
    state, client = found.init(), found.federation.pool[0]
    trained = {name: tensor + 1 for name, tensor in state.params.items()}
    down = method.down(found.server(1), replace(state, params=trained), client)
    work = method.begin(found.client(1, client), down, None).work
    assert inside(work.masks, work.start) and total(work.masks) < total(work.start)
    layout = found.task.layout
    start = sparsity.masked(state.params, work.masks)
    assert all(torch.equal(work.params[name], start[name]) for name in layout.parameters)
    # Running statistics are those that came.
    assert all(torch.equal(work.params[name], trained[name]) for name in layout.buffers)


def test_a_client_that_does_badly_goes_on_from_what_it_was_sent() -> None:
    method = toy("lotteryfl", accurate=1.0)
    found = bench(method, 1)
    state, client = found.init(), found.federation.pool[0]
    trained = {name: tensor + 1 for name, tensor in state.params.items()}
    down = method.down(found.server(1), replace(state, params=trained), client)
    work = method.begin(found.client(1, client), down, None).work
    assert equal(work.params, trained)
    assert method.finish(found.client(1, client), work).up.mask is None


# FedSpa -------------------------------------------------------------------------------------------


def test_the_search_rate_falls_by_a_cosine() -> None:
    found = [FedSpa().rate(time, 500) for time in (0, 125, 250, 375, 500)]
    assert found == pytest.approx([0.5, 0.42677670, 0.25, 0.07322330, 0], abs=1e-8)


def test_half_of_a_mask_moves_to_where_gradients_are_largest() -> None:
    params = {"w": torch.tensor([0.6, -0.5, 0.4, 0.3, 0, 0])}
    slopes = {"w": torch.tensor([9.0, 1, 5, 2, 4, 3])}
    masks = {"w": bits(1, 1, 1, 1, 0, 0)}
    change = sparsity.readjust(params, masks, {"w": 2}, {"w": 4}, slopes)
    assert change.kept["w"].int().tolist() == [1, 1, 0, 0, 0, 0]
    assert change.masks["w"].int().tolist() == [1, 1, 1, 0, 1, 0]


def test_masks_of_fedspa_move_less_and_less_and_keep_their_size() -> None:
    rounds = played(toy("fedspa", density=0.5), 6)
    size = sparsity.count(toy("fedspa", density=0.5).initial(bench(toy("fedspa")).server(1)))
    for round in rounds:
        assert all(sparsity.count(result.local.masks) == size for result in round.results)
        assert all(sparsity.count(result.masks) == size for result in round.results)
    moved = [np.mean([r.metrics["moved"] for r in round.results]) for round in rounds]
    assert moved[0] > moved[3] > moved[5] > 0


def test_what_is_sent_is_the_change_on_the_mask_that_was_trained() -> None:
    method = toy("fedspa")
    found = bench(method, 1)
    state, client = found.init(), found.federation.pool[1]
    down = method.down(found.server(1), state, client)
    ctx = found.client(1, client)
    job = method.begin(ctx, down, None)
    up = method.finish(ctx, job.work).up
    assert all(not values.any() for values in up.model.values.values.values())
    assert all(not tensor.any() for tensor in up.model.dense.values())
    (round,) = played(method, 1)
    for name, tensor in round.merged.params.items():
        first = method.initial(found.server(1)).get(name)
        if first is not None:
            assert torch.equal(tensor[~first], state.params[name][~first])
            assert not torch.equal(tensor, state.params[name])


@pytest.mark.parametrize("search", [True, False])
def test_everybody_may_begin_with_another_mask_which_is_told(search: bool) -> None:
    method = toy("fedspa-variants", own_start=True, search=search)
    found = bench(method, 3)
    seen: dict[int, Masks] = {}
    for round in found.history():
        for exchange, result in zip(round.exchanges, round.results, strict=True):
            id, down = exchange.client.id, exchange.down
            assert (down.mask is None) == (id in seen)
            if id not in seen:
                assert equal(result.masks, method.pure.initial(found.server(1), id))
            seen[id] = result.local.masks
            assert (exchange.up.mask is None) == (not search)
    first, second = list(seen.values())[:2]
    assert not equal(first, second)


def test_a_common_mask_that_stays_is_that_of_the_tested_model() -> None:
    method = toy("fedspa-static")
    *_, last = played(method, 3)
    ctx = bench(method).server(3)
    model = method.model(ctx, last.merged, None)
    assert zero_outside(model, method.initial(ctx))
    assert equal(model, sparsity.masked(last.merged.params, method.initial(ctx)))
    assert all(exchange.up.mask is None for exchange in last.exchanges)
    newcomer = toy("fedspa").model(ctx, last.merged, None)
    assert zero_outside(newcomer, toy("fedspa").initial(ctx)), "the density holds for all clients"


# what papers count --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", THREE)
def test_papers_count_values_and_a_bit_for_each_weight_of_a_new_mask(name: str) -> None:
    method = eager(name)
    (round,) = played(method, 1)
    layout: Layout = bench(method).task.layout
    rest = layout.total("count", layout.dense)
    for exchange, result in zip(round.exchanges, round.results, strict=True):
        down: Down = exchange.down
        kept = sum(values.numel() for values in down.model.values.values.values())
        assert paper_bits(down, method.accounting) == 32 * (kept + rest)
        up: Up = exchange.up
        kept = sum(values.numel() for values in up.model.values.values.values())
        told = 324 if up.mask else 0
        assert paper_bits(up, method.accounting) == 32 * (kept + rest) + told
        assert result.local is not None


def test_a_client_without_validation_data_decides_by_training_data() -> None:
    task = line(2, 2)
    good = Examples(torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([0, 1]))
    none = Examples(good.x[:0], good.y[:0])
    bad = Examples(good.x, 1 - good.y)
    params = {"weight": torch.eye(2), "bias": torch.zeros(2)}
    ctx = client_ctx(task, good)
    assert personal_masks.accuracy(ctx, params) == 1
    assert personal_masks.accuracy(replace(ctx, data=Data(good, bad, none)), params) == 0
    tested = replace(ctx, data=Data(bad, none, good))
    assert personal_masks.accuracy(deciding_on(tested, "test"), params) == 1
    assert personal_masks.accuracy(deciding_on(tested, "train"), params) == 0
