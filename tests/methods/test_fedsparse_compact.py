"""Clients of FedSparse train a smaller model, and come to the same as with the whole one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fedsparse_cases import (
    CLASSES,
    SIDE,
    begun,
    groups_of,
    net,
    ones,
    pictures,
    pruned,
    sent,
    toy,
    whole_tensors,
)
from torch import Tensor, nn

from gossamer import Client, Exchange, Params, Task, fields
from gossamer.accounting import FLOPS, Effort, densities
from gossamer.engine.client import train
from gossamer.methods.fedsparse import Server
from gossamer.sparsity import hard_concrete
from gossamer.submodels import behind, compaction
from gossamer.wire import Schema, encode
from helpers import client_ctx, server_ctx

DEAD = {"0.weight": [1, 3], "2.weight": [0, 2, 5], "5.weight": [0, 1, 2, 5, 8, 9]}
"""Of the net without norms."""


def moved(state: Server, **changes: Tensor) -> Server:
    return replace(state, params={**state.params, **changes})


def with_compact(method: Any, compact: bool) -> Any:
    return fields.replace(method, {"compact": compact})


def both(method: Any, task: Task, state: Server) -> tuple[Any, Any]:
    """What a client comes to, compacted and not."""
    methods = [with_compact(method, compact) for compact in (True, False)]
    found = [
        train(each, client_ctx(task, pictures()), sent(each, task, state), None).result
        for each in methods
    ]
    return found[0], found[1]


def agree(
    method: Any, task: Task, state: Server, statistics: bool = True, fewer: bool = True
) -> None:
    """The same upload, to the precision of float32; what does not travel was not trained."""
    small, whole = both(method, task, state)
    for name, opened in small.up.opened.items():
        assert torch.equal(opened, whole.up.opened[name])
    groups, left = groups_of(method, task), 0
    ours = whole_tensors(task, groups, small.local, small.up.model)
    theirs = whole_tensors(task, groups, whole.local, whole.up.model)
    travels = whole_tensors(task, groups, small.local, ones(small.up.model))
    opened = groups.masks(groups.join(whole.local.opened), state.params)
    for name, tensor in ours.items():
        if task.layout[name].kind == "buffer" and not statistics:
            continue
        here = travels[name].bool()
        assert torch.allclose(tensor[here], theirs[name][here], rtol=2e-5, atol=2e-5)
        rest = ~here & opened.get(name, ~here)
        left += int(rest.sum())
        if task.layout[name].kind != "buffer":
            assert torch.equal(theirs[name][rest], state.params[name][rest])
    assert small.metrics == pytest.approx(whole.metrics, rel=1e-4)
    sizes = [encoded(each.up) for each in (small, whole)]
    assert (left > 0) == fewer and sizes[1] - sizes[0] >= 3.9 * left


def encoded(record: Any) -> int:
    return len(encode(record, Schema.of(record)))


def shapes(method: Any, task: Task, state: Server) -> dict[str, tuple[int, ...]]:
    """Of what a client trains."""
    _, work, _ = begun(method, task, state)
    return {name: tuple(tensor.shape) for name, tensor in work.params.items()}


# the same upload ----------------------------------------------------------------------------------


def test_without_biases_all_pruned_units_go() -> None:
    method, task = toy(lambda0=1e-3, epochs=2.0), net(bias=False)
    state = pruned(method, task, DEAD)
    found = shapes(method, task, state)
    assert found["0.weight"] == (2, 1, 3, 3) and found["2.weight"] == (3, 2, 3, 3)
    assert found["5.weight"] == (4, 12) and found["7.weight"] == (CLASSES, 4)
    agree(method, task, state)


def test_units_with_a_bias_go_if_the_relu_behind_never_lets_it_pass() -> None:
    method, task = toy(lambda0=1e-3, epochs=2.0), net()
    state = moved(
        pruned(method, task, DEAD),
        **{
            "0.bias": torch.tensor([0.1, 0.2, -0.1, -0.2]),
            "2.bias": torch.tensor([0.0, -0.1, -0.3, 0.1, 0.1, 0.1]),
            "5.bias": (torch.arange(10) - 5) / 10,
        },
    )
    _, work, _ = begun(method, task, state)
    assert len(work.params["0.weight"]) == 3  # the second has a positive bias
    assert len(work.params["2.weight"]) == 4  # the last one has
    assert len(work.params["5.weight"]) == 10 - 4  # 0, 1, 2 and 5, whose bias is zero
    assert int((work.alive == 0).sum()) == 1 + 1 + 2
    agree(method, task, state)


@pytest.mark.parametrize("drift", [0.0, 0.5])
def test_norms_of_groups_count_weights_that_nothing_reaches(drift: float) -> None:
    """Columns of removed inputs are no longer trained, but the threshold is on the whole norm."""
    method, task = toy(drift=drift, lambda0=1e-3), net(bias=False)
    state = pruned(method, task, DEAD)
    _, work, _ = begun(method, task, state)
    norms = work.part.whole.norms(state.params)
    whole = hard_concrete.logits(norms, state.thresholds, method.temperature)[work.part.places]
    assert torch.allclose(work.logits(), whole, atol=2e-3)
    assert float(work.outside.max()) > 0.01
    assert work.sizes.unique().tolist() == [9, 24, 36]
    agree(method, task, state)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_units_with_a_norm_behind_go_if_it_goes_with_them(norm: str) -> None:
    method, task = toy(gate_bias=True, lambda0=1e-3), net(norm)
    convolutions = [name for name, leaf in task.layout.leaves.items() if leaf.kind == "conv"]
    dead = dict(zip(convolutions, ([1, 3], [0, 2, 5]), strict=True))
    state = pruned(method, task, dead)
    found = shapes(method, task, state)
    assert [found[name][0] for name in convolutions] == [2, 3]
    # What batch normalisation would still count of a unit without scale is of no consequence.
    agree(method, task, state, statistics=norm == "group")
    # By itself a norm says something about every channel, so all of them stay.
    plain = replace(method, gate_bias=False)
    whole = shapes(plain, task, pruned(plain, task, dead))
    assert [whole[name][0] for name in convolutions] == [4, 6]


def test_what_is_left_of_statistics_is_the_same() -> None:
    method, task = toy(gate_bias=True), net("batch")
    first = next(name for name, leaf in task.layout.leaves.items() if leaf.kind == "conv")
    small, whole = both(method, task, pruned(method, task, {first: [1, 3]}))
    ours, theirs = small.up.model.buffers, whole.up.model.buffers
    for name in ("1.running_mean", "1.running_var"):
        assert torch.allclose(ours[name], theirs[name][[0, 2]], rtol=1e-4)


class Block(nn.Module):
    """Two paths that are added: their units are the same."""

    def __init__(self, act: nn.Module, bias: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=bias)
        self.inner = nn.Conv2d(4, 4, 3, padding=1, bias=bias)
        self.outer = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.act = act
        self.head = nn.Linear(4 * SIDE * SIDE, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        x = self.act(x + self.outer(self.act(self.inner(x))))
        out: Tensor = self.head(x.flatten(1))
        return out


@pytest.mark.parametrize("act", [nn.ReLU(), nn.Tanh()], ids=["relu", "tanh"])
def test_units_that_are_added_go_when_all_their_filters_are_pruned(act: nn.Module) -> None:
    task, method = (
        Task.of(Block(act), torch.zeros(2, 1, SIDE, SIDE), start="seed"),
        toy(lambda0=1e-3),
    )
    dead = {"stem.weight": [0, 1], "inner.weight": [0, 2], "outer.weight": [1, 2]}
    state = pruned(method, task, dead)
    found = shapes(method, task, state)
    assert found["inner.weight"] == (2, 3, 3, 3) and found["stem.weight"] == (3, 1, 3, 3)
    agree(method, task, state)


def test_units_that_are_added_may_have_biases_that_a_relu_cuts_off() -> None:
    task = Task.of(Block(nn.ReLU(), bias=True), torch.zeros(2, 1, SIDE, SIDE), start="seed")
    method = toy(lambda0=1e-3)
    dead = {"stem.weight": [0, 1, 2], "inner.weight": [0, 2], "outer.weight": [1, 2]}
    state = moved(
        pruned(method, task, dead),
        **{
            "stem.bias": torch.tensor([-0.1, -0.1, 0.1, 0.1]),
            "inner.bias": torch.tensor([-0.1, 0.1, 0.1, 0.1]),
        },
    )
    found = shapes(method, task, state)
    # The first is still written to by the outer layer, and the third lets its bias pass.
    assert found["stem.weight"] == (3, 1, 3, 3) and found["inner.weight"] == (3, 3, 3, 3)
    agree(method, task, state)


def test_a_bias_before_another_function_than_relu_keeps_its_unit() -> None:
    parts = (nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    task = Task.of(nn.Sequential(nn.Flatten(), *parts), torch.zeros(2, 4), start="seed")
    for gate_bias, left in ((False, 6), (True, 4)):
        method = toy(gate_bias=gate_bias)
        state = pruned(method, task, {"1.weight": [0, 1]})
        state = moved(state, **{"1.bias": torch.zeros(6)})
        down = sent(method, task, state)
        groups = groups_of(method, task)
        held = behind.pruned_beside(task, groups, down.alive) if gate_bias else {}
        cut = compaction.plan(task, groups, down.alive, state.params, held)
        assert (6 if cut is None else int(cut.keep["1.weight"].sum())) == left


def test_inputs_of_linear_layers_go_with_their_gates() -> None:
    method, task = toy(linear_axis="in", lambda0=1e-3), net(bias=False)
    dead = {"2.weight": [0, 2], "5.weight": [0, 1, 2, 3, 6, 7], "7.weight": [4, 5]}
    state = pruned(method, task, dead)
    found = shapes(method, task, state)
    # The third filter is pruned too, but gates of its inputs to the next layer are still trained.
    assert found["2.weight"] == (5, 4, 3, 3) and found["5.weight"] == (10, 18)
    assert found["7.weight"] == (CLASSES, 8)
    agree(method, task, state, fewer=False)  # gates of inputs are groups, which are not sent anyway


def test_a_layer_without_any_group_left_keeps_one_that_is_shut() -> None:
    method, task = toy(), net(bias=False)
    state = pruned(method, task, {"2.weight": range(6)})
    assert shapes(method, task, state)["2.weight"] == (1, 4, 3, 3)
    agree(method, task, state)


# what stays whole ---------------------------------------------------------------------------------


def test_nothing_is_removed_where_that_would_not_be_exact() -> None:
    task = net(bias=False)
    for method in (toy(compact=False), toy(weight_decay=0.1)):
        assert shapes(method, task, pruned(method, task, DEAD))["5.weight"] == (10, 24)
    weights = toy(granularity="weights", temperature=1e-5)
    assert shapes(weights, task, pruned(weights, task, {"5.weight": range(24)})) == {
        name: leaf.shape for name, leaf in task.layout.leaves.items()
    }


class Branching(nn.Module):
    """Asks for numbers on its way, so that nobody can follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 6, bias=False), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.one(x).relu()
        if float(hidden.sum()) < 0:
            hidden = -hidden
        out: Tensor = self.two(hidden)
        return out


def test_a_model_that_cannot_be_followed_is_trained_as_a_whole() -> None:
    task, method = Task.of(Branching(), torch.zeros(2, 4), start="seed"), toy()
    state = pruned(method, task, {"one.weight": [0, 5]})
    down = sent(method, task, state)
    groups = groups_of(method, task)
    assert compaction.plan(task, groups, down.alive, state.params, {}) is None
    with pytest.raises(ValueError, match=r"`gate_bias=True` must know .* of Branching cannot"):
        pruned(toy(gate_bias=True), task, {})


# what it buys -------------------------------------------------------------------------------------


def test_clients_of_a_round_share_the_smaller_task() -> None:
    method, task = toy(), net(bias=False)
    state = pruned(method, task, DEAD)
    (_, first, _), (_, second, _) = (begun(method, task, state) for _ in range(2))
    assert first.part.task is second.part.task is not task
    other = begun(method, task.copy(), state)[1]
    assert other.part.task is not first.part.task  # a thread has its own


def test_operations_are_counted_for_what_is_left() -> None:
    method, task = toy(), net(bias=False)
    state = pruned(method, task, DEAD)
    small, whole = both(method, task, state)
    kept = {name: int(mask.sum()) for name, mask in small.masks.items()}
    assert kept == {
        "0.weight": 2 * 9,
        "2.weight": 3 * 2 * 9,
        "5.weight": 4 * 12,
        "7.weight": CLASSES * 4,
    }
    assert {name: int(mask.sum()) for name, mask in whole.masks.items()} == {
        "0.weight": 2 * 9,
        "2.weight": 3 * 4 * 9,
        "5.weight": 4 * 24,
    }

    def products(masks: Params) -> float:
        return FLOPS["forward"](Effort(task.layout, densities(masks), 1, 1, 1))

    # 16 and 4 places of the two images, then one.
    assert products(small.masks) == pytest.approx(16 * 18 + 4 * 54 + 48 + 4 * CLASSES)
    assert products(small.masks) < products(whole.masks) < task.layout.macs


def test_what_does_not_travel_stays_as_it_was() -> None:
    method, task = toy(), net(bias=False)
    state = pruned(method, task, DEAD)
    down = sent(method, task, state)
    up = train(method, client_ctx(task, pictures()), down, None).result.up
    after = method.merge(server_ctx(task), state, [Exchange(Client(0, 9), down, up)])
    gone = [0, 2, 5]  # filters of the second convolution, four columns each
    columns = [4 * place + pixel for place in gone for pixel in range(4)]
    alive, weight = [3, 4, 6, 7], "5.weight"
    assert torch.equal(after.params[weight][:, columns], state.params[weight][:, columns])
    others = [place for place in range(24) if place not in columns]
    assert (after.params[weight] != state.params[weight])[alive][:, others].any()
    assert not after.params[weight][DEAD[weight]].any()


@pytest.mark.parametrize("bias", [True, False])
def test_what_goes_with_pruned_groups_is_counted(bias: bool) -> None:
    """Of 4, 6 and 10 units 2, 3 and 4 are left; each owns a bias and the inputs that it feeds."""
    method, task = toy(), net(bias=bias)
    state = pruned(method, task, DEAD)
    left = 2 * 9 + 3 * 2 * 9 + 4 * 12 + CLASSES * 4 + bias * (2 + 3 + 4) + CLASSES
    metrics = method.measures(server_ctx(task), state).metrics
    assert metrics["removed"] == pytest.approx(1 - left / task.layout.count)
    own = (2 * 9 + 3 * 4 * 9 + 6 * 24) / task.layout.count
    assert metrics["zeros"] == pytest.approx(own) and own < metrics["removed"]


def test_nothing_but_groups_is_counted_in_a_model_that_cannot_be_followed() -> None:
    method, task = toy(), Task.of(Branching(), torch.zeros(2, 4))
    metrics = method.measures(server_ctx(task), pruned(method, task, {"one.weight": [0]})).metrics
    assert metrics["removed"] == pytest.approx(metrics["zeros"])


def test_moments_that_clients_keep_are_those_of_the_whole() -> None:
    method, task = toy(client_moments="keep"), net(bias=False)
    state = pruned(method, task, DEAD)
    small, whole = (each.local for each in both(method, task, state))
    down, ctx = sent(method, task, state), client_ctx(task, pictures())
    assert small.first.shape == (20,) and small.steps == whole.steps == 3
    alive = groups_of(method, task).join(down.alive)
    assert torch.allclose(small.first[alive], whole.first[alive], rtol=1e-2, atol=1e-2)
    again = method.begin(ctx, down, small).work
    assert torch.equal(again.first, small.first[again.part.places])
