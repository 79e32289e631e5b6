"""Metrics and goals on cases small enough for paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from gossamer import Key, Task
from gossamer.task import CLASSIFICATION, GOALS, LANGUAGE, MULTILABEL, REGRESSION, Goal, Metric
from gossamer.task import metrics as known
from gossamer.task.goal import goal_of
from helpers import batch_of, refused

# figures ----------------------------------------------------------------------------------------


def test_perplexity_is_the_exponential_of_the_loss_per_token() -> None:
    """Probabilities 1/2, 1/4 and 1/8 of the right tokens; the fourth token does not count."""
    shares = torch.tensor([[[0.5, 0.5], [0.25, 0.75]], [[0.875, 0.125], [0.5, 0.5]]])
    y = torch.tensor([[0, 0], [1, -100]])
    found = known.PERPLEXITY.of(shares.log(), y)
    assert found == pytest.approx(math.exp((math.log(2) + math.log(4) + math.log(8)) / 3))
    assert known.TOKEN_LOSS.of(shares.log(), y) == pytest.approx(math.log(4))
    assert known.TOKEN_ACCURACY.of(shares.log(), y) == pytest.approx(1 / 3)


def test_perplexity_of_parts_is_not_the_mean_of_their_perplexities() -> None:
    """Long examples count by their tokens, so numbers are joined before they are reduced."""
    shares = torch.tensor([[[0.5, 0.5], [0.5, 0.5]], [[0.1, 0.9], [0.5, 0.5]]])
    y = torch.tensor([[0, 0], [0, -100]])
    numbers = known.PERPLEXITY.per_example(shares.log(), y)
    whole = known.PERPLEXITY.figure(numbers)
    assert whole == pytest.approx((2 * 2 * 10) ** (1 / 3))


def test_average_precision_of_one_label() -> None:
    """Ranked: true, false, true, false: precision 1 at recall 1/2, and 2/3 at recall 1."""
    logits = torch.tensor([[4.0], [3.0], [2.0], [1.0]])
    y = torch.tensor([[1.0], [0.0], [1.0], [0.0]])
    assert known.AVERAGE_PRECISION.of(logits, y) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_average_precision_of_ties_does_not_depend_on_their_order(order: list[int]) -> None:
    logits, y = torch.zeros(3, 1), torch.tensor([[1.0], [0.0], [0.0]])[order]
    assert known.AVERAGE_PRECISION.of(logits, y) == pytest.approx(1 / 3)


def test_average_precision_leaves_out_labels_that_never_occur() -> None:
    logits = torch.tensor([[1.0, 5.0], [0.0, 5.0]])
    y = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert known.AVERAGE_PRECISION.of(logits, y) == 1.0
    assert known.AVERAGE_PRECISION.of(logits, torch.zeros(2, 2)) is None


def test_f1_of_all_labels_and_of_each() -> None:
    """Label 0: predicted 2, true 1, both 1. Label 1: predicted 1, true 2, both 1."""
    logits = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]])
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert known.F1.of(logits, y) == pytest.approx(2 * 2 / (3 + 3))
    assert known.F1_MACRO.of(logits, y) == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_figures_of_a_regression() -> None:
    """Errors 1, 0 and 2 on targets 1, 2 and 6, whose mean is 3 and squared spread 14."""
    y, predicted = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([[2.0], [2.0], [4.0]])
    assert known.MAE.of(predicted, y) == pytest.approx(1.0)
    assert known.RMSE.of(predicted, y) == pytest.approx(math.sqrt(5 / 3))
    assert known.R2.of(predicted, y) == pytest.approx(1 - 5 / 14)


def test_r2_of_constant_targets_is_not_defined() -> None:
    assert known.R2.of(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])) is None
    both = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
    assert known.R2.of(both, both) == 1.0  # of the second target alone


def test_no_examples_have_no_figure() -> None:
    assert all(each.figure(np.zeros((0, 2))) is None for each in (known.MAE, known.PERPLEXITY))


def test_a_metric_gives_numbers_for_every_example() -> None:
    wrong = Metric("wrong", lambda outputs, y: outputs.sum())
    with refused("the metric wrong gave numbers of shape .* for 2 examples"):
        wrong.of(torch.zeros(2, 3), torch.zeros(2))


@pytest.mark.parametrize("name", ["", "two words", "a-b"])
def test_a_metric_has_a_name_that_files_can_use(name: str) -> None:
    with refused("letters, digits and underscores"):
        Metric(name, lambda outputs, y: outputs)


# goals ------------------------------------------------------------------------------------------


def test_goals_have_a_headline_with_a_direction() -> None:
    found = {name: (goal.headline.name, goal.headline.better) for name, goal in GOALS.items()}
    assert found == {
        "classification": ("accuracy", "higher"),
        "regression": ("mae", "lower"),
        "multilabel": ("average_precision", "higher"),
        "language": ("perplexity", "lower"),
    }


def test_another_metric_can_be_the_headline() -> None:
    led = REGRESSION.led_by("r2")
    assert [each.name for each in led.metrics] == ["r2", "mae", "rmse"]
    with pytest.raises(KeyError, match=r"regression has no metric 'rsme'; did you mean 'rmse'\?"):
        REGRESSION.led_by("rsme")


def test_a_wrong_goal_is_refused() -> None:
    with refused("one metric or more, by different names"):
        Goal(functional.cross_entropy, [])
    with refused("no kind of task 'ranking'"):
        Goal(functional.cross_entropy, [known.ACCURACY], kind="ranking")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match=r"no task 'regresion'; did you mean 'regression'\?"):
        goal_of("regresion")


def test_a_scaled_regression_trains_in_deviations_and_is_judged_in_units() -> None:
    goal = REGRESSION.scaled([10.0], [2.0])
    y, outputs = torch.tensor([8.0, 12.0]), torch.tensor([[-1.0], [0.0]])
    assert float(goal.trained_by()(outputs, y)) == pytest.approx(0.5)
    assert goal.predictions(outputs).flatten().tolist() == [8.0, 10.0]
    assert goal.headline.of(goal.predictions(outputs), y) == pytest.approx(1.0)
    assert goal.mean_loss(goal.losses(outputs, y)) == pytest.approx(0.5)


def test_an_ensemble_mixes_what_can_be_averaged() -> None:
    two = [torch.tensor([[0.0, 2.0]]), torch.tensor([[4.0, 2.0]])]
    shares = [functional.softmax(each, -1) for each in two]
    mixed = CLASSIFICATION.mixed(two, [1.0, 3.0])
    assert torch.allclose(mixed.exp(), 0.25 * shares[0] + 0.75 * shares[1])
    assert REGRESSION.mixed(two, [1.0, 3.0]).tolist() == [[3.0, 2.0]]
    chances = torch.sigmoid(MULTILABEL.mixed(two, [1.0, 3.0]))
    assert torch.allclose(chances, 0.25 * torch.sigmoid(two[0]) + 0.75 * torch.sigmoid(two[1]))


def test_shares_are_accuracies_or_the_nearest_thing() -> None:
    logits = torch.tensor([[2.0, 1.0], [2.0, 1.0]])
    assert CLASSIFICATION.share(logits, torch.tensor([0, 1])) == (0.5, 0.5)
    tokens = logits[None].expand(3, 2, 2)
    assert LANGUAGE.share(tokens, torch.tensor([[0, 1]]).expand(3, 2))[0] == 0.5
    assert REGRESSION.share(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0])) == (1.0, 0.0)
    mae = Goal(functional.mse_loss, [known.MAE], "regression")
    with refused("compares models by a figure that is at most 1"):
        mae.share(torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize(
    ("kind", "outputs", "y"),
    [
        ("language", torch.zeros(2, 3), torch.zeros(2, 5, dtype=torch.int64)),
        ("multilabel", torch.zeros(2, 3), torch.zeros(2, 4)),
        ("regression", torch.zeros(2, 3), torch.zeros(2)),
        ("regression", torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)),
        ("classification", torch.zeros(2, 3), torch.zeros(2)),
    ],
)
def test_outputs_that_do_not_fit_are_refused(
    kind: str, outputs: torch.Tensor, y: torch.Tensor
) -> None:
    with refused(f"{kind} needs .*; the model gives outputs of shape"):
        GOALS[kind].check(outputs, y)


# tasks ------------------------------------------------------------------------------------------


def test_a_task_trains_by_its_goal_and_copies_keep_it() -> None:
    task = Task.of(nn.Linear(2, 1), torch.zeros(1, 2), goal="regression")
    params = task.init(Key(0))
    x, y = torch.ones(4, 2), torch.full((4,), 3.0)
    expected = functional.mse_loss(task.logits(params, x).squeeze(1), y)
    assert torch.equal(task.loss(params, batch_of(x, y)), expected)
    assert task.copy().goal is task.goal


def test_a_criterion_of_the_users_keeps_the_metrics() -> None:
    def smooth(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, y, label_smoothing=0.1)

    task = Task.of(nn.Linear(2, 3), torch.zeros(1, 2), criterion=smooth)
    assert task.criterion is smooth and task.goal.headline is known.ACCURACY
