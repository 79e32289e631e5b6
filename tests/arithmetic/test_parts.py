"""Large batches are computed in parts, with the gradients of the whole batch."""

from __future__ import annotations

import pytest
import torch
from arithmetic_cases import (
    KERNELS,
    LARGE,
    WAYS,
    autograd,
    close,
    draw,
    examples,
    plan_of,
    sequence,
)
from torch import nn

from gossamer import Task, Training
from gossamer.arithmetic.model import Model
from gossamer.arithmetic.native import Native
from helpers import same

pytestmark = KERNELS


def module(*norm: nn.Module) -> nn.Module:
    convolution = nn.Conv2d(2, 24, 5, padding=2)
    return sequence(convolution, *norm, nn.ReLU(), nn.MaxPool2d(2), shape=LARGE)


def memory(parts: nn.Module, batch: int) -> int:
    """Bytes that a step on a batch needs."""
    layout, plan = plan_of(parts, LARGE)
    native = Native(plan)
    native.gradients(draw(layout, 1.0)[0], examples(LARGE, batch), {}, False)
    return native.bytes


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch", [47, 48, 63, 64, 100])
def test_gradients_and_outputs_are_those_of_the_whole_batch(batch: int, way: type[Native]) -> None:
    parts = module(nn.GroupNorm(4, 24))
    layout, plan = plan_of(parts, LARGE)
    params, masks = draw(layout, 0.3)
    data = examples(LARGE, batch)
    loss, exact, _ = autograd(parts, params, data)
    found_loss, found = way(plan).gradients(params, data, masks, True)
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert all(close(grad, exact[name]) for name, grad in found.items())
    with torch.no_grad():
        outputs = torch.func.functional_call(parts.eval(), params, data.x)
    assert close(way(plan).outputs(params, data.x), outputs.double())


def test_a_step_is_that_of_the_gradients_of_all_parts() -> None:
    task = Task.of(module(), torch.zeros(2, *LARGE), arithmetic="native", start="seed")
    for training in (Training(), Training(momentum=0.9, weight_decay=0.01)):
        params, masks = draw(task.layout, 0.3)
        model = Model(task, task.own(params), masks)
        params = task.own(params)
        batch = examples(LARGE, 100)
        loss, grads = task.gradients(params, batch, masks)
        training.update(params, grads, [], 0.1)
        assert float(model.step(batch, training, 0.1)) == float(loss)
        assert same(model.params, params)


def test_a_label_of_the_last_part_that_is_no_class_is_refused_before_anything_changes() -> None:
    task = Task.of(module(), torch.zeros(2, *LARGE), arithmetic="native", start="seed")
    params, _ = draw(task.layout, 1.0)
    model, batch = Model(task, task.own(params)), examples(LARGE, 100)
    batch.y[-1] = 3
    with pytest.raises(IndexError, match="not one of the model's 3 classes"):
        model.step(batch, Training(), 0.1)
    assert same(model.params, task.own(params))


def test_a_large_batch_needs_the_memory_of_a_part() -> None:
    assert memory(module(), 200) < 1.3 * memory(module(), 47)


@pytest.mark.parametrize("step", [nn.BatchNorm2d(24), nn.Dropout(0.2)])
def test_steps_that_look_at_the_whole_batch_get_it(step: nn.Module) -> None:
    assert memory(module(step), 200) > 3 * memory(module(step), 47)
