"""Ditto: the personal step by hand, between training alone and the global model."""

from __future__ import annotations

import pytest
import torch
from quadratic_cases import one, slope, weight

from gossamer import Client, Ditto, FedAvg, Key, Training
from gossamer.engine.client import train
from gossamer.methods.ditto import Local
from gossamer.methods.fedavg import Server
from gossamer.methods.parts.dense_model import Down
from helpers import Toy, client_ctx, normed, same, server_ctx

HALF = Training(batch=1, lr=0.5)


def test_both_models_take_their_step() -> None:
    """The global one from 1 half the way to 4; the own one from 2 along (2 - 4) + (2 - 1) = -1."""
    done = train(Ditto(training=HALF), one(slope(), 4.0), Down(weight(1.0)), Local(weight(2.0)))
    assert done.result.up.params["w"].tolist() == [2.5]
    assert done.result.local is not None and done.result.local.params["w"].tolist() == [2.5]
    assert done.steps == 2 and done.examples == 2


@pytest.mark.parametrize(("strength", "rest"), [(0.0, 4.0), (1.0, 2.5), (2.0, 2.0)])
def test_a_personal_model_rests_between_its_own_optimum_and_the_global_model(
    strength: float, rest: float
) -> None:
    """(v - 4) + lambda (v - 1) = 0."""
    training = Training(batch=1, lr=0.25)
    method = Ditto(strength=strength, own_epochs=60, training=training)
    done = train(method, one(slope(), 4.0), Down(weight(1.0)), None)
    assert done.result.local is not None
    assert done.result.local.params["w"].tolist() == pytest.approx([rest], abs=1e-5)


def test_what_travels_is_what_fedavg_sends() -> None:
    task, training = normed(), Training(epochs=2, batch=8, momentum=0.5)
    ctx, down = client_ctx(task, Toy().make(Key(3), 20)), Down(task.init(Key(0)))
    mine = train(Ditto(training=training), ctx, down, None).result
    theirs = train(FedAvg(training=training), ctx, down, None).result
    assert same(mine.up.params, theirs.up.params) and mine.metrics == theirs.metrics
    assert mine.local is not None and set(mine.local.params) == set(task.layout.names)
    assert not torch.equal(mine.local.params["0.weight"], mine.up.params["0.weight"])


def test_a_newcomer_starts_from_the_initial_weights_and_is_judged_by_the_global_model() -> None:
    task, method = normed(), Ditto(own_epochs=0)
    ctx = client_ctx(task, Toy().make(Key(3), 20))
    first = task.init(ctx.common.fold("init"))
    done = train(method, ctx, Down(task.init(Key(5))), None).result
    assert done.local is not None and same(done.local.params, first)
    state = Server(task.init(Key(5)))
    assert method.model(server_ctx(task), state, None) is state.params
    assert method.model(server_ctx(task), state, done.local) is done.local.params
    assert method.down(server_ctx(task), state, Client(0, 1)) == Down(state.params)
