"""FLASC and FFA-LoRA by hand: which weights travel, what is averaged, and what never leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer import FLASC, Client, Examples, FFALoRA, Key, Task, Training, lora
from gossamer.core import Exchange
from gossamer.engine import Options, run
from gossamer.methods import METHODS, flasc
from gossamer.methods.flasc import Server
from gossamer.methods.parts.dense_model import Down, Up
from gossamer.methods.parts.server_optimiser import ServerOptimiser
from gossamer.trust.declared import declared
from gossamer.wire import WireError, pack, unpack
from helpers import CLASSES, INPUTS, Toy, batch_of, client_ctx, server_ctx

PLAIN = ServerOptimiser("sgd", server_lr=1.0, beta1=0.0)
HALF = FLASC(clients=2, down_density=0.5, up_density=0.5, adaptive=PLAIN)


def square() -> Task:
    return Task.of(nn.Linear(2, 2, bias=False), torch.zeros(2, 2))


def matrix(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def state_of(weight: Tensor, method: FLASC = HALF) -> Server:
    params = {"weight": weight}
    mask = flasc.largest(params, method.down_density)
    return Server(params, mask, method.adaptive.start(params))


def test_flasc_sends_the_largest_weights_of_the_model() -> None:
    ctx, state = server_ctx(square()), state_of(matrix((4, -1), (2, 3)))
    down = HALF.down(ctx, state, Client(0, 1))
    assert down.mask["weight"].tolist() == [[True, False], [False, True]]
    assert down.values.values["weight"].tolist() == [4, 3]
    assert HALF.model(ctx, state, None)["weight"].tolist() == [[4, 0], [0, 3]]
    whole = replace(HALF, tested="whole")
    assert whole.model(ctx, state, None)["weight"].tolist() == [[4, -1], [2, 3]]


def test_flasc_clients_train_what_arrived_as_zero_and_send_their_largest_changes() -> None:
    task = square()
    ctx = client_ctx(task, Examples(torch.eye(2), torch.tensor([0, 1])))
    down = HALF.down(server_ctx(task), state_of(matrix((4, -1), (2, 3))), Client(0, 2))
    work = HALF.begin(ctx, down, None).work
    assert work.params["weight"].tolist() == [[4, 0], [0, 3]]
    work.params["weight"].copy_(matrix((4.5, 0.25), (-1, 3)))  # changes .5 .25 -1 0
    up = HALF.finish(ctx, work).up
    assert up.mask["weight"].tolist() == [[True, False], [True, False]]
    assert up.values.values["weight"].tolist() == [0.5, -1]


def test_flasc_averages_changes_that_were_not_sent_as_zeros() -> None:
    task = square()
    ctx, state = server_ctx(task), state_of(matrix((4, -1), (2, 3)))
    exchanges = []
    for id, change in enumerate((matrix((0.5, 0.25), (-1, 0)), matrix((0, 0.75), (0.5, 0)))):
        mask = flasc.largest({"weight": change}, 0.5)
        up = flasc.Up(mask, pack({"weight": change}, mask), {})
        client = Client(id, 10 + 80 * id)  # sizes do not count
        exchanges.append(Exchange(client, HALF.down(ctx, state, client), up))
    merged = HALF.merge(ctx, state, exchanges)
    # means (.5 + 0) / 2, .75 / 2, (-1 + .5) / 2 and 0, added to all weights, sent or not
    assert torch.equal(merged.params["weight"], matrix((4.25, -0.625), (1.75, 3.0)))
    assert merged.mask["weight"].tolist() == [[True, False], [False, True]]
    by_size = replace(HALF, weighting="samples").merge(ctx, state, exchanges)
    assert by_size.params["weight"][0, 0] == pytest.approx(4 + 0.1 * 0.5)


def test_flasc_takes_a_step_of_adam_at_the_server() -> None:
    method = FLASC(clients=1, down_density=1.0, up_density=1.0)
    task = square()
    ctx, state = server_ctx(task), state_of(matrix((4, -1), (2, 3)), method)
    change = {"weight": matrix((0.5, 0), (-0.25, 0))}
    mask = flasc.largest(change, 1.0)
    up = flasc.Up(mask, pack(change, mask), {})
    merged = method.merge(
        ctx, state, [Exchange(Client(0, 1), method.down(ctx, state, Client(0, 1)), up)]
    )
    # the first step of Adam is the learning rate, by the sign of the change
    wanted = matrix((4.001, -1), (1.999, 3))
    assert torch.allclose(merged.params["weight"], wanted, atol=1e-6)


def test_flasc_compares_weights_across_layers_and_counts_exactly() -> None:
    params = {"a": torch.full((4,), 0.1), "b": torch.full((3, 2), 5.0), "c": torch.ones(2)}
    assert flasc.wanted(params, 0.5) == 6 and flasc.wanted(params, 1e-9) == 1
    masks = flasc.largest(params, 0.6)  # 7 of 12: all of b, and the first of c
    assert [int(mask.sum()) for mask in masks.values()] == [0, 6, 1] and masks["c"][0]
    assert all(mask.all() for mask in flasc.largest(params, 1.0).values())


def test_flasc_refuses_more_changes_than_it_asked_for() -> None:
    task = square()
    ctx, state = server_ctx(task), state_of(matrix((4, -1), (2, 3)))
    change = {"weight": matrix((1, 1), (1, 1))}
    mask = flasc.largest(change, 1.0)
    up = flasc.Up(mask, pack(change, mask), {})
    down = HALF.down(ctx, state, Client(0, 1))
    with pytest.raises(WireError, match="4 weights, but 2 were allowed"):
        HALF.merge(ctx, state, [Exchange(Client(0, 1), down, up)])


def test_flasc_sends_a_share_of_the_adapters_and_of_the_trained_head() -> None:
    body = nn.Sequential(nn.Linear(INPUTS, 40), nn.ReLU(), nn.Linear(40, CLASSES))
    task = Task.of(lora(body, 4, "0", train="2"), torch.zeros(2, INPUTS))
    sent = {}
    for density in (1.0, 0.25):
        method = FLASC(clients=3, down_density=density, up_density=density)
        options = Options(workers=1, eval_every=0)
        sent[density] = run(method, task, Toy(), rounds=2, options=options).cost.paper_up
    count = task.layout.count
    assert sent[1.0] >= 6 * 32 * count
    assert 6 * 32 * int(count / 4) <= sent[0.25] < 0.4 * sent[1.0]  # values, and where they are


def test_masks_that_clients_choose_are_no_method_for_differential_privacy() -> None:
    assert declared(METHODS["flasc"]).refused and not declared(METHODS["ffa_lora"]).refused


# FFA-LoRA ----------------------------------------------------------------------------------------


def adapted() -> Task:
    torch.manual_seed(1)
    return Task.of(lora(nn.Linear(2, 2), 1), torch.zeros(2, 2))


def test_ffa_lora_sends_b_alone_and_everybody_has_a() -> None:
    task, method = adapted(), FFALoRA(clients=2)
    ctx = server_ctx(task)
    state = method.init(ctx)
    assert list(state.params) == ["lora_B.weight"]
    whole = method.model(ctx, state, None)
    assert torch.equal(whole["lora_A.weight"], task.init(Key(0))["lora_A.weight"])


def test_ffa_lora_trains_b_and_leaves_a_as_it_was() -> None:
    task = adapted()
    method = FFALoRA(training=Training(lr=0.5, momentum=0.9, weight_decay=0.1))
    data = Examples(torch.eye(2), torch.tensor([0, 1]))
    ctx = client_ctx(task, data)
    before = task.init(Key(0))["lora_A.weight"]
    work = method.begin(ctx, Down({"lora_B.weight": torch.zeros(2, 1)}), None).work
    for _ in range(3):
        work = method.step(ctx, work, batch_of(data.x, data.y))
    result = method.finish(ctx, work)
    assert torch.equal(work.params["lora_A.weight"], before)
    assert list(result.up.params) == ["lora_B.weight"] and result.up.params["lora_B.weight"].any()
    assert not result.trained["lora_A.weight"].any()


def test_ffa_lora_takes_the_mean_of_products_by_the_mean_of_factors() -> None:
    task, method = adapted(), FFALoRA(weighting="samples")
    ctx = server_ctx(task)
    state = method.init(ctx)
    a = task.init(Key(0))["lora_A.weight"]
    replies = [matrix((1.0,), (2.0,)), matrix((5.0,), (-2.0,))]
    exchanges = [
        Exchange(
            Client(id, size), method.down(ctx, state, Client(id, size)), Up({"lora_B.weight": b})
        )
        for id, (b, size) in enumerate(zip(replies, (30, 10), strict=True))
    ]
    merged = method.merge(ctx, state, exchanges)
    wanted = 0.75 * (replies[0] @ a) + 0.25 * (replies[1] @ a)
    assert torch.allclose(merged.params["lora_B.weight"] @ a, wanted)
    assert merged.params["lora_B.weight"].tolist() == [[2.0], [1.0]]


def test_ffa_lora_costs_half_of_what_fedavg_does_with_equal_sides() -> None:
    task = Task.of(lora(nn.Linear(INPUTS, CLASSES), 2), torch.zeros(2, INPUTS))
    costs = {}
    for name in ("fedavg-lora", "ffa_lora"):
        method = gs.fields.replace(METHODS[name], {"clients": 3})
        summary = run(method, task, Toy(), rounds=1, options=Options(workers=1, eval_every=0))
        costs[name] = summary.cost.paper_up
    assert costs == {
        "fedavg-lora": 3 * 32 * 2 * (INPUTS + CLASSES),
        "ffa_lora": 3 * 32 * 2 * CLASSES,
    }


def test_what_is_sent_can_be_read_back() -> None:
    change = {"weight": matrix((0.5, 0.25), (-1, 0))}
    mask = flasc.largest(change, 0.5)
    assert unpack(pack(change, mask), mask)["weight"].tolist() == [[0.5, 0], [-1, 0]]
