"""Accuracy against figures made by hand; nothing is computed twice."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gossamer import Ctx, Data, Ensemble, Examples, FedAvg, Key, Options, Params, Result, Task, run
from gossamer.engine import Run
from gossamer.engine.accuracies import BINS, histogram, worst_decile
from gossamer.engine.evaluate import (
    CHUNK,
    Evaluator,
    _Examples,
    density,
    evaluated_clients,
    mark,
    mark_all,
)
from gossamer.engine.store import Store
from gossamer.engine.workers import Workers
from gossamer.methods.fedavg import Server
from gossamer.methods.parts.dense_model import Local, Up, Work
from gossamer.wire import dump, record_types
from helpers import INPUTS, Toy, fedavg, linear, mlp, server_ctx

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
    evaluate = Evaluator(
        Run(METHOD, task, federation, rounds=10, options=Options(personal=False)), workers
    )
    store = Store(tmp_path, record_types(METHOD))
    found = evaluate(server_ctx(task, 4), Server(params), store)
    test = federation.test
    logits = functional.linear(test.x, params["weight"], params["bias"])
    assert found.round == 4
    assert found.global_accuracy == pytest.approx(right(params, test).mean().item())
    assert found.global_loss == pytest.approx(functional.cross_entropy(logits, test.y).item())
    assert (found.personal_mean, found.personal_std, found.clients) == (None, None, 0)
    assert found.personal_histogram is None and found.personal_densities is None


@pytest.mark.parametrize("rows", [True, False])
def test_the_personal_figures_count_every_client_the_same(
    workers: Workers, tmp_path: Path, rows: bool
) -> None:
    task = linear()
    federation = Toy(pool=23, test=100, own_test=7, rows=rows)
    params = task.init(Key(1))
    evaluate = Evaluator(Run(METHOD, task, federation, rounds=10, options=Options()), workers)
    store = Store(tmp_path, record_types(METHOD))
    found = evaluate(server_ctx(task), Server(params), store)
    each = [right(params, federation.client(id).test).mean().item() for id in range(23)]
    assert found.clients == 23
    assert found.personal_mean == pytest.approx(np.mean(each))
    assert found.personal_std == pytest.approx(np.std(each))
    assert found.personal_worst_decile == pytest.approx(np.mean(sorted(each)[:2]))
    assert found.personal_histogram == histogram(each) and sum(histogram(each)) == 23
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


def test_the_histogram_counts_every_client_in_one_part_of_its_accuracy() -> None:
    """A part has its lower end, whatever the fraction it comes from; the last has both."""
    assert histogram([0.0, 0.049, 0.05, 0.95, 1.0]) == [2, 1, *[0] * 16, 0, 2]
    for examples in range(1, 201):
        for right in range(examples + 1):
            wanted = min(BINS * right // examples, BINS - 1)
            assert histogram([right / examples])[wanted] == 1


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
    evaluate = Evaluator(
        Run(METHOD, linear(), Gaps(rows=rows), rounds=10, options=Options()), workers
    )
    found = evaluate(
        server_ctx(linear()),
        Server(linear().init(Key(1))),
        Store(tmp_path, record_types(METHOD)),
    )
    assert found.clients == 3


def test_without_a_server_test_set_only_clients_are_tested(
    workers: Workers, tmp_path: Path
) -> None:
    evaluate = Evaluator(Run(METHOD, linear(), Toy(test=0), rounds=10, options=Options()), workers)
    found = evaluate(
        server_ctx(linear()),
        Server(linear().init(Key(1))),
        Store(tmp_path, record_types(METHOD)),
    )
    assert found.global_accuracy is None and found.global_loss is None
    assert found.clients == 6 and found.personal_mean is not None


def test_an_ensemble_predicts_the_weighted_mean_of_probabilities(workers: Workers) -> None:
    task, test = linear(), Toy(test=60).test
    members = (task.init(Key(1)), task.init(Key(2)))
    found = mark_all(workers, Ensemble(members, (1.0, 3.0)), test)
    one, two = (
        functional.softmax(functional.linear(test.x, m["weight"], m["bias"]), 1) for m in members
    )
    mixed = 0.25 * one + 0.75 * two
    assert np.array_equal(found.numbers["accuracy"], (mixed.argmax(1) == test.y).numpy())
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
        mark(task, model, federation.test).numbers["accuracy"].mean()
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
    summary = run(fedavg(), Task.of(Scaled(), torch.zeros(2, 5), start="seed"), Toy(), rounds=2)
    assert summary.state.params["scale"].shape == () and summary.state.params["scale"] != 2
    assert summary.accuracy["personal_mean"] is not None


def halved(task: Task, key: Key) -> Params:
    """Parameters with every other row of the prunable ones zero."""
    params = task.init(key)
    for name in task.layout.prunable:
        params[name][::2] = 0
    return params


def test_density_is_the_share_of_prunable_weights_that_are_not_zero() -> None:
    task = mlp()
    dense, half = task.init(Key(1)), halved(task, Key(1))
    kept = 4 * 5 + 1 * 8
    assert density(task.layout, dense) == 1.0
    assert density(task.layout, half) == kept / (5 * 8 + 8 * 3)
    assert density(task.layout, Ensemble((dense, half), (1.0, 1.0))) == (64 + kept) / 128
    bare = Task.of(nn.Linear(5, 3), torch.zeros(2, 5), prunable=lambda leaf: False, start="seed")
    assert density(bare.layout, bare.init(Key(1))) == 1.0


@dataclass(frozen=True)
class Kept:
    params: Params


@dataclass(frozen=True)
class Alone(FedAvg):
    """Its model is what a client kept, and the server's for one that kept nothing."""

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Kept]:  # type: ignore[override]
        return Result(Up(work.params), Kept(work.params))

    def model(self, ctx: Ctx, state: Server, local: Kept | None) -> Params:  # type: ignore[override]
        return local.params if local else state.params


@pytest.mark.parametrize("rows", [True, False])
def test_the_personal_density_counts_every_client(
    workers: Workers, tmp_path: Path, rows: bool
) -> None:
    """Six clients, three without test data; two keep a model, one of them half as dense."""
    task = linear()
    method, federation = Alone(), Gaps(rows=rows)
    store = Store(tmp_path, record_types(method))
    state = Server(task.init(Key(1)))
    evaluate = Evaluator(Run(method, task, federation, rounds=10, options=Options()), workers)
    assert evaluate(server_ctx(task), state, store).personal_density is None
    store.put(1, 1, dump(Kept(halved(task, Key(2)))))
    store.put(2, 1, dump(Kept(task.init(Key(3)))))
    found = evaluate(server_ctx(task), state, store)
    assert found.personal_density == pytest.approx((5 + 1 / 3) / 6)
    assert evaluate(server_ctx(task), state, store) == found
    without = Evaluator(
        Run(method, task, federation, rounds=10, options=Options(personal=False)), workers
    )
    assert without(server_ctx(task), state, store).personal_density is None


@pytest.mark.parametrize("rows", [True, False])
def test_without_the_global_model_personal_figures_are_the_same(
    workers: Workers, tmp_path: Path, rows: bool
) -> None:
    task = linear()
    method, federation = Alone(), Toy(rows=rows)
    store = Store(tmp_path, record_types(method))
    store.put(1, 1, dump(Kept(task.init(Key(2)))))
    state = Server(task.init(Key(1)))
    whole, part = (
        Evaluator(
            Run(method, task, federation, rounds=10, options=Options(global_model=wanted)), workers
        )(server_ctx(task), state, store)
        for wanted in (True, False)
    )
    assert whole.global_accuracy is not None
    assert part == replace(
        whole, global_accuracy=None, global_score=None, global_loss=None, global_metrics={}
    )


def test_training_makes_the_figures_better() -> None:
    before = run(fedavg(lr=1e-9), mlp(), Toy(), rounds=1).accuracy["global"]
    after = run(fedavg(lr=0.2, epochs=3), mlp(), Toy(), rounds=15).accuracy["global"]
    assert before is not None and after is not None
    assert after > 0.8 > before + 0.1 and not math.isnan(after)


# samples and memory -------------------------------------------------------------------------------


def test_a_large_pool_is_evaluated_by_a_sample_that_stays_the_same(
    workers: Workers, tmp_path: Path
) -> None:
    task, federation = linear(), Toy(pool=23)
    what = Run(METHOD, task, federation, rounds=10, options=Options(eval_clients=5))
    evaluate = Evaluator(what, workers)
    store = Store(tmp_path, record_types(METHOD))
    params = task.init(Key(1))
    first = evaluate(server_ctx(task, 1), Server(params), store)
    asked = set(federation.asked)
    assert first.clients == 5 and len(asked) == 5
    chosen = [client.id for client in evaluated_clients(what)]
    assert set(chosen) == asked and chosen == sorted(chosen)
    each = [right(params, federation.client(id).test).mean().item() for id in chosen]
    assert first.personal_mean == pytest.approx(np.mean(each))
    again = evaluate(server_ctx(task, 2), Server(params), store)
    assert replace(again, round=1) == first


def test_a_sample_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for most, said in ((4, 1), (6, 0), (0, 0)):
        caplog.clear()
        options = Options(workers=1, eval_clients=most)
        run(fedavg(), linear(), Toy(pool=6), rounds=2, options=options)
        assert caplog.text.count("a sample of 4 of 6 clients; `eval_clients=0`") == said


def test_what_is_cached_of_clients_is_no_view_of_all_their_data() -> None:
    """A tensor made of a part of a NumPy array does not tell that it keeps the whole array."""
    arrays: list[weakref.ref[np.ndarray]] = []

    class Views(Toy):
        def client(self, id: int) -> Data:
            whole = np.zeros((1000, INPUTS), np.float32)
            arrays.append(weakref.ref(whole))
            part = Examples(torch.from_numpy(whole[:10]), torch.zeros(10, dtype=torch.int64))
            return Data(part, part, part)

    kept = _Examples(Views())
    for client in range(6):
        assert len(kept.test(client)) == 10
    assert kept._bytes == 6 * 2 * 10 * (4 * INPUTS + 8)
    assert [array() is None for array in arrays] == [True] * 6
