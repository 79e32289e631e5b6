"""Whole training steps: packed weights have the bits of dense ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from arithmetic_cases import KERNELS, NETS, draw, examples, net
from torch import Tensor

from gossamer import Key, Params, Task, Training
from gossamer.arithmetic.choice import Arithmetic
from gossamer.arithmetic.model import Model
from gossamer.core import Masks
from gossamer.optim import Velocity
from helpers import same

pytestmark = KERNELS
BATCHES = (10, 10, 7, 16, 3, 20)
"""The last ones of a job are smaller or larger; the full ones decide how all are computed."""
FULL = (3, 10, 20, 37)
RATE = 0.05
TRAININGS = {
    "plain": Training(),
    "momentum": Training(momentum=0.9),
    "weight decay": Training(momentum=0.9, weight_decay=0.01),
}


def start(name: str, arithmetic: Arithmetic = "native") -> tuple[Task, Params, Masks]:
    task = net(name, arithmetic)
    params, masks = draw(task.layout, 0.3)
    return task, task.own(params), masks


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("kind", TRAININGS)
def test_packed_steps_have_the_bits_of_gradients_and_update(name: str, kind: str) -> None:
    shape, training = NETS[name][1], TRAININGS[kind]
    for full in FULL:
        task, params, masks = start(name)
        model = Model(task, {name: tensor.clone() for name, tensor in params.items()}, masks)
        velocity: Velocity = []
        for size in (full, *BATCHES):
            batch = replace(examples(shape, size, key=Key(size)), full=full)
            loss, grads = task.gradients(params, batch, masks)
            training.update(params, grads, velocity, RATE)
            assert float(model.step(batch, training, RATE)) == float(loss)
        assert same(model.params, params)
        for packed, dense in zip(model.velocity, velocity, strict=True):
            assert packed is dense or torch.equal(packed, dense)
        assert not any(torch.any(model.params[name][~mask]) for name, mask in masks.items())


def nothing(model: Model, number: int) -> None:
    """Leaves the model alone between steps."""


def run(
    name: str,
    arithmetic: Arithmetic,
    training: Training,
    between: Callable[[Model, int], None] = nothing,
    prox: float = 0.0,
) -> Model:
    """Some steps of a model, with something done before each."""
    task, params, masks = start(name, arithmetic)
    anchor = {name: tensor.clone() for name, tensor in params.items()}
    model = Model(task, params, masks)
    for number, size in enumerate(BATCHES):
        between(model, number)
        batch = examples(NETS[name][1], size, key=Key(size))
        model.step(batch, training, RATE, prox, anchor if prox else None)
    return model


def agree(left: Model, right: Model, tolerance: float = 1e-4) -> bool:
    """Equal parameters and momentum, but for roundings."""
    pairs = [(left.params[name], right.params[name]) for name in left.params]
    for one, other in zip(left.velocity, right.velocity, strict=True):
        if one is not None and other is not None:
            pairs.append((one, other))
    return all(torch.allclose(one, other, atol=tolerance, rtol=tolerance) for one, other in pairs)


def other_masks(model: Model, number: int) -> None:
    """Every second step moves the masks, as methods that prune and grow do."""
    if number % 2 == 0:
        return
    _, masks = draw(model.task.layout, 0.3, seed=number)
    for name, velocity in zip(model.task.layout.parameters, model.velocity, strict=True):
        if name in masks:
            model.params[name].mul_(masks[name])
            if velocity is not None:
                velocity.mul_(masks[name])
    model.masks = masks


def freeze(model: Model, number: int) -> None:
    """Half of the weights of the first layer never change."""
    name = next(iter(model.masks))
    fixed = torch.zeros(model.params[name].shape, dtype=torch.bool)
    fixed.view(-1)[::2] = True
    model.fixed = {name: fixed}


SMOOTH = ("mlp", "strided", "double softmax", "pre-activation")


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(
    "training",
    [
        Training(momentum=0.9, weight_decay=0.01),
        Training(momentum=0.5, clip=0.1),
        Training(weight_decay=0.1, clip=1000.0),
    ],
)
@pytest.mark.parametrize(
    ("between", "prox"),
    [(nothing, 0.0), (nothing, 0.3), (freeze, 0.0), (freeze, 0.3), (other_masks, 0.0)],
)
def test_steps_agree_with_torch(
    name: str, training: Training, between: Callable[[Model, int], None], prox: float
) -> None:
    native, torches = (run(name, way, training, between, prox) for way in ("native", "torch"))
    assert native._native is not None
    assert torches._native is None
    assert agree(native, torches)


def test_moving_masks_have_the_bits_of_gradients_and_update() -> None:
    training = Training(momentum=0.9, weight_decay=0.01)
    task, params, masks = start("residual")
    velocity: Velocity = []
    for number, size in enumerate(BATCHES):
        if number % 2:
            _, masks = draw(task.layout, 0.3, seed=number)
            for name, held in zip(task.layout.parameters, velocity, strict=True):
                if name in masks:
                    params[name].mul_(masks[name])
                    assert held is not None
                    held.mul_(masks[name])
        batch = examples(NETS["residual"][1], size, key=Key(size))
        training.update(params, task.gradients(params, batch, masks).grads, velocity, RATE)
    assert same(run("residual", "native", training, other_masks).params, params)


def test_fixed_weights_never_change() -> None:
    _, before, _ = start("strided")
    model = run("strided", "native", Training(momentum=0.9, weight_decay=0.1), freeze)
    ((name, fixed),) = model.fixed.items()
    assert torch.equal(model.params[name][fixed], before[name][fixed])
    assert not torch.equal(model.params[name][~fixed], before[name][~fixed])


def test_a_pull_without_an_anchor_is_none() -> None:
    task, params, masks = start("mlp")
    batch = examples((9,), 10)
    models = [Model(task, task.own(params), masks) for _ in range(2)]
    models[0].step(batch, Training(), RATE, prox=0.5, anchor=None)
    models[1].step(batch, Training(), RATE)
    assert same(models[0].params, models[1].params)


def test_every_anchor_is_read_even_at_the_address_of_the_last() -> None:
    task, params, masks = start("mlp")
    batch = examples((9,), 10)
    found: list[Tensor] = []
    for shared in (True, False):
        model = Model(task, task.own(params), masks)
        for number in range(6):
            anchor = {name: tensor + number for name, tensor in params.items()}
            model.step(batch, Training(), RATE, 0.5, anchor)
            if shared:
                del anchor  # the next may take its place
            else:
                found.append(anchor["0.bias"])
        found.append(model.params["0.bias"].clone())
    assert torch.equal(found[0], found[-1])


def test_reading_a_model_between_steps_does_not_change_its_bits() -> None:
    training = Training(momentum=0.9, weight_decay=0.01)

    def read(model: Model, number: int) -> None:
        assert model.params
        assert len(model.velocity) == (len(model.task.layout.parameters) if number else 0)

    assert same(
        run("residual", "native", training, read).params, run("residual", "native", training).params
    )
