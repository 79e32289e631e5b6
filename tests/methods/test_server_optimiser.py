"""The server's optimiser on its own, and what clients of FedOpt may keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gossamer import Client, FedOpt, Key, Training
from gossamer.engine.client import train
from gossamer.methods.parts.server_optimiser import Optimizer, ServerOptimiser
from helpers import Toy, client_ctx, normed, same, server_ctx

CHANGES = ((0.3, -0.2), (0.1, 0.4), (-0.5, 0.0))
START = (1.0, -1.0)


def pair(values: Any) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float64)}


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        ("sgd", lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)),
        ("adam", lambda params: torch.optim.Adam(params, lr=0.1)),
        ("adagrad", lambda params: torch.optim.Adagrad(params, lr=0.1, eps=1e-8)),
    ],
)
def test_steps_are_those_of_torch(kind: Optimizer, theirs: Any) -> None:
    beta1 = 0.0 if kind == "adagrad" else 0.9
    ours = ServerOptimiser(kind, server_lr=0.1, beta1=beta1)
    params = pair(START)
    moments = ours.start(params)
    parameter = torch.nn.Parameter(params["w"].clone())
    optimiser = theirs([parameter])
    for change in CHANGES:
        parameter.grad = -pair(change)["w"]
        optimiser.step()
        params, moments = ours.step(params, pair(change), moments)
        torch.testing.assert_close(params["w"], parameter.detach(), rtol=1e-12, atol=1e-12)
    assert moments.steps == 3 and set(moments.second) == (set() if kind == "sgd" else {"w"})


def test_a_step_moves_only_what_has_a_change_and_changes_nothing_in_place() -> None:
    rule, params = ServerOptimiser(), {**pair(START), "other": torch.ones(3)}
    moments = rule.start(pair(START))
    stepped, after = rule.step(params, pair(CHANGES[0]), moments)
    assert set(stepped) == {"w"} and params["w"].tolist() == list(START)
    assert stepped["w"].tolist() == pytest.approx([1.001, -1.001], abs=1e-9)
    assert moments.steps == 0 and not moments.first["w"].any() and after.first["w"].all()


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_a_client_of_fedopt_may_keep_the_model_it_sent(buffers: Any) -> None:
    task = normed()
    ctx, own = server_ctx(task), client_ctx(task, Toy().make(Key(9), 20))
    method = FedOpt(training=Training(batch=8), buffers=buffers, personal_model="sent")
    state = method.init(ctx)
    down = method.down(ctx, state, Client(0, 20))
    done = train(method, own, down, None).result
    model = method.model(ctx, state, done.local)
    assert same({name: model[name] for name in done.up.params}, done.up.params)
    assert set(model) == set(task.layout.names) and not same(model, state.params)
    again = train(method, own, down, done.local).result
    whole = replace(method, personal_model="global")
    kept = train(whole, own, down, train(whole, own, down, None).result.local).result
    assert same(again.up.params, kept.up.params)
