"""Full linear layers of a few examples, which have a kernel of their own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from gossamer import Key, Task, Training
from gossamer.arithmetic.choice import Arithmetic
from gossamer.arithmetic.library import VARIABLE, library
from gossamer.arithmetic.model import Model
from gossamer.core import Batch, Params

pytestmark = pytest.mark.skipif(library() is None, reason="the kernels are not built")

SHAPES = ((1,), (16,), (70,), (1, 9, 9), (3, 5, 5), (2, 3, 6), (2, 6, 6), (3, 1, 1), (1, 28, 28))


def net(shape: tuple[int, ...], hidden: int, arithmetic: Arithmetic) -> Task:
    inputs = torch.Size(shape).numel()
    layers = (nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    return Task.of(
        nn.Sequential(*layers), torch.zeros(2, *shape), arithmetic=arithmetic, start="seed"
    )


def examples(shape: tuple[int, ...], size: int, channels_last: bool = True) -> Batch:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, *shape, generator=generator)
    if x.dim() == 4 and channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    return Batch(x, torch.arange(size) % 3, Key(1), 0, 10, 0, 1.0, 10)


def close(found: Params, wanted: Params) -> None:
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=2e-6)


def agree(shape: tuple[int, ...], hidden: int, size: int, channels_last: bool = True) -> None:
    """The kernels and autograd find the same loss and gradients."""
    native, reference = net(shape, hidden, "native"), net(shape, hidden, "torch")
    params, batch = native.init(Key(2)), examples(shape, size, channels_last)
    loss, grads = native.gradients(params, batch)
    wanted_loss, wanted = reference.gradients(params, batch)
    assert float(loss) == pytest.approx(float(wanted_loss), rel=1e-5)
    close(grads, wanted)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("channels_last", [True, False])
def test_inputs_of_any_shape_and_order(shape: tuple[int, ...], channels_last: bool) -> None:
    for size in (1, 4, 9, 17):
        agree(shape, 9, size, channels_last)


@pytest.mark.parametrize("size", range(1, 16))
def test_gradients_are_those_of_autograd(size: int) -> None:
    draw = random.Random(size)
    for _ in range(6):
        agree((draw.randint(1, 140),), draw.randint(1, 17), size)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "training", [Training(), Training(momentum=0.9), Training(weight_decay=0.01)]
)
def test_step_has_the_bits_of_gradients_and_update(training: Training, masked: bool) -> None:
    for shape, hidden, size in (((3, 5, 5), 13, 10), ((95,), 8, 15), ((95,), 8, 33)):
        task = net(shape, hidden, "native")
        init, batch = task.init(Key(3)), examples(shape, size)
        masks = {"1.weight": torch.rand_like(init["1.weight"]) < 0.9} if masked else {}
        for name, mask in masks.items():
            init[name] *= mask
        model, params = Model(task, task.own(init), masks), task.own(init)
        velocity: list[torch.Tensor | None] = []
        for _ in range(3):
            loss = model.step(batch, training, 0.3)
            wanted, grads = task.gradients(params, batch, masks)
            training.update(params, grads, velocity, 0.3)
            assert float(loss) == float(wanted)
        assert all(torch.equal(model.params[name], tensor) for name, tensor in params.items())


def digest() -> str:
    """The parameters after some steps, of several shapes and batches."""
    words = []
    cases = (((3, 7, 5), 70, 10), ((95,), 8, 15), ((68,), 21, 3), ((50,), 9, 37))
    for shape, hidden, size in cases:
        task = net(shape, hidden, "native")
        model = Model(task, task.own(task.init(Key(4))))
        losses = (model.step(examples(shape, size), Training(), 0.3) for _ in range(3))
        words += [float(loss).hex() for loss in losses]
        words += [str(tensor.double().sum().item()) for tensor in model.params.values()]
    return " ".join(words)


def test_avx512_and_avx2_give_the_same_bits() -> None:
    kernels = library()
    if kernels is None or kernels.build != "avx512":
        pytest.skip("this processor has one of them at most")
    found = []
    for build in ("avx512", "avx2"):
        code = "from test_small_batches import digest; print(digest())"
        environment = {**os.environ, VARIABLE: build}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        words = [sys.executable, "-c", code]
        found.append(subprocess.run(words, env=environment, capture_output=True, check=True).stdout)
    assert found[0] == found[1]
