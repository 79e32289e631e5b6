"""How sub-models are put together at the server, and whose model is whose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import gossamer as gs
from gossamer import (
    Client,
    Ctx,
    Exchange,
    FedDrop,
    FedOpt,
    Key,
    Options,
    Params,
    Task,
    Training,
    fields,
    sparsity,
)
from gossamer.conformance.promises import check
from gossamer.engine.client import train
from gossamer.methods import feddrop
from gossamer.methods.as_published.feddrop import Axes, FedDropVariants
from gossamer.methods.feddrop import Local
from gossamer.methods.parts.dense_model import Up
from gossamer.methods.parts.server_optimiser import ServerOptimiser
from gossamer.submodels.dropping import Dropping, cut
from gossamer.wire import WireError
from helpers import CLASSES, Toy, client_ctx, mlp, normed, same, server_ctx

HALF = Axes("units", Dropping(conv_rate=0.5, linear_rate=0.5))
NONE = Dropping(conv_rate=0.0, linear_rate=0.0, edge_rate=0.0)
PLAIN = ServerOptimiser("sgd", server_lr=1.0, beta1=0.0)
"""A server that takes the mean as it is."""


def rounds(method: Any, task: Task, count: int = 2) -> Any:
    """Three clients, round by round, without an engine."""
    state = method.init(server_ctx(task, 0))
    for number in range(1, count + 1):
        ctx, exchanges = server_ctx(task, number), []
        for id in range(3):
            client, own = Client(id, 20), client_ctx(task, Toy().make(Key(id), 20), number)
            down = method.down(ctx, state, client)
            exchanges.append(Exchange(client, down, train(method, own, down, None).result.up))
        state = method.merge(ctx, state, exchanges)
    return state


@pytest.mark.parametrize("divisor", ["clients", "holders"])
def test_nothing_dropped_is_fedopt_to_the_bit(divisor: Any) -> None:
    training = Training(batch=8, momentum=0.5)
    pure = FedDrop(dropping=NONE, training=training)
    ours = rounds(FedDropVariants(pure, divisor=divisor), normed())
    theirs = rounds(FedOpt(training=training), normed())
    assert same(ours.params, theirs.params)
    assert same(ours.moments.first, theirs.moments.first)
    assert same(ours.moments.second, theirs.moments.second)


def moved(ctx: Ctx, method: Any, by: tuple[float, ...]) -> tuple[Params, Params, list[Any]]:
    """The model before and after clients moved all that they had by a number each."""
    state = method.init(ctx)
    exchanges = []
    for id, shift in enumerate(by):
        client = Client(id, 10 * (id + 1))
        down = method.down(ctx, state, client)
        sent = {name: tensor + shift for name, tensor in down.params.items()}
        exchanges.append(Exchange(client, down, Up(sent)))
    return state.params, method.merge(ctx, state, exchanges).params, exchanges


@pytest.mark.parametrize(
    ("divisor", "weighting", "total"),
    [("clients", "uniform", 3), ("clients", "samples", 60), ("holders", "uniform", 0)],
)
def test_what_a_client_lacks_counts_as_unchanged_or_not_at_all(
    divisor: Any, weighting: Any, total: int
) -> None:
    ctx, by = server_ctx(normed()), (0.5, 1.0, 2.0)
    pure = FedDrop(dropping=HALF, weighting=weighting, adaptive=PLAIN)
    method = FedDropVariants(pure, divisor=divisor)
    before, after, exchanges = moved(ctx, method, by)
    held = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    shifts = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    for exchange, shift in zip(exchanges, by, strict=True):
        ones = {name: torch.ones_like(tensor) for name, tensor in exchange.down.params.items()}
        part = cut(HALF, ctx.task, exchange.down.seed)
        for name, mask in part.give(
            ones, {n: torch.zeros_like(t) for n, t in before.items()}
        ).items():
            weight = exchange.client.examples if weighting == "samples" else 1
            held[name] += weight * mask
            shifts[name] += weight * shift * mask
    assert 0 < int((held["0.weight"] == 0).sum()) < held["0.weight"].numel()
    for name, tensor in after.items():
        buffer = name in ctx.task.layout.buffers
        by_all = torch.full_like(tensor, total) if total and not buffer else held[name].clamp_min(1)
        torch.testing.assert_close(tensor, before[name] + shifts[name] / by_all)


def test_the_mean_over_holders_is_the_published_one() -> None:
    """Three clients at (1.2, -1), (.9, -.6), (1.2, -1.1) with z = 10, 11, 01."""
    replies = [
        ({"w": torch.tensor(value)}, {"w": torch.tensor(mask).bool()}, 1.0)
        for value, mask in (((1.2, -1.0), (1, 0)), ((0.9, -0.6), (1, 1)), ((1.2, -1.1), (0, 1)))
    ]
    assert sparsity.masked_mean(replies).params["w"].tolist() == pytest.approx([1.05, -0.85])


def test_a_weight_that_nobody_had_goes_on_by_momentum_alone() -> None:
    ctx = server_ctx(mlp())
    method = FedDropVariants(FedDrop(dropping=HALF, adaptive=PLAIN), sub_models="same")
    before, after, exchanges = moved(ctx, method, (1.0, 1.0))
    mask = cut(HALF, ctx.task, exchanges[0].down.seed).masks()["0.weight"]
    assert torch.equal(after["0.weight"][~mask], before["0.weight"][~mask])
    torch.testing.assert_close(after["0.weight"][mask], before["0.weight"][mask] + 1)


@pytest.mark.parametrize("divisor", ["clients", "holders"])
def test_what_was_rounded_on_the_way_down_is_no_change(divisor: Any) -> None:
    """Adam takes a whole step along any change, be it that of a last digit."""
    ctx, method = server_ctx(normed()), FedDropVariants(FedDrop(dropping=HALF), divisor=divisor)
    state, exchanges = method.init(ctx), []
    for id in range(3):
        down = method.down(ctx, state, Client(id, 9))
        rounded = {name: tensor.half().float() for name, tensor in down.params.items()}
        exchanges.append(Exchange(Client(id, 9), replace(down, params=rounded), Up(rounded)))
    assert not same(rounded, down.params)
    found = method.merge(ctx, state, exchanges).params
    assert all(torch.equal(found[n], state.params[n]) for n in ctx.task.layout.parameters)


def test_a_reply_of_other_shapes_is_refused() -> None:
    ctx, method = server_ctx(mlp()), FedDrop(dropping=HALF)
    state = method.init(ctx)
    down = method.down(ctx, state, Client(0, 20))
    lie = Up({**down.params, "0.bias": torch.ones(1)})
    with pytest.raises(WireError, match=r"0.bias came back as .* shape \(1,\)"):
        method.merge(ctx, state, [Exchange(Client(0, 20), down, lie)])


# whose model ------------------------------------------------------------------------------------


def test_a_clients_own_model_is_what_it_sent_in_the_model_it_was_cut_from() -> None:
    task, method = mlp(), FedDrop(clients=1, dropping=HALF)
    states, locals = [method.init(server_ctx(task, 0))], dict[int, Local]()
    for number, id in enumerate((0, 1, 0, 2), 1):
        ctx, client = server_ctx(task, number), Client(id, 20)
        down = method.down(ctx, states[-1], client)
        own = client_ctx(task, Toy().make(Key(id), 20), number)
        done = train(method, own, down, None).result
        assert done.local is not None
        locals[id] = done.local
        states.append(method.merge(ctx, states[-1], [Exchange(client, down, done.up)]))
    last = states[-1]
    assert last.seen == {0: 3, 1: 2, 2: 4} and list(last.past) == [2, 3, 4]
    for id, local in locals.items():
        before = states[last.seen[id] - 1].params
        part = cut(HALF, task, local.seed)
        wanted = part.give(local.params, before)
        assert same(method.model(server_ctx(task, 4), last, local), wanted)
        assert same(part.take(wanted), local.params)
    recent = FedDropVariants(method, personal_model="now")
    plain = feddrop.Server(last.params, last.moments, {}, {})
    found = recent.model(server_ctx(task, 4), plain, locals[1])
    assert same(found, cut(HALF, task, locals[1].seed).give(locals[1].params, last.params))


def last_local(method: Any) -> Local | None:
    task = mlp()
    ctx, own = server_ctx(task), client_ctx(task, Toy().make(Key(1), 20))
    down = method.down(ctx, method.init(ctx), Client(0, 20))
    found: Local | None = train(method, own, down, None).result.local
    return found


@pytest.mark.parametrize(("own", "kept"), [("now", True), ("global", False)])
def test_other_models_of_clients_leave_nothing_at_the_server(own: Any, kept: bool) -> None:
    method = FedDropVariants(FedDrop(dropping=HALF), personal_model=own)
    state = rounds(method, mlp())
    assert state.seen == state.past == {}
    assert (last_local(method) is not None) == kept


def test_a_method_that_really_drops_keeps_every_promise() -> None:
    dropping = Dropping(conv_rate=0.5, linear_rate=0.5, edge_rate=0.3)
    method = FedDropVariants(FedDrop(dropping=dropping), divisor="holders")
    found = list(check(method, rounds=2))
    assert [each for each in found if not each.ok] == []


def test_it_learns() -> None:
    method = FedDrop(
        clients=6,
        dropping=fields.replace(HALF, {"linear_rate": 0.25}),
        training=Training(epochs=5, batch=8, lr=0.3),
        adaptive=ServerOptimiser(server_lr=0.1),
    )
    options = Options(workers=1, eval_every=6)
    found = gs.run(method, mlp(), Toy(), rounds=6, options=options).accuracy
    assert found["global"] is not None and found["global"] > 1.8 / CLASSES
    assert found["personal_mean"] is not None and found["personal_mean"] > 1.5 / CLASSES
