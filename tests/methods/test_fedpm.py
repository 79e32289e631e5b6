"""FedPM: random weights, probabilities to keep them, masks of one bit each, and their costs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from flash_cases import bench, equal, heard, net, played, rows
from torch import Tensor, nn

from gossamer import Client, Ctx, Examples, Exchange, Key, Masks, Options, Task, Training, run
from gossamer.accounting import paper_bits
from gossamer.accounting.dry_run import price
from gossamer.engine.client import batches
from gossamer.methods.as_published.fedpm import FedPMVariants
from gossamer.methods.fedpm import Down, FedPM, Server, Up, draw, fan_ins
from gossamer.models import build
from gossamer.wire import WireError, encode
from helpers import Toy, batch_of, client_ctx, conv, mlp, server_ctx
from paper_models import GREY

QUICK = Training(epochs=1, batch=8, lr=0.1)
SENT = [[1, 0, 1, 1], [1, 0, 0, 1], [1, 0, 1, 0]]
"""Masks of three clients."""
THETA = [0.99, 0.01, 0.66333333, 0.66333333]
LENET = 430_500


def small(**changes: Any) -> FedPM:
    return replace(FedPM(clients=4, training=QUICK), **changes)


def variants(pure: FedPM | None = None, **changes: Any) -> FedPMVariants:
    return FedPMVariants(pure or small(), **changes)


def upload_bits(size: int, ones: int) -> float:
    """The paper's cost of a mask: its entropy, and the number of ones."""
    share = ones / size
    entropy = -sum(part * math.log2(part) for part in (share, 1 - share) if part)
    return size * entropy + math.log2(size)


@cache
def four() -> Task:
    """Four weights, and a loss whose gradient by them is the input."""
    return Task.of(
        nn.Linear(4, 1, bias=False), torch.zeros(2, 4), criterion=lambda o, y: o.sum(), start="seed"
    )


def mask_of(values: list[int]) -> Masks:
    return {"weight": torch.tensor([values]) > 0}


def after(method: FedPM, state: Server, *sent: list[int]) -> Server:
    ctx = server_ctx(four())
    down = method.down(ctx, state, Client(0, 20))
    masks = [Exchange(Client(id, 20), down, Up(mask_of(each), {})) for id, each in enumerate(sent)]
    return method.merge(ctx, state, masks)


def begun(method: FedPM | FedPMVariants, theta: list[float], local: Any = None) -> tuple[Ctx, Any]:
    x = torch.tensor([[2.0, 2, 2, 2]])
    ctx = client_ctx(four(), Examples(x, torch.zeros(1, dtype=torch.int64)))
    return ctx, method.begin(ctx, Down({"weight": torch.tensor([theta])}, {}), local).work


# the server ---------------------------------------------------------------------------------------


def test_the_share_of_masks_that_keep_a_weight_is_its_probability() -> None:
    method = FedPM()
    merged = after(method, method.init(server_ctx(four())), *SENT)
    assert merged.theta["weight"][0].tolist() == pytest.approx(THETA, abs=5e-8)
    _, work = begun(method, merged.theta["weight"][0].tolist())
    logits = [4.59511985, -4.59511985, 0.67818431, 0.67818431]
    assert work.scores["weight"][0].tolist() == pytest.approx(logits, abs=1e-5)


def test_probabilities_stay_as_far_from_certainty_as_asked_for() -> None:
    method = FedPM(clamp=0.2)
    sent = [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]]
    found = after(method, method.init(server_ctx(four())), *sent).theta["weight"][0]
    assert found.tolist() == pytest.approx([0.2, 0.35, 0.8, 0.8])


@pytest.mark.parametrize(
    ("every", "shares", "masks"),
    [
        (1, [1, 0, 1, 1], [1, 1, 1, 1]),
        (2, [1, 1 / 2, 1, 1], [1, 2, 1, 2]),
        (3, [1, 1 / 2, 2 / 3, 1], [1, 2, 3, 1]),
    ],
)
def test_the_posterior_lives_for_some_rounds(
    every: int, shares: list[float], masks: list[int]
) -> None:
    """One mask a round, and a weight that all but the second mask keep."""
    method = FedPM(prior_reset_every=every)
    states = [method.init(server_ctx(four()))]
    for bit in (1, 0, 1, 1):
        states.append(after(method, states[-1], [bit, 0, 0, 0]))
    found = [float(state.theta["weight"][0, 0]) for state in states[1:]]
    assert found == pytest.approx([0.01 + 0.98 * share for share in shares])
    assert [state.masks for state in states[1:]] == masks
    assert bool(states[-1].ones) == (every > 1)  # a posterior of one round need not be kept


def test_a_round_without_replies_leaves_the_posterior_as_it_is() -> None:
    method = FedPM(prior_reset_every=2)
    state = after(method, method.init(server_ctx(four())), [1, 1, 0, 0])
    assert method.merge(server_ctx(four()), state, []) is state


def test_a_mask_of_another_shape_costs_its_client_the_round() -> None:
    method = FedPM()
    state, ctx = method.init(server_ctx(four())), server_ctx(four())
    down = method.down(ctx, state, Client(0, 20))
    short = Exchange(Client(0, 20), down, Up({"weight": torch.ones(1, 1) > 0}, {}))
    with pytest.raises(WireError, match=r"shape \(1, 1\)"):
        method.merge(ctx, state, [short])


# weights ------------------------------------------------------------------------------------------


def test_weights_are_a_sign_by_the_root_of_inputs_and_biases_go_with_them() -> None:
    method, task = FedPM(), conv()
    counts = fan_ins(task.layout)
    assert [counts[f"{layer}.weight"] for layer in (0, 2, 4)] == [27, 36, 96]
    assert [counts[f"{layer}.bias"] for layer in (0, 2, 4)] == [27, 36, 96]
    ctx = server_ctx(task)
    state = method.init(ctx)
    found = method.model(ctx, state, None)
    for name, count in counts.items():
        scaled = found[name] * math.sqrt(count) / math.e
        torch.testing.assert_close(scaled, scaled.sign(), atol=1e-6, rtol=0)
    signs = found["4.weight"].sign().flatten().tolist()
    assert [signs.count(sign) / len(signs) for sign in (-1, 0, 1)] == pytest.approx(
        [0.25, 0.5, 0.25], abs=0.1
    )
    assert FedPM(gain=1.0).model(ctx, state, None)["4.weight"].abs().max() == pytest.approx(
        1 / math.sqrt(96)
    )


def test_gates_of_a_recurrent_layer_have_biases_too() -> None:
    task = Task.of(build("lstm", (4, 5), 3), torch.zeros(2, 4, 5), start="seed")
    found = fan_ins(task.layout)
    assert found["lstm.bias_ih_l0"] == 5 and found["lstm.bias_hh_l0"] == found["lstm.weight_hh_l0"]


def test_only_what_is_prunable_is_masked_and_the_rest_stays_as_it_begins() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    task = Task.of(module, torch.zeros(2, 5), prunable=["2.weight"], start="seed")
    method = FedPM()
    ctx = server_ctx(task)
    state = method.init(ctx)
    assert set(state.theta) == {"2.weight", "2.bias"}
    found, first = method.model(ctx, state, None), task.init(ctx.common.fold("init"))
    for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
        assert torch.equal(found[name], first[name])


def test_weights_never_change_and_everybody_draws_the_same() -> None:
    method = small()
    found = bench(method, norm=True)
    weights = method.begin(
        found.client(1, found.federation.pool[0]),
        method.down(found.server(1), found.init(), Client(0, 17)),
        None,
    ).work.model.params
    for round in played(method, 2, norm=True):
        model = method.model(found.server(round.number), round.merged, None)
        for name in fan_ins(found.task.layout):
            kept = model[name] != 0
            assert kept.any() and torch.equal(model[name][kept], weights[name][kept])
        assert torch.equal(model["1.weight"], torch.ones(4))  # of the norm


# scores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("official", "wanted"), [(False, 0.24445831), (True, 0.14042725)])
def test_the_gradient_goes_straight_through_the_draw(official: bool, wanted: float) -> None:
    """A weight of one half, a gradient of two, a score of .3."""
    weight, theta = torch.tensor(0.5), torch.sigmoid(torch.tensor(0.3, dtype=torch.float64))
    by_hand = 2.0 * weight * theta * (1 - theta) * (theta if official else 1)
    assert float(by_hand) == pytest.approx(wanted, abs=5e-9)
    # And in a step of a client, whatever its mask was: weights are plus or minus one half.
    method: FedPM | FedPMVariants = FedPM(gain=1.0, beta1=0.0)
    if official:
        method = FedPMVariants(method, official_ste=True)
    ctx, work = begun(method, [float(theta)] * 4)
    signs = work.model.params["weight"].sign()
    before = work.scores["weight"].clone()
    method.step(ctx, work, batch_of(ctx.own.train.x, ctx.own.train.y))
    torch.testing.assert_close(work.moments.first["weight"], -wanted * signs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(work.scores["weight"], before - 0.1 * signs, rtol=1e-4, atol=1e-5)


def test_every_batch_and_every_client_draws_a_mask_of_its_own() -> None:
    theta = {"a": torch.full((20_000,), 0.3), "b": torch.full((20_000,), 0.3)}
    one, two = draw(Key(1), theta), draw(Key(2), theta)
    assert equal(one, draw(Key(1), theta))
    for other in (two["a"], one["b"]):
        assert float((one["a"] & other).float().mean()) == pytest.approx(0.09, abs=0.01)
    assert float(one["a"].float().mean()) == pytest.approx(0.3, abs=0.015)
    (first,) = played(small(), 1)
    sent = [exchange.up.masks["2.weight"] for exchange in first.exchanges]
    assert all(not torch.equal(sent[0], each) for each in sent[1:])


def test_moments_begin_anew_in_each_round_or_are_kept() -> None:
    kept: dict[str, Any] = {}
    for name in ("fresh", "keep"):
        method = variants(client_moments=name)
        found = bench(method)
        ctx = found.client(1, found.federation.pool[0])
        down = method.down(found.server(1), found.init(), Client(0, 17))
        job = method.begin(ctx, down, None)
        for batch in batches(ctx, job):
            method.step(ctx, job.work, batch)
        kept[name] = local = method.finish(ctx, job.work).local
        again = method.begin(ctx, down, local).work.moments
        assert again.steps == (3 if name == "keep" else 0)
        assert any(each.any() for each in again.first.values()) == (name == "keep")
        if name == "keep":
            assert equal(again.first, job.work.moments.first)
            assert equal(again.second, job.work.moments.second)
    assert kept["fresh"] is None


def test_variants_with_their_defaults_give_the_bits_of_the_algorithm() -> None:
    mine, theirs = (played(each, 3, norm=True)[-1] for each in (small(), variants()))
    assert equal(mine.merged.theta, theirs.merged.theta)
    ctx = bench(small(), norm=True).server(3)
    for one, two in zip(mine.results, theirs.results, strict=True):
        models = (
            small().model(ctx, mine.merged, one.local),
            variants().model(ctx, theirs.merged, two.local),
        )
        assert equal(*models)


def test_scores_of_variants_are_clipped_together_too() -> None:
    method = FedPM(gain=1.0, beta1=0.0, training=replace(QUICK, clip=0.01))
    ctx, work = begun(FedPMVariants(method, official_ste=True), [0.5] * 4)
    FedPMVariants(method, official_ste=True).step(
        ctx, work, batch_of(ctx.own.train.x, ctx.own.train.y)
    )
    assert float(work.moments.first["weight"].norm()) == pytest.approx(0.01, rel=1e-3)


def test_it_learns() -> None:
    """Three classes, which the first draw tells apart in one case of three."""
    method = FedPM(clients=6, training=Training(epochs=3, batch=8, lr=0.3))
    options = Options(workers=1, eval_every=5, personal=False)
    found = run(variants(method, test_mask="threshold"), mlp(), Toy(), rounds=5, options=options)
    assert found.accuracy["global"] > 0.65


# the model tested ---------------------------------------------------------------------------------


def test_what_is_tested_is_one_draw_a_round_or_the_likely_weights() -> None:
    method = FedPM()
    ctx = server_ctx(conv())
    state = method.init(ctx)
    one, again = method.model(ctx, state, None), method.model(ctx, state, None)
    other = method.model(replace(ctx, round=2), state, None)
    assert equal(one, again) and not equal(one, other)
    likely = FedPMVariants(method, test_mask="threshold")
    assert equal(likely.model(ctx, state, None), likely.model(replace(ctx, round=2), state, None))
    shown = method.measures(ctx, state)
    for name, theta in state.theta.items():
        assert torch.equal(likely.model(ctx, state, None)[name] != 0, theta > 0.5)
        assert torch.equal(shown.masks[name], theta > 0.5)
    assert shown.metrics["theta"] == pytest.approx(0.5, abs=0.02)
    # Scores of a Gaussian: within 2.197 of zero.
    assert shown.metrics["undecided"] == pytest.approx(
        math.erf(math.log(9) / math.sqrt(2)), abs=0.02
    )


@pytest.mark.parametrize("bn", ["local", "running", "static"])
def test_running_statistics_are_the_clients_own_or_averaged_or_nobodys(bn: Any) -> None:
    method = small(bn=bn)
    names = ("1.running_mean", "1.running_var")
    (round,) = played(method, 1, norm=True)
    ctx = bench(method, norm=True).server(1)
    for exchange, result in zip(round.exchanges, round.results, strict=True):
        assert tuple(exchange.up.buffers) == (names if bn == "running" else ())
        assert (result.local is None) == (bn != "local")
        if bn == "local":
            mine = method.model(ctx, round.merged, result.local)
            assert all(torch.equal(mine[name], result.local.buffers[name]) for name in names)
            job = method.begin(
                bench(method, norm=True).client(2, exchange.client), exchange.down, result.local
            )
            assert equal({n: job.work.model.params[n] for n in names}, result.local.buffers)
    found = method.model(ctx, round.merged, None)
    averaged = (
        sum(each.up.buffers[names[0]] for each in round.exchanges) / 4
        if bn == "running"
        else torch.zeros(4)
    )
    torch.testing.assert_close(found[names[0]], averaged)


# what it costs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "bits"), [(0.5, 430_518.7), (0.3, 379_414.4)])
def test_a_mask_is_counted_by_its_entropy(share: float, bits: float) -> None:
    assert upload_bits(LENET, round(share * LENET)) == pytest.approx(bits, abs=0.05)
    assert upload_bits(LENET, 0) == upload_bits(LENET, LENET) == pytest.approx(math.log2(LENET))


@pytest.mark.parametrize(("share", "most"), [(0.5, 1.001), (0.3, 1.015), (0.05, 1.015)])
def test_a_mask_takes_hardly_more_than_that_on_the_wire(share: float, most: float) -> None:
    chosen = torch.rand(LENET, generator=Key(1).generator()) < share
    shapes = ((20, 1, 5, 5), (50, 20, 5, 5), (500, 800), (10, 500))
    parts = chosen.split([math.prod(shape) for shape in shapes])
    masks = {str(n): part.reshape(shapes[n]) for n, part in enumerate(parts)}
    wanted = upload_bits(LENET, int(chosen.sum()))
    assert 1 <= 8 * len(encode(Up(masks, {}))) / wanted < most
    assert paper_bits(Up(masks, {}), FedPM().accounting) == math.ceil(wanted)


def test_lenet_costs_what_the_formula_says() -> None:
    """Probabilities down alone are 68.88 Gbit, more than the 66.554 that SpaFL prints for all."""
    task = Task.of(build("lenet5_caffe", GREY, 10), torch.zeros(2, *GREY), start="seed")
    where = {"classes": 10, "pool": 100, "examples": 600}
    found = price(FedPM(), task, rounds=1, options=Options(workers=1, eval_every=0), **where)
    assert found.total("down").paper * 500 / 1e9 == pytest.approx(68.88, rel=1e-12)
    assert found.total("up").paper * 500 / 1e9 == pytest.approx(5000 * LENET / 1e9, rel=1e-3)
    assert found.total("up").sent / found.total("up").paper == pytest.approx(1, abs=1e-3)
    assert 5000 * (32 * 807_366 + upload_bits(807_366, 403_683)) / 1e9 == pytest.approx(
        133.215, abs=5e-4
    )


def test_the_ledger_has_a_number_down_and_a_bit_up_for_every_weight() -> None:
    layout = net(norm=True).layout
    count = sum(layout[name].count for name in fan_ins(layout))
    assert count == 324 + 4 + 6 + 3
    for event in heard(small(), 2, norm=True).finished:
        down, up = rows(event, "down"), rows(event, "up")
        assert set(down) == {"header", "theta"} and down["theta"].paper == 32 * count
        assert set(up) == {"header", "masks"} and 0.8 * count < up["masks"].sent < count + 40
        bits = math.ceil(upload_bits(count, round(event.metrics["kept"] * count)))
        assert event.metrics["bits_per_weight"] == pytest.approx(bits / count)
        assert up["masks"].paper == bits


def test_gradients_of_all_scores_are_counted() -> None:
    (first,) = played(small(), 1)
    result = first.results[0]
    assert equal(result.masks, first.exchanges[0].up.masks)
    assert set(result.trained.values()) == {1.0}


# settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["momentum", "weight_decay"])
def test_what_adam_does_not_have_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match="`momentum=` and `weight_decay=`"):
        small(training=replace(QUICK, **{setting: 0.5})).init(server_ctx(four()))


def test_a_model_without_layers_to_mask_is_refused() -> None:
    task = Task.of(nn.Linear(4, 1), torch.zeros(2, 4), prunable=lambda leaf: False, start="seed")
    with pytest.raises(ValueError, match="`prunable=`"):
        FedPM().init(server_ctx(task))


def test_gradients_are_clipped_together() -> None:
    found: list[Tensor] = []
    for clip in (0.0, 0.01):
        method = FedPM(gain=1.0, beta1=0.0, training=replace(QUICK, clip=clip))
        ctx, work = begun(method, [0.5] * 4)
        method.step(ctx, work, batch_of(ctx.own.train.x, ctx.own.train.y))
        found.append(work.moments.first["weight"].norm())
    assert float(found[0]) == pytest.approx(0.5) and float(found[1]) == pytest.approx(
        0.01, rel=1e-3
    )
