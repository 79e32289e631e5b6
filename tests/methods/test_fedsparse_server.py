"""The server of FedSparse: its step against numbers worked out by hand, and what it prunes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from fedsparse_cases import (
    close,
    equal,
    groups_of,
    net,
    prune,
    pruned,
    sent,
    theta,
    toy,
    trained,
    whole_tensors,
    with_thresholds,
)
from torch import Tensor, nn
from torch.nn.functional import softplus

from gossamer import Client, Exchange, Key, Params, Task
from gossamer.methods.fedsparse import Down, Server, Up
from gossamer.methods.parts.gated_model import Frame
from gossamer.methods.parts.server_optimiser import ServerOptimiser
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.sparsity import hard_concrete
from gossamer.wire import dump, pack
from helpers import server_ctx

DOUBLE = torch.float64


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def line(weights: Sequence[Sequence[float]]) -> Task:
    """A linear layer in float64 without a bias, which starts with these weights."""
    rows = torch.tensor(weights, dtype=DOUBLE)
    layer = nn.Linear(rows.shape[1], rows.shape[0], bias=False, dtype=DOUBLE)
    return Task.of(layer, torch.zeros(2, rows.shape[1], dtype=DOUBLE), start="seed")


def state_of(method: Any, task: Task, weights: Tensor, thresholds: Tensor) -> Server:
    """All groups alive, with thresholds as they are after softplus."""
    state: Server = method.init(server_ctx(task, round=0))
    raw = torch.log(torch.expm1(thresholds)).flatten()
    return replace(state, params={"weight": weights}, thresholds=raw)


def answer(method: Any, task: Task, state: Server, opened: Tensor, values: Tensor) -> Any:
    """An exchange in which a client opened these groups, and has these weights."""
    down = sent(method, task, state)
    masks = groups_of(method, task).masks(opened.flatten(), {"weight": values})
    model = SparseModel(pack({"weight": values}, masks), {}, {})
    up = Up({"weight": opened.flatten()[state.alive]}, model)
    return Exchange(Client(0, 10), down, up)


# O2 -----------------------------------------------------------------------------------------------

WEIGHTS, THRESHOLDS = vector(0.5, -0.498, 0.5012)[None], vector(0.4995, 0.499, 0.5005)[None]
OPENED = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 1]]).bool()
SENT = torch.tensor([[0.51, -0.47, 0], [0.48, 0, 0], [0, -0.5, 0.52]], dtype=DOUBLE)


def three(**changes: Any) -> tuple[Any, Task, Server, list[Exchange[Down, Up]]]:
    """Single weights with gates, and three clients."""
    method = toy(**{"granularity": "weights", "gate_head": "gated", "theta0": 0.6, **changes})
    task = line(WEIGHTS.tolist())
    state = state_of(method, task, WEIGHTS, THRESHOLDS)
    exchanges = [
        replace(answer(method, task, state, z[None], w[None]), client=Client(id, 10 * (id + 1)))
        for id, (z, w) in enumerate(zip(OPENED, SENT, strict=True))
    ]
    return method, task, state, exchanges


def test_a_step_of_the_server() -> None:
    """O2: sums over clients, Adam on weights, Adamax on thresholds; then the third is pruned."""
    method, task, state, exchanges = three(reduction="sum")
    found = method.merge(server_ctx(task), state, exchanges)
    raw = found.thresholds
    assert raw.tolist() == pytest.approx([-0.4440233667, -0.4452955852, -0.4214818719], abs=2e-9)
    weights = vector(0.499000001, -0.4970000004, 0.5021999995)
    assert found.params["weight"][0, :2].tolist() == pytest.approx(weights[:2].tolist(), abs=2e-10)
    shares = torch.sigmoid(hard_concrete.logits(weights.abs(), raw, 1e-3))
    assert shares.tolist() == pytest.approx([0.968315802, 0.871770875, 0.095377932], abs=2e-6)
    assert found.alive.tolist() == [True, True, False]
    assert found.params["weight"][0, 2] == 0
    # Without pruning the third has its weight, too.
    method, task, state, exchanges = three(reduction="sum", prune_below=0.0)
    found = method.merge(server_ctx(task), state, exchanges)
    assert found.params["weight"][0].tolist() == pytest.approx(weights.tolist(), abs=2e-10)
    shares = theta(method, task, found)
    assert shares.tolist() == pytest.approx([0.968315802, 0.871770875, 0.095377932], abs=2e-6)


def test_weights_go_where_clients_with_open_gates_took_them() -> None:
    """O2, without an optimiser in between: the gradient itself."""
    method, task, state, exchanges = three(
        reduction="sum", optimizer="sgd", server_lr=1.0, beta1=0.0, prune_below=0.0
    )
    found = method.merge(server_ctx(task), state, exchanges)
    change = (found.params["weight"] - state.params["weight"])[0]
    assert change.tolist() == pytest.approx([-0.01, 0.026, 0.0188], abs=1e-12)


def test_weights_of_groups_go_together() -> None:
    """O2, two groups: rows that nobody opened stay."""
    method = toy(
        gate_head="gated", theta0=0.6, optimizer="sgd", server_lr=1.0, beta1=0.0, prune_below=0.0
    )
    weights = torch.tensor([[0.3, 0.4], [0.1, -0.2]], dtype=DOUBLE)
    task = line(weights.tolist())
    state = state_of(method, task, weights, vector(0.4995, 0.224))
    values = torch.tensor([[0.31, 0.38], [9, 9]], dtype=DOUBLE)
    told = answer(method, task, state, torch.tensor([True, False]), values)
    found = method.merge(server_ctx(task), state, [told])
    change = found.params["weight"] - weights
    assert change.flatten().tolist() == pytest.approx([0.01, -0.02, 0, 0], abs=1e-12)
    moved = found.thresholds - state.thresholds
    assert moved.tolist() == pytest.approx([-1e-2, 1e-2], rel=1e-6)


def test_sum_and_mean_differ_by_epsilon_alone() -> None:
    found = []
    for reduction in ("sum", "mean"):
        method, task, state, exchanges = three(reduction=reduction)
        found.append(method.merge(server_ctx(task), state, exchanges))
    assert close(found[0].params, found[1].params, 1e-8)
    assert not equal(found[0].params, found[1].params)
    assert torch.allclose(found[0].thresholds, found[1].thresholds, rtol=1e-8, atol=1e-8)


def test_clients_may_count_by_their_examples() -> None:
    method, task, state, exchanges = three(
        weighting="samples", optimizer="sgd", server_lr=1.0, beta1=0.0, prune_below=0.0
    )
    found = method.merge(server_ctx(task), state, exchanges)
    change = (found.params["weight"] - state.params["weight"])[0]
    shares = vector(1, 2, 3) / 6
    wanted = (shares[:, None] * OPENED * (SENT - WEIGHTS)).sum(0)
    assert torch.allclose(change, wanted, atol=1e-12)


# closed forms -------------------------------------------------------------------------------------


def test_the_closed_step_takes_means_and_shares() -> None:
    """Equation 10 with drawn gates; thresholds then give just these probabilities."""
    method, task, state, exchanges = three(server_step="closed", theta0=0.99)
    found = method.merge(server_ctx(task), state, exchanges)
    means = [(0.51 + 0.48) / 2, (-0.47 - 0.5) / 2, 0.52]
    assert found.params["weight"][0].tolist() == pytest.approx(means, abs=1e-12)
    shares = theta(method, task, found)
    assert shares.tolist() == pytest.approx([2 / 3, 2 / 3, 1 / 3], abs=1e-9)


def test_the_closed_step_of_the_published_clients() -> None:
    """O5 with gates."""
    method = toy(granularity="weights", gate_head="gated", theta0=0.99, server_step="closed")
    weights, thresholds = vector(1.0, -1.0)[None], vector(0.9, 0.9)[None]
    task = line(weights.tolist())
    state = state_of(method, task, weights, thresholds)
    clients = torch.tensor([[1.2, -1.0], [0.9, -0.6], [1.2, -1.1]], dtype=DOUBLE)
    gates = torch.tensor([[1, 0], [1, 1], [0, 1]]).bool()
    replies = [
        answer(method, task, state, z[None], w[None]) for z, w in zip(gates, clients, strict=True)
    ]
    found = method.merge(server_ctx(task), state, replies)
    assert found.params["weight"][0].tolist() == pytest.approx([1.05, -0.85], abs=1e-12)
    shares = theta(method, task, found)
    assert shares.tolist() == pytest.approx([2 / 3, 2 / 3], abs=1e-9)


def test_the_closed_step_prunes_what_nobody_opens_and_never_is_certain() -> None:
    method, task, state, _ = three(server_step="closed", theta0=0.99)
    shut = [answer(method, task, state, torch.tensor([[True, False, True]]), SENT[:1] + 0.1)] * 2
    found = method.merge(server_ctx(task), state, shut)
    assert found.alive.tolist() == [True, False, True]
    assert theta(method, task, found)[[0, 2]].tolist() == pytest.approx([0.99] * 2)
    again = method.merge(
        server_ctx(task),
        found,
        [answer(method, task, found, torch.tensor([[True, False, False]]), SENT[:1] + 0.1)],
    )
    assert again.alive.tolist() == [True, False, False]


# pruning ------------------------------------------------------------------------------------------


def test_adam_would_move_what_was_set_to_zero() -> None:
    """O9: five steps of a gradient of 0.01, then zero, then a step of none."""
    adam = ServerOptimiser()
    params, moments = {"w": vector(1.0)}, adam.start({"w": vector(1.0)})
    for _ in range(5):
        params, moments = adam.step(params, {"w": vector(-0.01)}, moments)
    params, _ = adam.step({"w": vector(0.0)}, {"w": vector(0.0)}, moments)
    assert float(params["w"]) == pytest.approx(-8.6187e-4, abs=5e-9)


def rounds(method: Any, state: Server, count: int, seed: int = 0) -> list[Server]:
    """What becomes of a state when clients open gates at random and send noise."""
    task, draw = net(), Key(seed).generator()
    groups = groups_of(method, task)
    found = [state]
    for number in range(1, count + 1):
        ctx, state = server_ctx(task, round=number), found[-1]
        down, exchanges = sent(method, task, state), []
        for id in range(2):
            opened = {
                n: (torch.rand(each.shape, generator=draw) < 0.9) & each
                for n, each in down.alive.items()
            }
            noise = {
                n: tensor + 0.1 * torch.randn(tensor.shape, generator=draw)
                for n, tensor in state.params.items()
            }
            frame = Frame.of(ctx, groups, down.alive, down.removed)
            model = frame.send(ctx, noise, opened, "running")
            up = Up({n: opened[n][alive] for n, alive in down.alive.items()}, model)
            exchanges.append(Exchange(Client(id, 10), down, up))
        found.append(method.merge(ctx, state, exchanges))
    return found


DEAD = {"0.weight": [1], "2.weight": [0, 5], "5.weight": [2, 3, 9]}


def rows(params: Params) -> Tensor:
    return torch.cat([params[name][places].flatten() for name, places in DEAD.items()])


def of_dead(vector: Tensor) -> Tensor:
    """The entries of the groups that are to be pruned."""
    parts = groups_of(toy(), net()).split(vector)
    return torch.cat([parts[name][places] for name, places in DEAD.items()])


def test_pruned_groups_stay_zero_for_fifty_rounds() -> None:
    method, task = toy(), net()
    busy = rounds(method, method.init(server_ctx(task, round=0)), 2)[-1]
    assert rows(busy.moments.first).all() and of_dead(busy.first).all()
    state = prune(method, task, with_thresholds(method, task, busy, DEAD, 30.0))
    # Thresholds of nearly nothing: by their probability alone these groups would be alive.
    low = with_thresholds(method, task, state, DEAD, -10.0)
    history = rounds(method, low, 50)
    for after in history:
        assert not rows(after.params).any()
        assert not rows(after.moments.first).any() and not rows(after.moments.second).any()
        assert not of_dead(after.first).any() and not of_dead(after.second).any()
        assert not of_dead(after.alive).any()
        assert torch.equal(of_dead(after.thresholds), of_dead(low.thresholds))
    assert not equal(history[-1].params, history[0].params)


def test_moments_that_are_kept_may_bring_groups_back() -> None:
    """Algorithm 1 to the letter: what is pruned is asked again in every round."""
    method = toy(dead_moments="keep")
    state = pruned(method, net(), DEAD)
    assert not rows(state.params).any()
    low = torch.full_like(state.thresholds, -10.0)
    after = rounds(method, replace(state, thresholds=low), 1)[-1]
    assert of_dead(after.alive).all()


def test_moments_that_are_kept_do_not_bring_back_groups_below_a_threshold() -> None:
    method, task = toy(dead_moments="keep"), net()
    busy = rounds(method, method.init(server_ctx(task, round=0)), 3)[-1]
    assert rows(busy.moments.first).all()
    for after in rounds(method, with_thresholds(method, task, busy, DEAD, 3.0), 4)[1:]:
        assert not rows(after.params).any() and rows(after.moments.first).all()
        assert of_dead(after.first).all()


def test_groups_are_pruned_at_the_probability_asked_for() -> None:
    method = toy(prune_below=0.3)
    state = method.init(server_ctx(net(), round=0))
    groups = groups_of(method, net())
    shares = torch.linspace(0.2, 0.4, groups.total)
    raw = hard_concrete.thresholds_for(groups.norms(state.params), shares, 1e-3)
    alive = prune(method, net(), replace(state, thresholds=raw)).alive
    near = (shares - 0.3).abs() < 2e-3
    assert torch.equal(alive[~near], (shares > 0.3)[~near])


@pytest.mark.parametrize("dead_moments", ["drop", "keep"])
def test_a_round_in_which_nobody_answers_changes_nothing(dead_moments: str) -> None:
    method = toy() if dead_moments == "drop" else toy(dead_moments=dead_moments)
    state = pruned(method, net(), DEAD)
    assert dump(method.merge(server_ctx(net()), state, [])) == dump(state)


@pytest.mark.parametrize("norm", ["", "batch", "group"])
def test_biases_and_norms_go_with_their_groups(norm: str) -> None:
    method, task = toy(gate_bias=True), net(norm)
    layers = [name for name, leaf in task.layout.leaves.items() if leaf.kind == "conv"]
    dead = {layers[0]: [1, 2], layers[1]: [0]}
    state = pruned(method, task, dead)
    free = pruned(toy(), task, dead)
    done = trained(method, task, state)
    dense = whole_tensors(task, groups_of(method, task), done.local, done.up.model)
    for layer, places in dead.items():
        number = int(layer.partition(".")[0])
        beside = [f"{number}.bias"]
        if norm:
            beside += [f"{number + 1}.weight", f"{number + 1}.bias"]
        for name in beside:
            # A shift of a fresh norm is zero anyway.
            shift = name == f"{number + 1}.bias"
            assert shift or free.params[name][places].all()
            assert not state.params[name][places].any() and not dense[name][places].any()
            others = [place for place in range(len(dense[name])) if place not in places]
            stays = torch.equal(dense[name][others], state.params[name][others])
            # Batch normalisation takes out what a bias before it adds.
            assert not stays or (norm == "batch" and name == f"{number}.bias")


# beginnings ---------------------------------------------------------------------------------------


def test_all_groups_begin_as_open_as_asked_for() -> None:
    method = toy(theta0=0.95)
    state = method.init(server_ctx(net(), round=0))
    shares = theta(method, net(), state)
    assert torch.allclose(shares, torch.tensor(0.95), atol=1e-3)


def test_gates_that_would_be_pruned_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`prune_below=0\.3`"):
        toy(theta0=0.3, prune_below=0.3).init(server_ctx(net(), round=0))


def test_groups_that_are_too_small_are_told_of_once() -> None:
    method = toy(granularity="weights", temperature=1e-2)
    with pytest.warns(UserWarning, match="groups are too small .* `temperature=`") as told:
        state = method.init(server_ctx(net(), round=0))
    assert len(told) == 1
    least = float(softplus(state.thresholds).min())
    assert least == pytest.approx(1e-6, rel=1e-3)


def test_groups_of_zeros_are_refused() -> None:
    layers = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    plain = layers[0]
    plain.reset_parameters = lambda: None  # type: ignore[assignment]
    nn.init.zeros_(plain.weight[1])  # type: ignore[arg-type]
    task = Task.of(layers, torch.zeros(2, 4), start="seed")
    with pytest.raises(
        ValueError, match=r"1 of 3 groups of 0.weight are initialised to zero.*`prunable=`"
    ):
        toy().init(server_ctx(task, round=0))


# numbers that were rounded on the way -------------------------------------------------------------


def with_values(down: Down, values: Params) -> Down:
    """The message with other weights."""
    packed = replace(down.model.values, values=values)
    return replace(down, model=replace(down.model, values=packed))


def test_changes_are_counted_from_what_clients_received() -> None:
    method = toy(optimizer="sgd", server_lr=1.0, beta1=0.0, prune_below=0.0)
    task = net()
    state = method.init(server_ctx(task, round=0))
    down = sent(method, task, state)
    rounded = {name: each.half().float() for name, each in down.model.values.values.items()}
    received = with_values(down, rounded)
    opened = {name: torch.ones_like(alive) for name, alive in down.alive.items()}
    echo = Up(opened, received.model)
    found = method.merge(server_ctx(task), state, [Exchange(Client(0, 10), received, echo)])
    assert equal(found.params, state.params)


def test_probabilities_are_those_of_what_clients_received() -> None:
    """Half of the clients open gates that the server takes to be open, and the clients shut."""
    method, task = toy(), net()
    state = method.init(server_ctx(task, round=0))
    down = sent(method, task, state)
    smaller = {name: 0.9 * each for name, each in down.model.values.values.items()}
    received = with_values(down, smaller)
    exchanges = []
    for id, open_ in enumerate((True, False)):
        opened = {name: torch.full_like(alive, open_) for name, alive in down.alive.items()}
        kept = {name: each if open_ else each[:0] for name, each in smaller.items()}
        up = Up(opened, with_values(down, kept).model)
        exchanges.append(Exchange(Client(id, 10), received, up))
    found = method.merge(server_ctx(task), state, exchanges)
    moved = found.thresholds - state.thresholds
    assert torch.allclose(moved, torch.tensor(-1e-2), rtol=1e-3)
