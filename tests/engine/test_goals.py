"""Every method trains and is judged on every task, with personal models and ensembles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer import ALGORITHMS, METHODS, Ensemble, Key, Options, Task
from gossamer.conformance.toys import small
from gossamer.data.tensors import Tensors
from gossamer.engine import Stop, check_run
from gossamer.engine.evaluate import mark
from gossamer.engine.events import Evaluated
from gossamer.engine.summary import best
from gossamer.models.sequences import char_lstm
from gossamer.report import units
from gossamer.report.runs import Headline, Run
from gossamer.task import LANGUAGE, REGRESSION
from helpers import refused

X = np.random.default_rng(0).normal(size=(160, 6)).astype(np.float32)


def data(kind: str, **division: Any) -> Tensors:
    division = {"pool": 4, "valid": 0.1, **division}
    match kind:
        case "regression":
            y: np.ndarray = 1000 + 50 * X[:, 0] - 20 * X[:, 1]
            return gs.Federation.from_arrays(X, y, task=kind, **division)
        case "multilabel":
            y = np.stack([X[:, 0] > 0, X[:, 1] + X[:, 2] > 0.5, X[:, 3] > 0.2], 1)
            return gs.Federation.from_arrays(X, y, task=kind, **division)
    tokens = np.cumsum(np.arange(160 * 9).reshape(160, 9) % 5, 1) % 5
    return gs.Federation.from_arrays(tokens[:, :-1], tokens[:, 1:], task=kind, **division)


def model(kind: str) -> nn.Module:
    if kind == "language":
        return char_lstm((8,), 5, vocabulary=5, hidden=8, layers=1, every=True)
    outputs = 1 if kind == "regression" else 3
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, outputs))


NOT_ON_LSTM = {"zerofl"}
"""It needs plain convolutions and linear layers, and says so."""
CASES = [
    (name, kind)
    for name in ALGORITHMS
    for kind in ("regression", "multilabel", "language")
    if kind != "language" or name not in NOT_ON_LSTM
]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(*case, marks=() if place % 4 == 0 else pytest.mark.slow)
        for place, case in enumerate(CASES)
    ],
)
def test_a_method_trains_on_a_task(name: str, kind: str) -> None:
    options = Options(select="valid")
    summary = gs.run(
        small(METHODS[name]), model(kind), data(kind), rounds=2, options=options, quiet=True
    )
    assert summary.failed == 0 and summary.metric != "accuracy"
    known = summary.scores["personal_mean"]
    assert known is not None and np.isfinite(known)
    assert summary.scores["best_round"] is not None and summary.scores["valid_best"] is not None
    assert summary.accuracy["global"] is None


@pytest.mark.parametrize("kind", ["regression", "multilabel", "language"])
def test_workers_and_resuming_change_nothing(kind: str, tmp_path: Path) -> None:
    method, made = small(METHODS["spafl"]), data(kind)
    task = Task.of(model(kind), made.client(0).train.x[:2], goal=kind)
    whole = gs.run(method, task, made, rounds=4, out=tmp_path / "a", quiet=True)
    two = gs.run(
        method, task, made, rounds=4, out=tmp_path / "b", options=Options(workers=2), quiet=True
    )
    assert two.state_hash == whole.state_hash and two.scores == whole.scores
    stop = Stop()
    run = gs.Run(method, task, made, rounds=4, out=tmp_path / "c")
    cut = gs.start(run, stop=stop, sinks=[Impatient(stop)])
    assert cut.interrupted and cut.rounds == 2
    again = gs.start(run, resume=True)
    assert again.state_hash == whole.state_hash and again.scores == whole.scores


class Impatient:
    """Stops a run after its second round."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop

    def emit(self, event: Any, clock: Any) -> None:
        if isinstance(event, Evaluated) and event.round == 2:
            self.stop.request()

    def close(self) -> None:
        """Has nothing to close."""


def test_learning_lowers_the_error_and_raises_what_is_explained() -> None:
    summary = gs.run(
        gs.FedAvg(clients=4, training=gs.Training(batch=8, lr=0.1)),
        model("regression"),
        data("regression"),
        rounds=8,
        quiet=True,
    )
    errors = summary.history["global_score"]
    assert errors[-1] < errors[0] / 3 and summary.scores["best"] == min(errors)
    explained = summary.metrics["r2"]
    assert explained is not None and explained > 0.8


def test_figures_of_the_whole_and_of_clients_come_from_one_pass() -> None:
    """Perplexity of a client is that of its tokens, not a mean of others' perplexities."""
    made = data("language", pool=2)
    task = Task.of(model("language"), made.client(0).train.x[:2], goal="language")
    params = task.init(Key(0))
    marks = mark(task, params, made.test)
    numbers = marks.numbers["perplexity"]
    for client in (0, 1):
        rows = made.test_rows(client)
        own = mark(task, params, made.client(client).test).numbers["perplexity"]
        assert np.allclose(numbers[rows], own)
    loss = LANGUAGE.mean_loss(marks.loss)
    assert LANGUAGE.headline.figure(numbers) == pytest.approx(np.exp(loss))


def test_an_ensemble_of_regressions_predicts_the_weighted_mean() -> None:
    task = Task.of(nn.Linear(6, 1), torch.zeros(1, 6), goal=REGRESSION.scaled([5.0], [2.0]))
    members = (task.init(Key(1)), task.init(Key(2)))
    x, y = torch.from_numpy(X[:10]), torch.arange(10.0)
    found = mark(task, Ensemble(members, (1.0, 3.0)), gs.Examples(x, y))

    def one(params: gs.Params) -> Tensor:
        return nn.functional.linear(x, params["weight"], params["bias"]).squeeze(1)

    mixed = 2 * (0.25 * one(members[0]) + 0.75 * one(members[1])) + 5
    assert np.allclose(found.numbers["mae"], (mixed - y).abs().numpy(), atol=1e-5)


def test_the_best_round_has_the_lowest_score_where_lower_is_better() -> None:
    so_far: dict[str, float | None] = {}
    for number, error in enumerate((5.0, 2.0, 3.0)):
        event = Evaluated(number, None, None, error, 0.0, error, 3, metric="mae", better="lower")
        event = Evaluated(**{**vars(event), "global_score": error})
        so_far = best(so_far, event, better="lower")
    assert so_far["best_round"] == 1 and so_far["best"] == so_far["global_best"] == 2.0


def test_a_log_of_schema_1_has_its_accuracy_as_the_score() -> None:
    event = Evaluated(1, 0.5, 1.0, None, None, None, 0)
    assert event.global_score == 0.5 and event.metric == "accuracy" and event.better == "higher"
    assert Run("old").headline == Headline("accuracy", True, True)
    assert units.score(0.5) == "0.5000"


def test_a_model_of_classes_is_refused_for_numbers() -> None:
    made = data("regression")
    with refused("regression needs an output per target"):
        task = Task.of(nn.Linear(6, 3), made.client(0).train.x[:2], goal="regression")
        few = made.client(0).train
        task.goal.check(task.logits(task.init(Key(0)), few.x[:2]), few.y[:2])


def test_a_rule_on_accuracy_needs_a_share() -> None:
    goal = gs.Goal(REGRESSION.criterion, [REGRESSION.metrics[0]], "regression")
    made = data("regression")
    task = Task.of(model("regression"), made.client(0).train.x[:2], goal=goal)
    method = small(METHODS["lotteryfl"])
    check_run(gs.Run(method, task, made, rounds=1))
    with pytest.raises(Exception, match="at most 1, such as accuracy"):
        gs.run(method, task, made, rounds=1, quiet=True)
