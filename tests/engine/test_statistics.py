"""Static batch normalisation: what torch itself would compute, of data taken evenly."""

from __future__ import annotations

import copy
import doctest
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor, nn

from gossamer import Ctx, Ensemble, Examples, FedAvg, Key, Options, Params, Task, Training, run
from gossamer.engine import Run, statistics
from gossamer.engine.evaluate import Evaluator, Model, mark
from gossamer.engine.statistics import BATCH, Calibration, calibrated, evenly, joined
from gossamer.engine.store import Store
from gossamer.engine.workers import Workers
from gossamer.methods.fedavg import Server
from gossamer.methods.parts.dense_model import Local
from gossamer.wire import dump, record_types
from helpers import INPUTS, Toy, linear, lines, mlp, normed, same, server_ctx


class Shared(nn.Module):
    """One normalisation that is used twice, and one that keeps no statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, 6)
        self.norm = nn.BatchNorm1d(6, momentum=0.3)
        self.free = nn.BatchNorm1d(6, track_running_stats=False)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm(self.first(x)).relu())
        x = self.free(self.norm(self.second(x)).relu())
        out: Tensor = self.head(x)
        return out


def shared() -> Task:
    return Task.of(Shared(), torch.zeros(2, INPUTS), start="seed")


def pictures() -> Task:
    parts = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.5)]
    more = [nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8, momentum=0.9), nn.Flatten()]
    return Task.of(
        nn.Sequential(*parts, *more, nn.Linear(32, 3)), torch.zeros(2, 3, 6, 6), start="seed"
    )


TASKS = {"twice": shared, "pictures": pictures, "plain": normed}


def inputs(task: Task, *counts: int) -> list[Tensor]:
    """Batches whose scale differs from one to the next."""
    made = []
    for index, count in enumerate(counts):
        draw = Key(3).fold(index).generator()
        made.append((index + 1) * torch.randn(count, *task.layout.input.shape, generator=draw) + 2)
    return made


def by_torch(task: Task, params: Params, batches: list[Tensor]) -> nn.Module:
    """A module that has seen the batches in training mode, without momentum or dropout."""
    module = copy.deepcopy(task.module)
    module.load_state_dict(params, strict=False)
    for part in module.modules():
        match part:
            case nn.BatchNorm1d() | nn.BatchNorm2d():
                part.momentum = None
                part.reset_running_stats()
            case nn.Dropout() | nn.Dropout2d():
                part.p = 0.0
    with torch.no_grad():
        for x in batches:
            module(x)
    return module.eval()


@pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("counts", [(40,), (40, 40, 7)])
def test_statistics_are_those_of_torch_without_momentum(make, counts: tuple[int, ...]) -> None:  # type: ignore[no-untyped-def]
    task = make()
    params, batches = task.init(Key(1)), inputs(task, *counts)
    found = calibrated(task, params, batches)
    module = by_torch(task, params, batches)
    wanted = dict(module.named_buffers())
    assert task.running_statistics and list(found) == list(params)
    for name in task.layout.buffers:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-6)
        assert found[name].dtype == params[name].dtype
        assert not torch.allclose(found[name], params[name], rtol=0.01)
    test = inputs(task, 20)[0]
    with torch.no_grad():
        torch.testing.assert_close(task.logits(found, test), module(test), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)
def test_calibrating_leaves_everything_else_alone(make) -> None:  # type: ignore[no-untyped-def]
    """Also the module behind the task: its next call in training is as if nothing had been."""
    task, other = make(), make()
    params = task.init(Key(1))
    before = {name: tensor.clone() for name, tensor in params.items()}
    (x,) = inputs(task, 30)
    found = calibrated(task, params, [x])
    assert same(params, before)
    assert all(found[name] is params[name] for name in task.layout.parameters)
    assert same(found, calibrated(task, params, [x]))
    with torch.no_grad():
        for key in (None, Key(2), None):
            one, two = ({name: tensor.clone() for name, tensor in params.items()} for _ in range(2))
            assert torch.equal(task.logits(one, x, key), other.logits(two, x, key))
            assert same(one, two)


@pytest.mark.parametrize("bare", [linear, mlp])
def test_a_model_without_batch_normalisation_is_untouched(bare) -> None:  # type: ignore[no-untyped-def]
    task = bare()
    params = task.init(Key(1))
    assert task.running_statistics == ()
    assert calibrated(task, params, inputs(task, 30)) is params
    federation, workers = Toy(), Workers(task, 1)
    calibration = Calibration(federation, workers)
    assert calibration.shared(task, params) is params
    assert calibration.own(task, params, 2) is params
    assert federation.asked == []


def test_statistics_that_are_not_kept_have_no_names() -> None:
    free = nn.Sequential(nn.BatchNorm1d(INPUTS, track_running_stats=False), nn.Linear(INPUTS, 3))
    task = Task.of(free, torch.zeros(2, INPUTS), start="seed")
    assert task.layout.batch_norm and task.running_statistics == ()
    assert shared().running_statistics == ("norm.running_mean", "norm.running_var")


def test_without_data_a_model_stays_as_it_is() -> None:
    task = normed()
    params = task.init(Key(1))
    assert same(calibrated(task, params, []), params)


# which data -------------------------------------------------------------------------------------


def test_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(statistics).failed == 0


@given(some.lists(some.integers(0, 60), max_size=30), some.integers(1, 200))
def test_clients_give_evenly_and_together_no_more_than_asked_for(
    sizes: list[int], most: int
) -> None:
    taken = evenly(sizes, most)
    assert len(taken) == len(sizes) and sum(taken) <= most
    assert all(0 <= count <= size for count, size in zip(taken, sizes, strict=True))
    level = max(taken, default=0)
    if sum(sizes) <= most:
        assert taken == sizes
    elif len([size for size in sizes if size]) > most:
        assert sum(taken) == most and level == 1
    else:
        assert taken == [min(size, level) for size in sizes]
        assert sum(min(size, level + 1) for size in sizes) > most


def test_of_too_many_clients_some_are_asked_all_over_the_pool() -> None:
    taken = np.flatnonzero(evenly([3] * 1000, 10))
    assert taken.tolist() == list(range(0, 1000, 100))


@given(some.lists(some.integers(0, 9), max_size=12), some.integers(2, 7))
def test_batches_are_the_parts_in_a_row_and_never_one_example(parts: list[int], size: int) -> None:
    total = sum(parts)
    ends = np.cumsum([0, *parts]).tolist()
    whole = torch.arange(total)
    found = list(joined([whole[start:end] for start, end in pairwise(ends)], size))
    assert torch.equal(torch.cat([whole[:0], *found]), whole)
    sizes = [len(batch) for batch in found]
    assert all(count == size for count in sizes[:-1])
    assert total < 2 or 2 <= sizes[-1] <= size + 1
    if total % size != 1:
        assert sizes == [size] * (total // size) + [total % size] * (total % size > 0)


def test_the_global_model_sees_all_clients_in_the_order_of_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, federation = normed(), Toy(pool=9, sizes=[200, 300, 250, 3, 400, 1, 2, 90, 5])
    params = task.init(Key(1))
    everything = torch.cat([federation.client(id).train.x for id in range(9)])
    assert len(everything) == 1251
    batches = [everything[:BATCH], everything[BATCH : 2 * BATCH], everything[2 * BATCH :]]
    found = Calibration(federation, Workers(task, 1)).shared(task, params)
    assert isinstance(found, dict) and same(found, calibrated(task, params, batches))
    monkeypatch.setattr(statistics, "CALIBRATION", 400)
    first = [federation.client(id).train.x[:77] for id in range(9)]
    part = Calibration(federation, Workers(task, 1)).shared(task, params)
    assert isinstance(part, dict) and len(torch.cat(first)) <= 400
    assert same(part, calibrated(task, params, [torch.cat(first)]))
    assert not same(part, found)


def test_no_statistics_depend_on_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "BATCH", 30)
    task, federation = normed(), Toy(pool=20)
    params = Ensemble((task.init(Key(1)), task.init(Key(2))), (1.0, 2.0))
    found = []
    for count in (1, 2, 3):
        workers = Workers(task, count)
        model = Calibration(federation, workers).shared(task, params)
        workers.close()
        assert isinstance(model, Ensemble) and model.weights == params.weights
        found.append(model.members)
    for members in found[1:]:
        assert all(same(one, two) for one, two in zip(members, found[0], strict=True))
    assert not same(found[0][0], params.members[0])


# in evaluations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Static(FedAvg):
    """FedAvg that keeps no running statistics, but for those it starts with."""

    bn: Literal["running", "static"] = "static"


SETTINGS = Training(batch=8, lr=0.1)
RUNNING, STATIC = Static(3, SETTINGS, bn="running"), Static(3, SETTINGS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    yield Store(tmp_path, record_types(STATIC))


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_a_static_method_is_tested_with_the_statistics_of_training_data(
    store: Store, rows: bool, count: int
) -> None:
    task, federation = normed(), Toy(rows=rows, test=300)
    state = Server({**task.init(Key(1)), "1.running_mean": torch.full((8,), 3.0)})
    ctx, workers = server_ctx(task), Workers(task, count)
    plain = Evaluator(Run(RUNNING, task, federation, rounds=10, options=Options()), workers)(
        ctx, state, store
    )
    found = Evaluator(Run(STATIC, task, federation, rounds=10, options=Options()), workers)(
        ctx, state, store
    )
    everything = torch.cat([federation.client(id).train.x for id in range(6)])
    model = calibrated(task, state.params, [everything])
    marks = mark(task, model, federation.test)
    assert found.global_accuracy == marks.numbers["accuracy"].mean()
    assert found.global_loss == pytest.approx(marks.loss.mean())
    own = [mark(task, model, federation.client(id).test) for id in range(6)]
    each = [marks.numbers["accuracy"].mean() for marks in own]
    assert found.personal_mean == pytest.approx(np.mean(each))
    assert found.global_loss != plain.global_loss
    assert found.global_accuracy != plain.global_accuracy
    assert found.personal_density is None
    workers.close()


def test_a_personal_model_is_calibrated_on_its_clients_own_data(store: Store) -> None:
    task, federation = normed(), Toy(rows=True, test=600)
    method = replace(STATIC, buffers="local")
    ctx, state = server_ctx(task), Server(task.init(Key(1)))
    local = Local({name: tensor + 5 for name, tensor in task.buffers().items()})
    store.put(2, 1, dump(local))
    evaluate = Evaluator(
        Run(method, task, federation, rounds=10, options=Options()), Workers(task, 1)
    )
    found = evaluate(ctx, state, store)
    everything = torch.cat([federation.client(id).train.x for id in range(6)])

    def accuracy(id: int) -> float:
        x = federation.client(id).train.x if id == 2 else everything
        model = calibrated(task, state.params, [x])
        return float(mark(task, model, federation.client(id).test).numbers["accuracy"].mean())

    assert found.personal_mean == pytest.approx(np.mean([accuracy(id) for id in range(6)]))
    assert found.personal_density == 1.0
    federation.asked.clear()
    assert evaluate(ctx, state, store) == found
    assert federation.asked == list(range(6))  # for the global model; the personal one stayed


def test_a_client_that_keeps_something_else_has_the_calibrated_global_model(store: Store) -> None:
    task, federation = normed(), Toy()
    ctx, state = server_ctx(task), Server(task.init(Key(1)))
    evaluate = Evaluator(
        Run(STATIC, task, federation, rounds=10, options=Options()), Workers(task, 1)
    )
    nobody = evaluate(ctx, state, store)
    store.put(2, 1, dump(Local({})))
    assert evaluate(ctx, state, store) == nobody and nobody.personal_density is None


def test_ensembles_of_a_client_are_calibrated_member_by_member() -> None:
    task, federation = normed(), Toy()
    members = (task.init(Key(1)), task.init(Key(2)))
    found: Model = Calibration(federation, Workers(task, 1)).own(
        task, Ensemble(members, (1.0, 3.0)), 4
    )
    assert isinstance(found, Ensemble) and found.weights == (1.0, 3.0)
    x = federation.client(4).train.x
    for one, member in zip(found.members, members, strict=True):
        assert same(one, calibrated(task, member, [x]))


class Shifted(Toy):
    """Inputs far from zero, which statistics of a fresh model do not fit at all."""

    def make(self, key: Key, count: int) -> Examples:
        found = super().make(key, count)
        return Examples(100 + 5 * found.x, found.y)


@dataclass(frozen=True)
class Forgetful(Static):
    """Sends running statistics, as FedAvg does, but its models have those of a fresh module."""

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return {**state.params, **ctx.task.buffers()}


def test_a_run_is_judged_by_calibrated_models_whatever_the_workers(tmp_path: Path) -> None:
    accuracy = {}
    for name, method, workers in (
        ("running", Forgetful(3, SETTINGS, bn="running"), 1),
        ("static", Forgetful(3, SETTINGS), 1),
        ("two", Forgetful(3, SETTINGS), 2),
    ):
        out = tmp_path / name
        found = run(
            method, normed(), Shifted(), rounds=8, out=out, options=Options(workers=workers)
        )
        accuracy[name] = found.accuracy["global"] or 0.0
    assert lines(tmp_path / "static" / "events.jsonl") == lines(tmp_path / "two" / "events.jsonl")
    assert accuracy["static"] > accuracy["running"] + 0.1
