"""SpaFL's rules against the numbers of its specification, in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from spafl_cases import (
    GRADIENT,
    INPUT,
    TAU,
    WEIGHT,
    close,
    exact,
    feed,
    layer,
    merged,
    spafl,
    start,
    weights,
)
from torch.nn import functional

from gossamer import Batch, Key, accounting
from gossamer.methods.as_published.spafl_training import (
    Pruning,
    distance,
    gradient_through_mask,
    long_tail,
)
from gossamer.methods.spafl import mask_of, pruned, row_sum
from helpers import mlp, server_ctx

# masks ------------------------------------------------------------------------------------------


def test_the_mask_of_the_worked_example() -> None:
    method, task = spafl(), layer()
    ctx, work = start(method, task, exact(TAU))
    assert work.model.masks["weight"].tolist() == [[True, True, False], [True, False, True]]
    assert accounting.density(task.layout, method.finish(ctx, work).masks) == pytest.approx(2 / 3)
    close(
        functional.linear(exact(INPUT), pruned(weights(work), work.model.factors)["weight"]),
        [0.01, -0.22],
    )


def test_a_weight_at_its_threshold_is_masked() -> None:
    weight = exact([[0.25, -0.25, 0.2500001, 0.0]])
    assert mask_of(weight, exact([0.25]), False).tolist() == [[False, False, True, False]]
    assert mask_of(weight, exact([0.0]), False).tolist() == [[True, True, True, False]]
    even = exact([[0.5, -0.25, 0.0, 0.25]])
    assert mask_of(even, exact([0.25]), True).tolist() == [[False] * 4]
    assert mask_of(even, exact([0.2499999]), True).tolist() == [[True] * 4]


def test_structured_masks_take_the_mean_magnitude_of_a_row() -> None:
    weight, tau = exact(WEIGHT), exact([0.3, 0.35])
    close(row_sum(weight.abs()) / 3, [0.26666667, 0.43333333])
    assert mask_of(weight, tau, True).tolist() == [[False] * 3, [True] * 3]
    _, work = start(spafl(structured=True), layer(), tau)
    assert work.model.masks["weight"].tolist() == [[False] * 3, [True] * 3]
    assert work.model.masks["weight"].double().mean() == 0.5


@pytest.mark.parametrize(
    ("survivors", "inclusive", "resets"),
    [(1, False, True), (2, False, False), (2, True, True), (3, True, False), (0, False, True)],
)
def test_a_layer_with_next_to_nothing_left_starts_again(
    survivors: int, inclusive: bool, resets: bool
) -> None:
    weight = [[0.9] * survivors + [0.1] * (200 - survivors)]
    method = spafl(**({"reset_inclusive": True} if inclusive else {}))
    ctx, work = start(method, layer(weight, (1.0,)), exact([0.5]))
    assert work.thresholds.tolist() == [0.0 if resets else 0.5]
    assert int(work.model.masks["weight"].sum()) == (200 if resets else survivors)
    assert work.resets == resets
    done = method.finish(ctx, work)
    assert done.metrics["resets"] == resets and done.local is not None
    assert done.local.known.tolist() == [0.5]  # what others changed is counted from what was told


def test_no_layer_starts_again_below_a_reset_density_of_zero() -> None:
    _, work = start(spafl(reset_density=0.0), layer([[0.1] * 200], (1.0,)), exact([0.5]))
    assert work.thresholds.tolist() == [0.5] and not work.model.masks["weight"].any()


# a step of the weights --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, [[0.49, -0.22, 0.1], [-0.38, 0.3, -0.54]]),
        ({"overwrite_masked": True}, [[0.49, -0.22, 0.0], [-0.38, 0.0, -0.54]]),
        (
            {"mask_grad_to_weight": True},  # G (p + |W|) = [[.15, .24, .03], [-.28, -.12, -.96]]
            [[0.485, -0.224, 0.097], [-0.372, 0.312, -0.504]],
        ),
    ],
)
def test_a_step_of_the_weights(changes: dict[str, Any], wanted: list[list[float]]) -> None:
    method = spafl(**changes)
    ctx, work = start(method, layer(), exact(TAU))
    feed(method, ctx, work, [0])
    close(weights(work)["weight"], wanted)
    assert work.thresholds.tolist() == list(TAU)


def test_the_gradient_through_the_mask() -> None:
    weight, gradient = exact(WEIGHT), exact(GRADIENT)
    kept = mask_of(weight, exact(TAU), False).double()
    through = gradient_through_mask(gradient, weight, None, False)
    close(gradient * kept + through, [[0.15, 0.24, 0.03], [-0.28, -0.12, -0.96]])


def test_the_gradient_through_a_structured_mask() -> None:
    """The released FMNIST layer gives the same numbers."""
    wanted = [[0.01333333, -0.01333333, 0.01333333], [-0.30666667, -0.29333333, -0.70666667]]
    method = spafl(structured=True, mask_grad_to_weight=True)
    ctx, work = start(method, layer(), exact([0.3, 0.35]))
    feed(method, ctx, work, [0])
    close((exact(WEIGHT) - weights(work)["weight"]) / 0.1, wanted)


@pytest.mark.parametrize(("clamp", "weight", "tau"), [(True, 1.0, 0.0), (False, 1.03, -0.02)])
def test_weights_and_thresholds_are_kept_in_range(clamp: bool, weight: float, tau: float) -> None:
    method = spafl(alpha=0.0, **({} if clamp else {"clamp": False}))
    ctx, work = start(method, layer([[0.98]], (-1.0,)), exact([0.01]))
    feed(method, ctx, work, [0], x=[0.5])
    close(weights(work)["weight"], [[weight]])
    ctx, work = start(method, layer([[0.6]], (-1.0,)), exact([0.01]))
    feed(method, ctx, work, [1], x=[0.5])
    close(work.thresholds, [tau])


def test_a_threshold_never_passes_one() -> None:
    method = spafl(alpha=10.0, lr=1.0)
    ctx, work = start(method, layer(), exact(TAU))
    feed(method, ctx, work, [1])
    assert work.thresholds.tolist() == [1.0, 1.0]


# a step of the thresholds -----------------------------------------------------------------------


def test_the_gradient_of_the_thresholds() -> None:
    weight, gradient = exact(WEIGHT), exact(GRADIENT)
    close(-row_sum(gradient * weight), [-0.04, -0.32])
    tail = long_tail(distance(weight, exact(TAU), structured=False).abs())
    close(tail, [[0.6, 1.8, 1.8], [1.8, 1.8, 1.0]])
    close(-row_sum(gradient * weight * tail), [-0.012, -0.288])
    dead = Pruning(bug_compat="cifar")._slope(weight, exact(TAU))
    assert dead is not None
    close(-row_sum(gradient * weight * dead), [0, 0])


@pytest.mark.parametrize(
    ("far", "slope"), [(0.0, 2.0), (0.4, 0.4), (0.41, 0.4), (1.0, 0.4), (1.01, 0.0)]
)
def test_the_long_tail(far: float, slope: float) -> None:
    for sign in (-1, 1):
        found = Pruning(ste="longtail")._slope(exact([[2.0 + sign * far]]), exact([2.0]))
        assert found is not None
        close(found, [[slope]])


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, [0.15486071, 0.38270469]),
        ({"reg_step": "eq5"}, [0.15415, 0.38235]),
        ({"reg_step": "eq7"}, [0.16260708, 0.38904688]),
        ({"regulariser": "inv"}, [0.17, 0.38693827]),
        ({"regulariser": "inv_l1"}, [0.154 + 0.00277778, 0.382 + 0.00277778]),
        ({"alpha": 0.0}, [0.154, 0.382]),
        ({"alpha": 0.0, "eta_tau": 0.5}, [0.17, 0.51]),
        ({"alpha": 0.0, "ste": "longtail"}, [0.1512, 0.3788]),
        (
            {"bug_compat": "cifar"},
            [0.15 + 0.001 * math.exp(-0.15), 0.35 + 0.001 * math.exp(-0.35)],
        ),
        ({"bug_compat": "fmnist"}, [0.15486071, 0.38270469]),
    ],
)
def test_a_step_of_the_thresholds(changes: dict[str, Any], wanted: list[float]) -> None:
    method = spafl(**changes)
    ctx, work = start(method, layer(), exact(TAU))
    feed(method, ctx, work, [1])
    close(work.thresholds, wanted)
    assert weights(work)["weight"].tolist() == exact(WEIGHT).tolist()


def test_the_gradients_of_the_regularisers() -> None:
    tau = exact(TAU)
    close(Pruning(regulariser="inv").regulariser_gradient(tau), [-16, -4.93827160])
    close(Pruning(regulariser="inv_l1").regulariser_gradient(tau), [-2.77777778, -2.77777778])


@pytest.mark.parametrize("structured", [False, True])
def test_structured_masks_leave_the_gradient_of_thresholds_as_it_is(structured: bool) -> None:
    method = spafl(structured=structured, alpha=0.0)
    ctx, work = start(method, layer(), exact([0.3, 0.35]))
    feed(method, ctx, work, [1])
    close((exact([0.3, 0.35]) - work.thresholds) / 0.1, [-0.04, -0.32])


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, [0.15971724, 0.4153867]),
        ({"momentum": 0.9}, [0.16409188, 0.44482092]),
        ({"momentum_tau": 0.9}, [0.16409188, 0.44482092]),
        ({"momentum": 0.9, "momentum_tau": 0.0}, [0.15971724, 0.4153867]),
        ({"tau_steps": "once"}, [0.15486071, 0.38270469]),  # the mean of two equal gradients
        ({"tau_steps": "once", "reg_step": "eq7"}, [0.16260708, 0.38904688]),
    ],
)
def test_two_steps_of_the_thresholds(changes: dict[str, Any], wanted: list[float]) -> None:
    method = spafl(**changes)
    ctx, work = start(method, layer(), exact(TAU))
    feed(method, ctx, work, [2, 3], per_epoch=2)
    close(work.thresholds, wanted)


def test_one_step_a_round_takes_the_mean_gradient() -> None:
    """Also where a job is cut short and has fewer batches than an epoch."""
    method = spafl(tau_steps="once", alpha=0.0)
    ctx, work = start(method, layer(), exact(TAU))
    feed(method, ctx, work, [2], per_epoch=2)
    assert work.thresholds.tolist() == list(TAU)  # waits for the last batch
    feed(method, ctx, work, [3], x=[0.3, 0.2, 0.1], per_epoch=2)
    # h of the second batch: -(.15 - .04 + .01) and 2 (-.12 + .06 - .06).
    close(work.thresholds, [0.15 + 0.1 * (0.04 + 0.12) / 2, 0.35 + 0.1 * (0.32 + 0.24) / 2])
    ctx, work = start(method, layer(), exact(TAU))
    for step in range(2):
        place = (step, 2, 0, 0.4, 5)  # two batches of five
        labels = torch.zeros(1, dtype=torch.int64)
        method.step(ctx, work, Batch(exact([INPUT]), labels, Key(0), *place))
    close(work.thresholds, [0.154, 0.382])


def test_the_strength_of_the_regulariser_over_rounds() -> None:
    """The authors' code begins with a logistic factor: .0067, .9933 and 1 in the first rounds."""
    factors = {
        "none": [1.0, 1.0, 1.0],
        "first": [0.00669285, 1.0, 1.0],
        "logistic": [0.00669285, 0.99330715, 0.99999969],
    }
    for warmup, wanted in factors.items():
        found = [Pruning(1.0, reg_warmup=warmup).strength(t, 1.0) for t in (1, 2, 3)]
        assert found == pytest.approx(wanted, abs=1e-8)
    assert Pruning(0.3, reg_warmup="logistic").strength(10**6, 1.0) == 0.3
    method = spafl(reg_warmup="logistic")
    for round, factor in ((1, 0.00669285), (2, 0.99330715)):
        ctx, work = start(method, layer(), exact(TAU), round)
        feed(method, ctx, work, [1])
        close(
            work.thresholds,
            [0.154 + factor * 0.001 * math.exp(-0.15), 0.382 + factor * 0.001 * math.exp(-0.35)],
        )


def test_the_regulariser_stops_where_little_is_left() -> None:
    """The mean density of the example is two thirds, to be compared with both sides of it."""
    for limit, stops in ((0.66, False), (0.67, True)):
        for step, drift in (("loss", 0.00086071), ("eq7", 0.00860708)):
            method = spafl(reg_off_density=limit, reg_step=step)
            ctx, work = start(method, layer(), exact(TAU))
            feed(method, ctx, work, [1])
            close(work.thresholds[:1], [0.154 + (0 if stops else drift)])
    assert Pruning(reg_off_density=0.5).strength(1, 0.5) == 0  # inclusive
    assert Pruning(reg_off_density=0.0).strength(1, 0.0) > 0


def test_layers_count_alike_in_the_density_that_stops_the_regulariser() -> None:
    method, task = spafl(reg_off_density=0.5), mlp()
    ctx, work = start(method, task, torch.zeros(11))
    first, last = task.layout.prunable
    assert task.layout[first].count > task.layout[last].count
    work.densities = {first: 1.0, last: 0.0}
    assert method.pruning._strength(ctx, work) == 0
    work.densities = {first: 1.0, last: 0.1}
    assert method.pruning._strength(ctx, work) == 0.01
    assert method.finish(ctx, work).metrics["layer_density"] == 1
    work.active = {"a": torch.ones(90, dtype=torch.bool), "b": torch.zeros(10, dtype=torch.bool)}
    assert method.finish(ctx, work).metrics["layer_density"] == 0.5


def test_the_server_takes_the_plain_mean() -> None:
    method, task = spafl(), layer()
    first = method.init(server_ctx(task))
    answers = {0: torch.tensor([0.1, 0.3]), 7: torch.tensor([0.2, 0.1])}
    found = merged(method, task, first, answers)
    torch.testing.assert_close(found.history, torch.tensor([[0.0, 0.0], [0.15, 0.2]]))
