"""FedPAQ, FedCOM, STC, EF21 and PowerSGD: a round of each with two clients, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gossamer import METHODS, Run, Task, fields
from gossamer.compression import Compressed
from gossamer.core import Client, Ctx, Exchange, Params
from gossamer.engine import Options
from gossamer.engine.checks import ctx_of
from helpers import Toy, linear, mlp

CLIENTS = [Client(0, 1), Client(1, 99)]
"""Numbers of examples that a weighted mean would show."""


def entry(name: str, **settings: object) -> Compressed:
    found = fields.replace(METHODS[name], {"clients": 2, **settings})
    assert isinstance(found, Compressed)
    return found


def stage(method: Compressed, task: Task | None = None) -> tuple[Ctx, Any]:
    run = Run(method, task or linear(), Toy(6), rounds=3, options=Options(workers=1))
    ctx = ctx_of(run, 1)
    return ctx, method.init(ctx)


def played(
    method: Compressed, ctx: Ctx, state: Any, changes: list[Params], kept: Any = (None, None)
) -> tuple[Any, list[Any]]:
    """A round in which clients change what they received as given: the state, what clients keep."""
    exchanges, local = [], []
    for client, own, change in zip(CLIENTS, kept, changes, strict=True):
        down = method.down(ctx, state, client)
        work = method.begin(ctx, down, own).work
        for name, tensor in change.items():
            work.inner.params[name] += tensor
        result = method.finish(ctx, work)
        exchanges.append(Exchange(client, down, result.up))
        local.append(result.local)
    return method.merge(ctx, state, exchanges), local


def weights(*values: float) -> Params:
    """A change of the linear model's first weights."""
    weight = torch.zeros(3, 5)
    weight.view(-1)[: len(values)] = torch.tensor(values)
    return {"weight": weight}


def moved(state: Any, start: Any, count: int = 3) -> list[float]:
    difference = state.inner.params["weight"] - start.inner.params["weight"]
    return [float(each) for each in difference.view(-1)[:count]]


def near(*values: float) -> Any:
    return pytest.approx(list(values), abs=1e-5)


def test_fedpaq_averages_quantised_changes_with_equal_weights() -> None:
    # The norm of (3, 4) is 5 and a tenth of it 0.5: six and eight levels, nothing is rounded.
    method = entry("fedpaq")
    ctx, start = stage(method)
    state, kept = played(method, ctx, start, [weights(3, 4), weights(-3, 4)])
    assert moved(state, start) == near(0, 4, 0)
    assert kept == [None, None]  # unbiased, so nothing is remembered


def test_fedcom_takes_a_step_along_the_mean_of_quantised_changes() -> None:
    # A single value is its own norm, and the highest of 127 levels.
    method = entry("fedcom", server_lr=0.5)
    ctx, start = stage(method)
    state, _ = played(method, ctx, start, [weights(4), weights(0, 2)])
    assert moved(state, start) == near(1, 0.5, 0)


def test_stc_sends_one_ternary_value_each_way_and_remembers_the_rest() -> None:
    # Of 18 weights one is kept: 3 and -5 go up, and their mean is (1.5, -2.5, 0). Down goes -2.5
    # in the next request, and 1.5 in the one after it.
    method = entry("stc")
    ctx, start = stage(method)
    state, kept = played(method, ctx, start, [weights(3, 2, 1), weights(0, -5, 1)])
    assert moved(state, start) == near(1.5, -2.5, 0)
    memory = [each.memory["params[weight]"].view(-1)[:3].tolist() for each in kept]
    assert memory == [near(0, 2, 1), near(0, 0, 1)]
    work = method.begin(ctx, method.down(ctx, state, CLIENTS[0]), kept[0]).work
    held = (work.inner.params["weight"] - start.inner.params["weight"]).view(-1)[:3]
    assert held.tolist() == near(0, -2.5, 0)
    # Clients change nothing; 0 sends the 2 that it remembers, 1 its 1. What the request lost, 1.5,
    # is still in the server's model, and goes down next: (1.5, 1, 0.5) is what clients lack then.
    later, kept = played(method, ctx, state, [weights(), weights()], kept)
    assert moved(later, start) == near(1.5, -2.5 + 1, 0.5)
    work = method.begin(ctx, method.down(ctx, later, CLIENTS[0]), kept[0]).work
    held = (work.inner.params["weight"] - start.inner.params["weight"]).view(-1)[:3]
    assert held.tolist() == near(1.5, -2.5, 0)


def test_ef21_takes_steps_of_all_data_and_sends_differences_to_an_estimate() -> None:
    method = entry("ef21")
    ctx, start = stage(method)
    job = method.begin(ctx, method.down(ctx, start, CLIENTS[0]), None)
    assert job.epochs == 1 and job.batch is not None and job.batch >= 1 << 20
    once, kept = played(method, ctx, start, [weights(3, 2), weights(-5, 4)])
    assert moved(once, start) == near(-1, 0, 0)
    # Estimates are (3, 0) and (-5, 0); the same changes again bring (0, 2) and (0, 4).
    twice, _ = played(method, ctx, once, [weights(3, 2), weights(-5, 4)], kept)
    assert moved(twice, once) == near(-1, 3, 0)


def test_powersgd_sends_a_change_of_rank_two_whole_and_remembers_what_is_beyond() -> None:
    method = entry("powersgd")
    ctx, start = stage(method, mlp())
    name = "0.weight"
    rows, columns = start.inner.params[name].shape
    low = torch.zeros(rows, columns)
    low[0, 0], low[1, 1] = 8.0, 4.0
    high = torch.diag(torch.tensor([8.0, 4.0, 0.5, 0.25, 0.125]))[:, :columns]
    high = torch.cat([high, torch.zeros(rows - len(high), columns)])
    state, kept = played(method, ctx, start, [{name: low}, {name: high}])
    memory = [each.memory[f"params[{name}]"] for each in kept]
    assert memory[0].abs().max() < 1e-4
    assert 0.3 < memory[1].norm() < 3  # the best approximation of rank two is 0.57 away
    mean = (low + high - memory[1]) / 2
    change = state.inner.params[name] - start.inner.params[name]
    torch.testing.assert_close(change, mean, atol=1e-4, rtol=1e-4)
