"""Models that are a client's own: whose they are, and that none is run without need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gossamer import Ctx, Ensemble, Examples, FedAvg, Key, Options, Params, Result, Task, run
from gossamer.engine import Run
from gossamer.engine.evaluate import Evaluator, mark
from gossamer.engine.store import Store
from gossamer.engine.workers import Workers
from gossamer.methods.fedavg import Server
from gossamer.methods.parts.dense_model import Local, Up, Work
from gossamer.wire import dump, record_types
from helpers import Toy, linear, normed, server_ctx

METHOD = FedAvg()


@pytest.fixture(params=[1, 2], ids=["alone", "two workers"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    found = Workers(linear(), request.param)
    yield found
    found.close()


def right(params: Params, examples: Examples) -> Tensor:
    logits = functional.linear(examples.x, params["weight"], params["bias"])
    return (logits.argmax(1) == examples.y).float()


PASSES: list[int] = []
"""How many examples each forward pass had."""


class Counted(nn.Module):
    """Normalises, so that it has running statistics, and notes that it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        PASSES.append(len(x))
        out: Tensor = self.head(self.norm(x))
        return out


def passes(evaluate: Evaluator, ctx: Ctx, state: Server, store: Store) -> list[int]:
    """The forward passes of an evaluation, but for that of the global model."""
    PASSES.clear()
    evaluate(ctx, state, store)
    assert PASSES[0] == 100
    return PASSES[1:]


def test_only_personal_models_that_changed_are_evaluated_again(tmp_path: Path) -> None:
    task, federation = Task.of(Counted(), torch.zeros(2, 5), start="seed"), Toy(rows=True)
    method = replace(METHOD, buffers="local")
    ctx, workers = server_ctx(task), Workers(task, 1)
    evaluate = Evaluator(Run(method, task, federation, rounds=10, options=Options()), workers)
    store = Store(tmp_path, record_types(method))
    state, other = Server(task.init(Key(1))), Server(task.init(Key(2)))

    def keep(client: int, round: int, number: float) -> None:
        own = {name: tensor + number for name, tensor in task.buffers().items()}
        store.put(client, round, dump(Local(own)))

    keep(1, 1, 1.0)
    keep(4, 1, 4.0)
    federation.asked.clear()
    assert passes(evaluate, ctx, state, store) == [17, 16]
    assert passes(evaluate, ctx, state, store) == []
    keep(4, 2, 9.0)
    assert passes(evaluate, ctx, state, store) == [16]
    assert passes(evaluate, ctx, state, store) == []
    assert federation.asked == []  # test data are rows of the server's: nobody's were gathered
    assert passes(evaluate, ctx, other, store) == [17, 16]
    assert passes(evaluate, ctx, state, store) == [17, 16]
    # After a round in which all models changed, none is digested: one that stays is run once more.
    assert passes(evaluate, ctx, state, store) == [17, 16]
    assert passes(evaluate, ctx, state, store) == []
    fresh = Evaluator(Run(method, task, federation, rounds=10, options=Options()), workers)
    assert evaluate(ctx, state, store) == fresh(ctx, state, store)


def test_a_model_that_changed_where_no_glance_falls_is_evaluated_again(tmp_path: Path) -> None:
    """Weights of 20 x 500 numbers, of which a glance sees every 157th; one other one changes."""
    module = nn.Sequential(nn.Linear(5, 20), nn.BatchNorm1d(20), nn.Linear(20, 500))
    task, federation = Task.of(module, torch.zeros(2, 5), start="seed"), Toy(rows=True)
    method = replace(METHOD, buffers="local")
    ctx, workers = server_ctx(task), Workers(task, 1)
    evaluate = Evaluator(Run(method, task, federation, rounds=10, options=Options()), workers)
    store = Store(tmp_path, record_types(method))
    store.put(0, 1, dump(Local(task.buffers())))
    params = task.init(Key(1))
    changed = params["2.weight"].clone()
    changed[federation.test.y[0], 1] = 1e9  # the second number of a row of twenty
    first = evaluate(ctx, Server(params), store)
    second = evaluate(ctx, Server({**params, "2.weight": changed}), store)
    fresh = Evaluator(Run(method, task, federation, rounds=10, options=Options()), workers)
    assert second == fresh(ctx, Server({**params, "2.weight": changed}), store)
    assert second.personal_mean != first.personal_mean


def test_a_personal_model_is_tested_on_its_clients_own_data(tmp_path: Path) -> None:
    """Client 2 keeps statistics of its own, which make another model of the shared one."""
    task, federation = normed(), Toy(rows=True, test=300)
    method = replace(METHOD, buffers="local")
    ctx, workers = server_ctx(task), Workers(task, 1)
    state = Server(task.init(Key(1)))
    store = Store(tmp_path, record_types(method))
    local = Local({"1.running_mean": torch.arange(8.0) - 4, "1.running_var": torch.full((8,), 0.1)})
    store.put(2, 1, dump(local))
    found = Evaluator(Run(method, task, federation, rounds=10, options=Options()), workers)(
        ctx, state, store
    )
    each = []
    for id in range(6):
        model = method.model(ctx, state, local if id == 2 else None)
        each.append(mark(task, model, federation.client(id).test).numbers["accuracy"].mean())
    assert found.personal_mean == pytest.approx(np.mean(each))
    shared = mark(task, state.params, federation.client(2).test).numbers["accuracy"].mean()
    assert each[2] != shared


@dataclass(frozen=True)
class Notes:
    """What a client remembers; only some of it makes a model of its own."""

    params: Params


@dataclass(frozen=True)
class Remembers(FedAvg):
    """Clients keep something, which replaces the tensors of the global model that it names."""

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Notes]:  # type: ignore[override]
        return Result(Up(work.params), Notes({}))

    def model(self, ctx: Ctx, state: Server, local: Notes | None) -> Params:  # type: ignore[override]
        return {**state.params, **local.params} if local else dict(state.params)


@pytest.mark.parametrize("rows", [True, False])
def test_a_client_that_keeps_something_may_still_have_the_global_model(
    workers: Workers, tmp_path: Path, rows: bool
) -> None:
    task, method, federation = linear(), Remembers(), Toy(rows=rows)
    store = Store(tmp_path, record_types(method))
    state = Server(task.init(Key(1)))
    evaluate = Evaluator(Run(method, task, federation, rounds=10, options=Options()), workers)
    nobody = evaluate(server_ctx(task), state, store)
    for client in (0, 3, 5):
        store.put(client, 1, dump(Notes({})))
    assert evaluate(server_ctx(task), state, store) == nobody
    assert nobody.personal_density is None
    # Equal numbers in a tensor of their own are a model of its own.
    store.put(3, 2, dump(Notes({"bias": state.params["bias"].clone()})))
    again = evaluate(server_ctx(task), state, store)
    alone = right(state.params, federation.client(3).test).mean().item()
    own = {"personal_density": 1.0, "personal_densities": [1.0] * again.clients}
    assert again == replace(nobody, **own, local_mean=pytest.approx(alone))


def test_the_global_model_of_a_client_that_keeps_something_is_not_run_again(tmp_path: Path) -> None:
    task, federation = Task.of(Counted(), torch.zeros(2, 5), start="seed"), Toy(rows=True)
    method, ctx = Remembers(), server_ctx(task)
    store = Store(tmp_path, record_types(method))
    state = Server(task.init(Key(1)))
    evaluate = Evaluator(
        Run(method, task, federation, rounds=10, options=Options()), Workers(task, 1)
    )
    for client in range(6):
        store.put(client, 1, dump(Notes({})))
    assert passes(evaluate, ctx, state, store) == []
    store.put(4, 2, dump(Notes({"head.bias": torch.ones(3)})))
    assert passes(evaluate, ctx, state, store) == [16]
    store.put(4, 3, dump(Notes({})))
    assert passes(evaluate, ctx, state, store) == []
    assert evaluate(ctx, state, store).personal_density is None


@pytest.mark.parametrize("rows", [True, False])
def test_some_clients_may_have_models_of_their_own_and_others_the_global_one(
    workers: Workers, tmp_path: Path, rows: bool
) -> None:
    """Of six clients two keep a dense layer, two keep what changes nothing, two keep nothing."""
    task, method, federation = linear(), Remembers(), Toy(rows=rows, test=300)
    store = Store(tmp_path, record_types(method))
    state, own = Server(task.init(Key(1))), {"weight": task.init(Key(2))["weight"]}
    state.params["weight"][::2] = 0
    for client in (0, 1):
        store.put(client, 1, dump(Notes(own)))
    for client in (2, 3):
        store.put(client, 1, dump(Notes({})))
    found = Evaluator(Run(method, task, federation, rounds=10, options=Options()), workers)(
        server_ctx(task), state, store
    )
    assert found.personal_density == pytest.approx((2 * 1 + 4 * 1 / 3) / 6)
    each = []
    for id in range(6):
        params = {**state.params, **own} if id < 2 else state.params
        each.append(right(params, federation.client(id).test).mean().item())
    assert found.personal_mean == pytest.approx(np.mean(each))
    assert found.local_mean == pytest.approx(np.mean(each[:2]))
    assert found.clients == 6 and each[0] != right(state.params, federation.client(0).test).mean()


def test_a_run_whose_clients_keep_no_models_is_judged_by_the_global_one() -> None:
    summary = run(Remembers(3), linear(), Toy(), rounds=3)
    assert summary.accuracy["personal_density"] is None
    assert summary.accuracy["local_mean"] is None
    assert summary.accuracy["best"] == summary.accuracy["global_best"]
    assert summary.accuracy["global_best"] != summary.accuracy["personal_best"]


@dataclass(frozen=True)
class RemembersMixed(Remembers):
    def model(self, ctx: Ctx, state: Server, local: Notes | None) -> Ensemble:  # type: ignore[override]
        return Ensemble((state.params,), (1.0,))


def test_an_ensemble_of_a_client_that_keeps_something_counts_as_its_own(
    workers: Workers, tmp_path: Path
) -> None:
    task, method = linear(), RemembersMixed()
    store = Store(tmp_path, record_types(method))
    evaluate = Evaluator(Run(method, task, Toy(), rounds=10, options=Options()), workers)
    state = Server(task.init(Key(1)))
    assert evaluate(server_ctx(task), state, store).personal_density is None
    store.put(2, 1, dump(Notes({})))
    assert evaluate(server_ctx(task), state, store).personal_density == 1.0
