"""SparsyFed: powers of weights, pruned inputs and pruned models, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from quadratic_cases import half_square
from torch import nn

from gossamer import Client, Examples, Exchange, FedAvg, Key, Params, SparsyFed, Task, Training
from gossamer.engine.client import train
from gossamer.methods.parts import dense_model
from gossamer.methods.sparsyfed import Down, Server, Up, power
from gossamer.sparsity import activations
from gossamer.wire import Revision, WireError, pack
from helpers import Toy, batch_of, client_ctx, mlp, server_ctx

METHOD = SparsyFed(density=0.5, exponent=2.0, training=Training(batch=1, lr=0.1))


def line(inputs: int = 4) -> Task:
    module = nn.Linear(inputs, 1, bias=False)
    return Task.of(module, torch.ones(2, inputs), criterion=half_square)


def weight(*values: float) -> Params:
    return {"weight": torch.tensor([values])}


def state_of(*values: float) -> Server:
    params = weight(*values)
    return Server(params, {"weight": params["weight"] != 0})


# powers -----------------------------------------------------------------------------------------


def test_a_power_keeps_the_sign_and_a_root_undoes_it() -> None:
    tensor = torch.tensor([-2.0, 0.0, 0.5])
    assert power(tensor, 2.0).tolist() == [-4, 0, 0.25]
    torch.testing.assert_close(power(power(tensor, 1.25), 1 / 1.25), tensor)
    assert power(tensor, 1.0) is tensor


def test_the_first_model_is_the_initial_one() -> None:
    """Up to rounding: what is trained is its root."""
    task = mlp()
    ctx = server_ctx(task)
    first = SparsyFed().model(ctx, SparsyFed().init(ctx), None)
    for name, tensor in task.init(ctx.common.fold("init")).items():
        torch.testing.assert_close(first[name], tensor)


# one client, by hand ----------------------------------------------------------------------------


def step(method: SparsyFed, *values: float) -> list[float]:
    """One step on x = (1, 1, ...), y = 1."""
    task = line(len(values))
    x, y = torch.ones(1, len(values)), torch.ones(1, 1)
    ctx = client_ctx(task, Examples(x, y))
    state = state_of(*values)
    work = method.begin(ctx, method.down(server_ctx(task), state, Client(0, 1)), None).work
    found: list[float] = method.step(ctx, work, batch_of(x, y)).params["weight"][0].tolist()
    return found


def test_a_step_goes_through_the_power() -> None:
    """t = (2, -1, 0): w = (4, -1, 0), the output 3 is 2 too much. Gradients of t: 2 * 2 |t|."""
    assert step(METHOD, 2.0, -1.0, 0.0) == pytest.approx([2 - 0.8, -1 - 0.4, 0.0])


def test_without_a_power_a_weight_that_is_zero_grows() -> None:
    assert step(replace(METHOD, exponent=1.0), 2.0, 0.0) == pytest.approx([1.9, -0.1])


def test_after_training_a_client_keeps_the_largest_of_the_whole_model() -> None:
    task = line()
    ctx = client_ctx(task, Examples(torch.zeros(1, 4), torch.zeros(1, 1)))
    down = METHOD.down(server_ctx(task), state_of(3.0, -1.0, 2.0, -4.0), Client(0, 1))
    up = train(METHOD, ctx, down, None).result.up
    assert up.mask.masks["weight"].tolist() == [[True, False, False, True]]
    assert up.model.values.values["weight"].tolist() == [3, -4]


def test_a_client_keeps_no_weight_that_is_zero() -> None:
    task = line()
    ctx = client_ctx(task, Examples(torch.zeros(1, 4), torch.zeros(1, 1)))
    down = METHOD.down(server_ctx(task), state_of(0.0, 0.0, 2.0, 0.0), Client(0, 1))
    up = train(METHOD, ctx, down, None).result.up
    assert up.mask.masks["weight"].tolist() == [[False, False, True, False]]


def test_with_all_weights_and_no_power_it_is_fedavg() -> None:
    task, training = mlp(), Training(batch=8, lr=0.1, momentum=0.5)
    ctx = client_ctx(task, Toy().make(Key(3), 20))
    method = SparsyFed(density=1.0, exponent=1.0, prune_activations=False, training=training)
    state = method.init(server_ctx(task))
    mine = train(method, ctx, method.down(server_ctx(task), state, Client(0, 20)), None).result.up
    theirs = train(FedAvg(training=training), ctx, dense_model.Down(state.params), None).result.up
    for name, values in mine.model.values.values.items():
        torch.testing.assert_close(values, theirs.params[name].flatten())


# activations ------------------------------------------------------------------------------------


def test_a_layer_stores_as_many_inputs_as_it_has_weights() -> None:
    """The second layer has half of its weights: of inputs (1, 4, 2, 3) it stores 4 and 3."""
    module = nn.Sequential(nn.Linear(1, 4, bias=False), nn.Linear(4, 1, bias=False))
    task = Task.of(module, torch.ones(2, 1), criterion=half_square)
    params = {
        "0.weight": torch.tensor([[1.0], [4.0], [2.0], [3.0]]),
        "1.weight": torch.tensor([[1.0, 0.0, 1.0, 0.0]]),
    }
    batch = batch_of(torch.ones(1, 1), torch.zeros(1, 1))  # the output is 3
    exact = task.gradients(params, batch).grads
    sparse = activations.as_sparse(task).gradients(params, batch).grads
    assert exact["1.weight"].tolist() == [[3, 12, 6, 9]]
    assert sparse["1.weight"].tolist() == [[0, 12, 0, 9]]
    assert torch.equal(sparse["0.weight"], exact["0.weight"])
    whole = {**params, "1.weight": torch.ones(1, 4)}
    again = activations.as_sparse(task).gradients(whole, batch).grads["1.weight"]
    assert torch.equal(again, task.gradients(whole, batch).grads["1.weight"])


# the server -------------------------------------------------------------------------------------


def reply(down: Down, mask: list[bool], *values: float) -> Up:
    masks = {"weight": torch.tensor([mask])}
    model = replace(down.model, values=pack(weight(*values), masks))
    return Up(model, Revision(masks))


def test_the_server_averages_over_all_clients_and_keeps_what_one_of_them_keeps() -> None:
    task = line()
    ctx, state = server_ctx(task), state_of(1.0, 1.0, 1.0, 1.0)
    down = METHOD.down(ctx, state, Client(0, 1))
    ups = [
        reply(down, [True, True, False, False], 2.0, 4.0, 0.0, 0.0),
        reply(down, [True, False, True, False], 6.0, 0.0, 8.0, 0.0),
    ]
    merged = METHOD.merge(
        ctx, state, [Exchange(Client(id, 5), down, u) for id, u in enumerate(ups)]
    )
    assert merged.params["weight"].tolist() == [[4, 2, 4, 0]]
    assert merged.masks["weight"].tolist() == [[True, True, True, False]]
    assert METHOD.model(ctx, merged, None)["weight"].tolist() == [[16, 4, 16, 0]]
    assert METHOD.measures(ctx, merged).metrics["client_mismatch"] > 0


def test_masks_that_keep_too_much_are_refused() -> None:
    ctx, state = server_ctx(line()), state_of(1.0, 1.0, 1.0, 1.0)
    down = METHOD.down(ctx, state, Client(0, 1))
    up = reply(down, [True, True, True, False], 1.0, 1.0, 1.0, 0.0)
    with pytest.raises(WireError, match="3 weights, but 2 were allowed"):
        METHOD.merge(ctx, state, [Exchange(Client(0, 1), down, up)])
