"""Accuracy against figures made by hand; nothing is computed twice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gossamer import Ctx, Ensemble, Examples, FedAvg, Key, Params, Task, run
from gossamer.engine.evaluate import CHUNK, Evaluator, mark, mark_all, worst_decile
from gossamer.engine.events import Evaluated
from gossamer.engine.store import Store
from gossamer.engine.summary import best
from gossamer.engine.workers import Workers
from gossamer.methods.dense import Local
from gossamer.methods.fedavg import Server
from gossamer.wire import dump, record_types
from helpers import Toy, fedavg, linear, mlp, normed, server_ctx

METHOD = FedAvg()


@pytest.fixture(params=[1, 2], ids=["alone", "two workers"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    found = Workers(linear(), request.param)
    yield found
    found.close()


def right(params: Params, examples: Examples) -> Tensor:
    logits = functional.linear(examples.x, params["weight"], params["bias"])
    return (logits.argmax(1) == examples.y).float()


def test_the_global_figures_are_means_over_the_servers_test_set(
    workers: Workers, tmp_path: Path
) -> None:
    task, federation = linear(), Toy(test=2 * CHUNK + 7)
    params = task.init(Key(1))
    evaluate = Evaluator(METHOD, federation, workers, personal=False)
    store = Store(tmp_path, record_types(METHOD))
    found = evaluate(server_ctx(task, 4), Server(params), store)
    test = federation.test
    logits = functional.linear(test.x, params["weight"], params["bias"])
    assert found.round == 4
    assert found.global_accuracy == pytest.approx(right(params, test).mean().item())
    assert found.global_loss == pytest.approx(functional.cross_entropy(logits, test.y).item())
    assert (found.personal_mean, found.personal_std, found.clients) == (None, None, 0)


@pytest.mark.parametrize("rows", [True, False])
def test_the_personal_figures_count_every_client_the_same(
    workers: Workers, tmp_path: Path, rows: bool
) -> None:
    task = linear()
    federation = Toy(pool=23, test=100, own_test=7, rows=rows)
    params = task.init(Key(1))
    evaluate = Evaluator(METHOD, federation, workers, personal=True)
    store = Store(tmp_path, record_types(METHOD))
    found = evaluate(server_ctx(task), Server(params), store)
    each = [right(params, federation.client(id).test).mean().item() for id in range(23)]
    assert found.clients == 23
    assert found.personal_mean == pytest.approx(np.mean(each))
    assert found.personal_std == pytest.approx(np.std(each))
    assert found.personal_worst_decile == pytest.approx(np.mean(sorted(each)[:2]))
    assert np.std(each) > 0.01


@pytest.mark.parametrize(
    ("accuracies", "wanted"),
    [
        ([0.5], 0.5),
        ([0.9, 0.1, 0.8], 0.1),
        ([number / 20 for number in range(20)], 0.025),
        ([number / 19 for number in range(19)], 0.0),
    ],
)
def test_the_worst_decile_is_a_tenth_of_the_clients_and_at_least_one(
    accuracies: list[float], wanted: float
) -> None:
    assert worst_decile(accuracies) == pytest.approx(wanted)


class Gaps(Toy):
    """Clients with odd ids have no test data."""

    def test_rows(self, id: int) -> np.ndarray | None:
        found = super().test_rows(id)
        return None if found is None else found[: 0 if id % 2 else None]

    def client(self, id: int):  # type: ignore[no-untyped-def]
        data = super().client(id)
        none = Examples(data.test.x[:0], data.test.y[:0])
        return replace(data, test=none) if id % 2 else data


@pytest.mark.parametrize("rows", [True, False])
def test_clients_without_test_data_are_left_out(
    workers: Workers, tmp_path: Path, rows: bool
) -> None:
    evaluate = Evaluator(METHOD, Gaps(rows=rows), workers, personal=True)
    found = evaluate(
        server_ctx(linear()),
        Server(linear().init(Key(1))),
        Store(tmp_path, record_types(METHOD)),
    )
    assert found.clients == 3


def test_without_a_server_test_set_only_clients_are_tested(
    workers: Workers, tmp_path: Path
) -> None:
    evaluate = Evaluator(METHOD, Toy(test=0), workers, personal=True)
    found = evaluate(
        server_ctx(linear()),
        Server(linear().init(Key(1))),
        Store(tmp_path, record_types(METHOD)),
    )
    assert found.global_accuracy is None and found.global_loss is None
    assert found.clients == 6 and found.personal_mean is not None


def test_only_personal_models_that_changed_are_evaluated_again(tmp_path: Path) -> None:
    task, federation = normed(), Toy(rows=True)
    method = replace(METHOD, buffers="local")
    ctx, workers = server_ctx(task), Workers(task, 1)
    evaluate = Evaluator(method, federation, workers, personal=True)
    store = Store(tmp_path, record_types(method))
    state = Server(task.init(Key(1)))
    buffers = task.buffers()
    for client in (1, 4):
        own = Local({name: t + client for name, t in buffers.items()})
        store.put(client, 1, dump(own))
    federation.asked.clear()
    first = evaluate(ctx, state, store)
    assert federation.asked == [1, 4]  # the others' test data are rows of the server's
    assert evaluate(ctx, state, store) == first
    assert federation.asked == [1, 4]
    store.put(4, 2, dump(Local({name: t + 9 for name, t in buffers.items()})))
    evaluate(ctx, state, store)
    assert federation.asked == [1, 4, 4]
    evaluate(ctx, Server(task.init(Key(2))), store)
    assert federation.asked == [1, 4, 4, 1, 4]


def test_a_personal_model_is_tested_on_its_clients_own_data(tmp_path: Path) -> None:
    """Client 2 keeps statistics of its own, which make another model of the shared one."""
    task, federation = normed(), Toy(rows=True, test=300)
    method = replace(METHOD, buffers="local")
    ctx, workers = server_ctx(task), Workers(task, 1)
    state = Server(task.init(Key(1)))
    store = Store(tmp_path, record_types(method))
    local = Local({"1.running_mean": torch.arange(8.0) - 4, "1.running_var": torch.full((8,), 0.1)})
    store.put(2, 1, dump(local))
    found = Evaluator(method, federation, workers, personal=True)(ctx, state, store)
    each = []
    for id in range(6):
        model = method.model(ctx, state, local if id == 2 else None)
        each.append(mark(task, model, federation.client(id).test).right.mean())
    assert found.personal_mean == pytest.approx(np.mean(each))
    shared = mark(task, state.params, federation.client(2).test).right.mean()
    assert each[2] != shared


def test_an_ensemble_predicts_the_weighted_mean_of_probabilities(workers: Workers) -> None:
    task, test = linear(), Toy(test=60).test
    members = (task.init(Key(1)), task.init(Key(2)))
    found = mark_all(workers, Ensemble(members, (1.0, 3.0)), test)
    one, two = (
        functional.softmax(functional.linear(test.x, m["weight"], m["bias"]), 1) for m in members
    )
    mixed = 0.25 * one + 0.75 * two
    assert np.array_equal(found.right, (mixed.argmax(1) == test.y).numpy())
    wanted = -mixed[torch.arange(60), test.y].log()
    np.testing.assert_allclose(found.loss, wanted.numpy(), rtol=1e-5)
    single = mark_all(workers, members[0], test)
    assert not np.array_equal(found.loss, single.loss)
    alone = mark_all(workers, Ensemble(members[:1], (5.0,)), test)
    np.testing.assert_allclose(alone.loss, single.loss, rtol=1e-5)


@dataclass(frozen=True)
class Mixed(FedAvg):
    """Its model is an ensemble of the global model and a fixed one."""

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Ensemble:  # type: ignore[override]
        return Ensemble((state.params, ctx.task.init(Key(8))), (0.5, 0.5))


@pytest.mark.parametrize("rows", [True, False])
def test_a_run_evaluates_ensembles(rows: bool) -> None:
    method = Mixed(clients=3)
    task, federation = linear(), Toy(rows=rows)
    summary = run(method, task, federation, rounds=2)
    model = method.model(server_ctx(task), summary.state, None)
    assert summary.accuracy["global"] == pytest.approx(
        mark(task, model, federation.test).right.mean()
    )
    assert summary.accuracy["personal_mean"] is not None


class Scaled(nn.Module):
    """A module with a parameter that has no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x * self.scale)
        return out


def test_a_parameter_without_dimensions_is_trained_sent_and_evaluated() -> None:
    summary = run(fedavg(), Task.of(Scaled(), torch.zeros(2, 5)), Toy(), rounds=2)
    assert summary.state.params["scale"].shape == () and summary.state.params["scale"] != 2
    assert summary.accuracy["personal_mean"] is not None


def figures(round: int, shared: float | None, personal: float | None) -> Evaluated:
    return Evaluated(round, shared, None, personal, None, None, 0)


def test_the_best_figures_stay_beside_the_last() -> None:
    accuracy = best({}, figures(0, 0.2, 0.5))
    accuracy = best(accuracy, figures(1, 0.6, 0.4))
    accuracy = best(accuracy, figures(2, 0.3, 0.3))
    assert accuracy["global"] == 0.3 and accuracy["personal_mean"] == 0.3
    assert accuracy["global_best"] == accuracy["best"] == 0.6
    assert accuracy["personal_best"] == 0.5 and accuracy["best_round"] == 1


def test_a_global_model_that_is_never_right_is_still_the_one_reported() -> None:
    accuracy = best({}, figures(0, 0.0, 0.5))
    assert accuracy["best"] == 0.0 and accuracy["best_round"] == 0


def test_without_a_global_figure_the_personal_one_is_best() -> None:
    accuracy = best(best({}, figures(0, None, 0.5)), figures(3, None, 0.7))
    assert accuracy["best"] == 0.7 and accuracy["best_round"] == 3


def test_training_makes_the_figures_better() -> None:
    before = run(fedavg(lr=1e-9), mlp(), Toy(), rounds=1).accuracy["global"]
    after = run(fedavg(lr=0.2, epochs=3), mlp(), Toy(), rounds=15).accuracy["global"]
    assert before is not None and after is not None
    assert after > 0.8 > before + 0.1 and not math.isnan(after)
