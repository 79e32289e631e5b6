"""A server packs a model once for all clients of a round; a client packs it whenever it sends."""

from __future__ import annotations

import torch
from torch import nn

from gossamer import Examples, Key, Masks, Params, Task
from gossamer.methods.parts import sparse_model
from helpers import client_ctx, server_ctx


def task() -> Task:
    return Task.of(nn.Linear(4, 3), torch.zeros(2, 4), start="seed")


def model() -> tuple[Task, Params, Masks]:
    made = task()
    return made, made.init(Key(0)), {"weight": torch.arange(12).view(3, 4) % 2 == 0}


def test_clients_of_a_round_are_sent_the_same_tensors() -> None:
    made, params, masks = model()
    ctx = server_ctx(made)
    first = sparse_model.send(ctx, params, masks)
    assert sparse_model.send(ctx, params, masks) is first
    assert sparse_model.send(ctx, params, dict(masks)) is not first
    assert sparse_model.send(ctx, dict(params), masks) is not first
    assert sparse_model.send(ctx, params, masks, "static") is not first
    assert sparse_model.send(server_ctx(made), params, masks) is not first


def test_a_server_remembers_few_models() -> None:
    made, params, masks = model()
    ctx = server_ctx(made)
    for _ in range(3 * sparse_model.SAME):
        sparse_model.send(ctx, params, dict(masks))
    assert len(ctx.same) == sparse_model.SAME


def test_a_client_sends_what_its_parameters_are_now() -> None:
    made, params, masks = model()
    ctx = client_ctx(made, Examples(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)))
    before = sparse_model.send(ctx, params, masks)
    params["weight"].add_(1)
    after = sparse_model.send(ctx, params, masks)
    assert torch.equal(after.values.values["weight"], before.values.values["weight"] + 1)
