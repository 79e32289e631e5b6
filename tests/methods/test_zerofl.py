"""ZeroFL: what clients send of a model that they train with few weights, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from flash_cases import LAYERS, bench, equal, heard, net, played, rows, total
from torch import nn

from gossamer import (
    Client,
    Ctx,
    Examples,
    Exchange,
    FedAvg,
    Key,
    Options,
    Params,
    Task,
    Training,
    run,
    sparsity,
)
from gossamer.accounting import FLOPS, Effort, densities, paper_bits
from gossamer.arithmetic.model import Model
from gossamer.engine.client import batches
from gossamer.methods.parts.dense_model import Down, Work
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.methods.zerofl import Server, Up, ZeroFL
from gossamer.models import build
from gossamer.sparsity import swat
from gossamer.wire import Packed, WireError, unpack
from helpers import Toy, client_ctx, mlp, server_ctx
from paper_models import flash

QUICK = Training(epochs=1, batch=8, lr=0.05, momentum=0.9)
BEFORE, AFTER = [0.5, -0.1, 0.05, 0.9], [0.6, -0.3, 0.5, 0.9]
DIFFS = ("diff-of-top-weights", "top-diffs")
"""Uploads of changes."""


def small(**changes: Any) -> ZeroFL:
    return replace(ZeroFL(clients=4, training=QUICK, density=0.2, mask_ratio=0.1), **changes)


@cache
def neuron() -> Task:
    return Task.of(nn.Linear(4, 1, bias=False), torch.zeros(2, 4), start="seed")


def sent(method: ZeroFL) -> Up:
    """What a client sends whose four weights went from one value to the other."""
    ctx = server_ctx(neuron())
    anchor = {"weight": torch.tensor([BEFORE])} if method.upload in DIFFS else {}
    model = Model(ctx.task, {"weight": torch.tensor([AFTER])})
    return method.finish(ctx, Work(model, 0.1, anchor)).up


def model_of(values: list[float]) -> Server:
    return Server({"weight": torch.tensor([values])})


def trained(method: ZeroFL, ctx: Ctx, down: Down) -> Params:
    job = method.begin(ctx, down, None)
    work = job.work
    for batch in batches(ctx, job):
        work = method.step(ctx, work, batch)
    return {name: tensor.clone() for name, tensor in work.params.items()}


# what goes up -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("upload", "wanted", "merged"),
    [
        ("top-weights", [0.6, 0, 0, 0.9], [0.6, 0, 0, 0.9]),
        ("diff-of-top-weights", [0.1, 0, 0, 0], [0.6, -0.1, 0.05, 0.9]),
        ("top-diffs", [0, -0.2, 0.45, 0], [0.5, -0.3, 0.5, 0.9]),
    ],
)
def test_the_three_uploads_of_a_neuron(upload: Any, wanted: Params, merged: list[float]) -> None:
    method = ZeroFL(upload=upload, density=0.25, mask_ratio=0.25)
    up = sent(method)
    assert total(up.mask) == 2
    assert unpack(up.model.values, up.mask)["weight"][0].tolist() == pytest.approx(wanted)
    state, ctx = model_of(BEFORE), server_ctx(neuron())
    exchange = Exchange(Client(0, 20), method.down(ctx, state, Client(0, 20)), up)
    found = method.merge(ctx, state, [exchange]).params["weight"][0]
    assert found.tolist() == pytest.approx(merged)


@pytest.mark.parametrize("upload", ["top-weights", *DIFFS])
def test_clients_count_by_examples_and_with_zero_where_they_sent_nothing(upload: Any) -> None:
    method = ZeroFL(upload=upload)
    state, ctx = model_of([1.0, 2, 3, 4]), server_ctx(neuron())
    down = method.down(ctx, state, Client(0, 10))
    exchanges = []
    for id, (examples, kept, value) in enumerate([(10, 0, 8.0), (30, 0, 4.0), (40, 2, 2.0)]):
        mask = {"weight": torch.arange(4).reshape(1, 4) == kept}
        packed = Packed({"weight": torch.tensor([value])}, {"weight": (1, 4)})
        exchanges.append(
            Exchange(Client(id, examples), down, Up(mask, SparseModel(packed, {}, {})))
        )
    mean = torch.tensor([200 / 80, 0, 80 / 80, 0])
    wanted = mean if upload == "top-weights" else mean + torch.tensor([1.0, 2, 3, 4])
    found = method.merge(ctx, state, exchanges)
    torch.testing.assert_close(found.params["weight"][0], wanted)
    assert found.mean_jaccard == pytest.approx(2 / 3)  # one pair of three has all in common
    uniform = replace(method, weighting="uniform").merge(ctx, state, exchanges)
    assert uniform.params["weight"][0, 0] == pytest.approx(4 + float(upload in DIFFS))


def test_more_weights_than_a_client_may_send_cost_it_the_round() -> None:
    method = ZeroFL(density=0.25, mask_ratio=0.0)
    state, ctx = model_of(BEFORE), server_ctx(neuron())
    up = sent(replace(method, mask_ratio=0.25))
    down = method.down(ctx, state, Client(0, 20))
    with pytest.raises(WireError, match="2 weights, but 1 were allowed"):
        method.merge(ctx, state, [Exchange(Client(0, 20), down, up)])


@pytest.mark.parametrize(
    ("density", "ratio", "counts"),
    [(0.1, 0.0, (4, 22, 8)), (0.1, 0.2, (11, 65, 22)), (0.5, 0.6, (36, 216, 72))],
)
def test_each_layer_sends_its_part_rounded_up(
    density: float, ratio: float, counts: tuple[int, ...]
) -> None:
    method = small(density=density, mask_ratio=ratio)
    wanted = dict(zip(LAYERS, counts, strict=True))
    assert method.quotas(net().layout) == wanted
    (first,) = played(method, 1, norm=True)
    for exchange in first.exchanges:
        assert sparsity.count(exchange.up.mask) == wanted
        assert set(exchange.up.model.dense) == {"0.bias", "1.weight", "1.bias", "2.bias", "5.bias"}
        assert set(exchange.up.model.buffers) == {"1.running_mean", "1.running_var"}


# training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("upload", ["top-weights", "top-diffs"])
def test_with_all_weights_and_activations_it_is_fedavg(upload: Any) -> None:
    method = small(density=1.0, upload=upload)
    averaging = FedAvg(clients=4, training=QUICK)
    mine, theirs = (played(each, 2, norm=True)[-1].merged.params for each in (method, averaging))
    for name, tensor in theirs.items():
        torch.testing.assert_close(mine[name], tensor, rtol=1e-4, atol=1e-7)


def test_sending_all_is_training_with_few_weights_and_nothing_else() -> None:
    """With a mask ratio of all that is not computed with, the upload takes nothing away."""
    rounds = {
        upload: played(small(mask_ratio=0.8, upload=upload), 2)[-1].merged.params
        for upload in ("top-weights", *DIFFS)
    }
    for upload in DIFFS:
        for name, tensor in rounds["top-weights"].items():
            torch.testing.assert_close(rounds[upload][name], tensor, rtol=1e-4, atol=1e-6)


def test_weights_that_are_not_used_are_trained_too() -> None:
    method = small(mask_ratio=0.8, upload="diff-of-top-weights")
    (first,) = played(method, 1)
    for exchange, result in zip(first.exchanges, first.results, strict=True):
        change = unpack(exchange.up.model.values, exchange.up.mask)["2.weight"]
        unused = ~result.masks["2.weight"]
        # Those of filters that no example opens have no gradient.
        assert (change[unused] != 0).float().mean() > 0.3


def test_what_is_tested_has_the_largest_weights_and_computes_what_was_trained() -> None:
    method = small(density=0.1)
    for round in played(method, 2, norm=True):
        ctx = bench(method, norm=True).server(round.number)
        found = method.model(ctx, round.merged, None)
        assert sparsity.count(method.measures(ctx, round.merged).masks) == {
            "0.weight": 4,
            "2.weight": 22,
            "5.weight": 8,
        }
        for name in ctx.task.layout.prunable:
            kept = found[name] != 0
            assert torch.equal(found[name][kept], round.merged.params[name][kept])
            assert found[name][kept].abs().min() >= round.merged.params[name][~kept].abs().max()
        task = swat.sparse_task(ctx.task, 0.1)
        x = torch.randn(9, 1, 6, 6, generator=Key(1).generator())
        own = {**task.buffers(), **round.merged.params}
        torch.testing.assert_close(ctx.task.logits(found, x), task.logits(own, x))


@pytest.mark.parametrize("period", [1, 2, 100])
def test_cuts_are_found_anew_every_so_many_batches(period: int) -> None:
    method = small(period=period)
    found = bench(method)
    ctx = found.client(1, found.federation.pool[0])
    down = method.down(found.server(1), found.init(), Client(0, 17))
    job = method.begin(ctx, down, None)
    work, anew = job.work, []
    for batch in batches(ctx, replace(job, epochs=2.0)):
        work = method.step(ctx, work, batch)
        if work.params["2.swat_cuts"].tolist() != [9, 9]:
            anew.append(batch.step)
        work.params["2.swat_cuts"].fill_(9)  # more than any weight or input
    assert anew == list(range(0, 6, period))


def test_one_client_does_not_inherit_the_cuts_of_another() -> None:
    method = small(period=100)
    x = torch.randn(16, 4, generator=Key(1).generator())
    ctx = client_ctx(neuron(), Examples(x, torch.zeros(16, dtype=torch.int64)))
    down = Down(model_of(BEFORE).params)
    alone = trained(method, ctx, down)
    other = Down({"weight": 10 * down.params["weight"]})
    trained(method, ctx, other)
    assert equal(trained(method, ctx, down), alone)


def test_it_learns() -> None:
    """Three classes; with all weights and activations it comes to 0.94."""
    training = Training(epochs=3, batch=8, lr=0.3)
    method = ZeroFL(clients=6, training=training, density=0.3)
    options = Options(workers=1, eval_every=5, personal=False)
    found = run(method, mlp(), Toy(), rounds=5, options=options)
    assert found.accuracy["global"] > 0.7 and found.density == pytest.approx(0.3, abs=0.02)


# what it costs ------------------------------------------------------------------------------------


def test_the_ledger_has_a_dense_model_down_and_compressed_rows_up() -> None:
    method = small()
    layout = net(norm=True).layout
    kept = sum(method.quotas(layout).values())
    rest = layout.total("count", (*layout.dense, *layout.buffers))
    for event in heard(method, 2, norm=True).finished:
        assert rows(event, "down")["params"].paper == 32 * (324 + rest)
        up = rows(event, "up")
        assert up["mask"].paper == 32 * kept + 64 * 3 and up["model.values"].paper == 32 * kept
        assert up["mask"].sent < up["mask"].paper / 4
        assert up["model.dense"].paper + up["model.buffers"].paper == 32 * rest
        assert event.density == pytest.approx(0.2, abs=0.01)


def test_statistics_do_not_travel_if_they_are_found_before_a_test() -> None:
    for event in heard(small(bn="static"), 1, norm=True).finished:
        assert set(rows(event, "up")) == {"header", "mask", "model.values", "model.dense"}


def test_all_three_passes_cost_the_density() -> None:
    layout = net().layout
    masks = played(small(density=0.25), 1)[0].results[0].masks
    effort = Effort(layout, densities(masks), examples=10, steps=2, per_epoch=2)
    assert FLOPS["swat"](effort) == pytest.approx(3 * 0.25 * layout.macs * 10)


@pytest.mark.parametrize(("density", "savings"), [(0.1, 1.6652), (0.05, 1.9974)])
def test_resnet_saves_what_flash_says_of_zerofl(density: float, savings: float) -> None:
    """Printed 1.6 and 1.9: 64 bits for each weight that is sent, all convolutions sparse."""
    layout, method = flash(), ZeroFL(density=density, mask_ratio=0.2)
    shapes = {name: layout[name].shape for name in layout.prunable}
    kept = method.quotas(layout)
    mask = {n: torch.arange(layout[n].count).reshape(shapes[n]) < kept[n] for n in shapes}
    values = {name: torch.zeros(count) for name, count in kept.items()}
    dense = {name: torch.zeros(layout[name].shape) for name in layout.dense}
    bits = paper_bits(Up(mask, SparseModel(Packed(values, shapes), dense, {})), method.accounting)
    assert 32 * layout.count / bits == pytest.approx(savings, abs=5e-5)


@pytest.mark.parametrize(
    ("density", "ratio", "printed"),
    [
        *((0.1, 0.0, 10.1), (0.1, 0.1, 18.7), (0.1, 0.2, 27.3)),
        *((0.05, 0.0, 5.9), (0.05, 0.1, 14.4), (0.05, 0.2, 23.0)),
    ],
)
def test_sizes_that_the_paper_prints(density: float, ratio: float, printed: float) -> None:
    """They have 64 bits for dense tensors and statistics too, in units of 1,024,000 bytes."""
    layout = flash().choose(("stages.*.conv?.weight",))
    unit = 8 * 1_024_000
    assert layout.total("count", layout.prunable) == 10_985_472
    assert 32 * layout.total("count") / unit == pytest.approx(43.7, abs=0.05)
    kept = sum(ZeroFL(density=density, mask_ratio=ratio).quotas(layout).values())
    rest = layout.total("count", (*layout.dense, *layout.buffers))
    assert 64 * (kept + rest) / unit == pytest.approx(printed, abs=0.07)
    ours = 64 * kept + 32 * layout.total("count", layout.dense)
    assert ours / unit == pytest.approx(printed, rel=0.2)


# settings -----------------------------------------------------------------------------------------


def test_the_rate_falls_from_a_tenth_to_a_hundredth() -> None:
    rates = [ZeroFL().training.rate(server_ctx(neuron(), number, 700)) for number in (1, 351, 701)]
    assert rates == pytest.approx([0.1, 0.1**1.5, 0.01])


def test_a_recurrent_layer_is_refused_before_the_first_round() -> None:
    task = Task.of(build("lstm", (4, 4), 3), torch.zeros(2, 4, 4), start="seed")
    with pytest.raises(ValueError, match=r"lstm\.weight.* `prunable=`"):
        ZeroFL().init(server_ctx(task))


def test_an_empty_round_leaves_the_server_as_it_is() -> None:
    state, ctx = model_of(BEFORE), server_ctx(neuron())
    assert ZeroFL().merge(ctx, state, []) is state
