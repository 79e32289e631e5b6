"""The one door for arithmetic: same key, same bits, whatever thread or memory format."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import gossamer.core
import gossamer.task.task
from gossamer import Batch, Key, Params, Task
from gossamer.optim import Training, sgd
from helpers import batch_of, conv, mlp, normed, same


def images(count: int = 7) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 3, 6, 6, generator=Key(1).generator())
    return x, torch.randint(0, 2, (count,), generator=Key(2).generator())


def points(count: int = 9) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 5, generator=Key(1).generator())
    return x, torch.randint(0, 3, (count,), generator=Key(2).generator())


@pytest.mark.parametrize("module", [gossamer.core, gossamer.task.task])
def test_the_examples_in_docstrings_are_true(module: object) -> None:
    found = doctest.testmod(module)  # type: ignore[arg-type]
    assert found.attempted > 0 and found.failed == 0


# initial values ---------------------------------------------------------------------------------


def test_init_is_a_function_of_the_key_alone() -> None:
    task = normed()
    torch.manual_seed(1)
    first = task.init(Key(3))
    torch.manual_seed(2)
    assert same(first, task.init(Key(3)))
    assert same(first, task.copy().init(Key(3)))
    assert not torch.equal(first["0.weight"], task.init(Key(4))["0.weight"])


def test_init_leaves_the_global_generator_and_the_module_as_they_were() -> None:
    task = mlp()
    before = {name: tensor.clone() for name, tensor in task.module.state_dict().items()}
    state = torch.get_rng_state()
    task.init(Key(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(task.module.state_dict()[name], before[name]) for name in before)


def test_init_resets_running_statistics() -> None:
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    module(points()[0])
    drawn = Task.of(module, torch.zeros(2, 5), start="seed")
    kept = Task.of(module, torch.zeros(2, 5))
    for first in (drawn.init(Key(0)), drawn.buffers()):
        assert first["1.running_mean"].tolist() == [0] * 8
    for first in (kept.init(Key(0)), kept.buffers()):
        assert torch.equal(first["1.running_mean"], module[1].running_mean)


def test_init_draws_what_the_layers_themselves_draw() -> None:
    """Same distribution as nn.Linear: uniform within 1 / sqrt(fan-in)."""
    task = Task.of(nn.Linear(100, 50), torch.zeros(2, 100), start="seed")
    weight = task.init(Key(0))["weight"]
    assert 0.099 < weight.abs().max() <= 0.1
    assert abs(float(weight.std()) - 0.1 / 3**0.5) < 2e-3


def test_own_gives_copies_that_can_be_changed() -> None:
    task = conv()
    params = task.init(Key(0))
    own = task.own(params)
    assert same(own, params)
    for tensor in own.values():
        tensor.zero_()
    assert same(params, task.init(Key(0)))


def test_a_missing_tensor_is_named() -> None:
    task = mlp()
    params = task.init(Key(0))
    del params["3.bias"]
    with pytest.raises(ValueError, match=r"needs a tensor '3\.bias'"):
        task.logits(params, points()[0])


# gradients --------------------------------------------------------------------------------------


def reference(module: nn.Module, params: Params, x: Tensor, y: Tensor) -> Params:
    """Gradients by plain autograd through torch's own functional call."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    loss = functional.cross_entropy(torch.func.functional_call(module, leaves, (x,)), y)
    names = [name for name, _ in module.named_parameters()]
    found = torch.autograd.grad(loss, [leaves[name] for name in names])
    return dict(zip(names, found, strict=True))


def test_gradients_are_those_of_autograd() -> None:
    task = mlp()
    params, (x, y) = task.init(Key(0)), points()
    found = task.gradients(params, batch_of(x, y))
    wanted = reference(task.module, params, x, y)
    assert found.loss.item() == pytest.approx(
        functional.cross_entropy(task.logits(params, x), y).item()
    )
    assert list(found.grads) == list(task.layout.parameters)
    for name, grad in wanted.items():
        torch.testing.assert_close(found.grads[name], grad)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("of_data", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("of_params", [torch.contiguous_format, torch.channels_last])
def test_fused_sgd_on_convolutions_equals_plain_sgd_in_every_memory_format(
    of_params: torch.memory_format, of_data: torch.memory_format, momentum: float
) -> None:
    """Fused kernels pair elements by address, and a gradient may come in other strides."""
    task = conv()
    x, y = images()
    params = {
        name: tensor.clone(memory_format=of_params) if tensor.dim() == 4 else tensor.clone()
        for name, tensor in task.init(Key(0)).items()
    }
    plain = {name: nn.Parameter(tensor.clone()) for name, tensor in params.items()}
    optimiser = torch.optim.SGD(plain.values(), lr=0.1, momentum=momentum, foreach=False)
    velocity: list[Tensor | None] = []
    for _ in range(3):
        grads = task.gradients(params, batch_of(x.contiguous(memory_format=of_data), y)).grads
        for name, grad in grads.items():
            assert grad.stride() == params[name].stride()
        wanted = reference(task.module, {n: p.detach() for n, p in plain.items()}, x, y)
        for name, parameter in plain.items():
            parameter.grad = wanted[name]
        optimiser.step()
        sgd(
            [params[name] for name in grads],
            list(grads.values()),
            velocity,
            rate=0.1,
            momentum=momentum,
        )
        for name, parameter in plain.items():
            torch.testing.assert_close(params[name], parameter.detach(), rtol=1e-4, atol=1e-6)


def test_gradients_are_zero_where_a_mask_is() -> None:
    task = conv()
    params, (x, y) = task.own(task.init(Key(0))), images()
    masks = {
        name: torch.rand(params[name].shape, generator=Key(5).generator()) < 0.5
        for name in task.layout.prunable
    }
    params |= {name: params[name] * mask for name, mask in masks.items()}
    full = task.gradients(params, batch_of(x, y), masks, everywhere=True).grads
    masked = task.gradients(params, batch_of(x, y), masks).grads
    for name, grad in full.items():
        wanted = grad * masks[name] if name in masks else grad
        torch.testing.assert_close(masked[name], wanted, rtol=1e-5, atol=1e-7)
    assert any(int((masked[name] == 0).sum()) > 0 for name in masks)


def test_a_loss_of_the_methods_own_is_differentiated() -> None:
    task = mlp()
    params, (x, y) = task.init(Key(0)), points()

    def decayed(leaves: Params, batch: Batch) -> Tensor:
        squares = sum((leaves[name] ** 2).sum() for name in task.layout.parameters)
        return task.loss(leaves, batch) + 0.5 * squares

    plain = task.gradients(params, batch_of(x, y)).grads
    found = task.gradients(params, batch_of(x, y), loss=decayed).grads
    for name, grad in plain.items():
        torch.testing.assert_close(found[name], grad + params[name])


def test_a_parameter_that_the_loss_does_not_use_has_a_zero_gradient() -> None:
    task = mlp()
    params, (x, y) = task.init(Key(0)), points()
    found = task.gradients(params, batch_of(x, y), loss=lambda p, b: (p["3.bias"] ** 2).sum())
    assert found.grads["0.weight"].abs().sum() == 0
    torch.testing.assert_close(found.grads["3.bias"], 2 * params["3.bias"])


def test_gradients_do_not_change_parameters_but_update_running_statistics() -> None:
    task = normed()
    params, (x, y) = task.own(task.init(Key(0))), points()
    before = {name: tensor.clone() for name, tensor in params.items()}
    task.gradients(params, batch_of(x, y))
    for name in task.layout.parameters:
        assert torch.equal(params[name], before[name]) and not params[name].requires_grad
    hidden = functional.linear(x, before["0.weight"], before["0.bias"])
    torch.testing.assert_close(params["1.running_mean"], 0.1 * hidden.mean(0))
    torch.testing.assert_close(params["1.running_var"], 0.9 + 0.1 * hidden.var(0))


def test_evaluation_leaves_running_statistics_alone() -> None:
    task = normed()
    params = task.init(Key(0))
    before = {name: tensor.clone() for name, tensor in params.items()}
    task.gradients(task.own(params), batch_of(*points()))
    task.logits(params, points()[0])
    assert same(params, before)


def test_tied_weights_are_one_tensor_with_the_sum_of_both_gradients() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(5, 5)
            self.second = nn.Linear(5, 5, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(self.first(x).relu())
            return out

    task = Task.of(Tied(), torch.zeros(2, 5), start="seed")
    params = task.init(Key(0))
    x, y = points()
    assert list(params) == ["first.weight", "first.bias"]
    grads = task.gradients(params, batch_of(x, y)).grads
    weight = params["first.weight"].clone().requires_grad_()
    hidden = functional.linear(x, weight, params["first.bias"]).relu()
    loss = functional.cross_entropy(functional.linear(hidden, weight), y)
    torch.testing.assert_close(grads["first.weight"], torch.autograd.grad(loss, weight)[0])


def test_recurrent_modules_compute_with_the_parameters_they_are_given() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True)
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.lstm(x)[0][:, -1])
            return out

    task = Task.of(Reader(), torch.zeros(2, 5, 4), start="seed")
    x = torch.randn(6, 5, 4, generator=Key(1).generator())
    y = torch.arange(6) % 3
    one, two = task.init(Key(0)), task.init(Key(1))
    for params in (one, two, one):
        wanted = reference(task.module, params, x, y)
        for name, grad in task.gradients(params, batch_of(x, y)).grads.items():
            assert grad.abs().sum() > 0
            torch.testing.assert_close(grad, wanted[name])


def test_half_precision_computes_in_bfloat16_and_keeps_parameters_in_float32() -> None:
    exact = conv()
    rough = Task(exact.module, exact.criterion, exact.layout, "bf16")
    params, (x, y) = exact.init(Key(0)), images()
    grads = rough.gradients(params, batch_of(x, y)).grads
    wanted = exact.gradients(params, batch_of(x, y)).grads
    assert all(grad.dtype == torch.float32 for grad in grads.values())
    assert rough.logits(params, x).dtype == torch.float32
    assert not torch.equal(rough.logits(params, x), exact.logits(params, x))
    for name, grad in grads.items():
        torch.testing.assert_close(grad, wanted[name], rtol=0.1, atol=0.02)
    assert same(grads, rough.copy().gradients(params, batch_of(x, y)).grads)


# dropout ----------------------------------------------------------------------------------------


def noisy(task: Task, key: Key) -> Tensor:
    return task.logits(task.init(Key(0)), points()[0], key)


def test_dropout_is_drawn_from_the_key() -> None:
    task = mlp(dropout=0.5)
    torch.manual_seed(1)
    first = noisy(task, Key(1))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(first, noisy(task, Key(1)))
    assert torch.equal(first, noisy(task.copy(), Key(1)))
    assert not torch.equal(first, noisy(task, Key(2)))
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_is_off_without_a_key() -> None:
    task = mlp(dropout=0.5)
    params = task.init(Key(0))
    noisy(task, Key(1))
    assert torch.equal(task.logits(params, points()[0]), mlp().logits(params, points()[0]))


@pytest.mark.parametrize(
    ("dropout", "shape", "whole"),
    [(nn.Dropout, (40, 50), False), (nn.Dropout2d, (40, 50, 2, 2), True)],
)
def test_dropout_keeps_the_mean_and_drops_channels_whole(
    dropout: Callable[[float], nn.Module], shape: tuple[int, ...], whole: bool
) -> None:
    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.noise = dropout(0.25)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.noise(x * self.scale)
            return out

    task = Task.of(Noise(), torch.ones(2, *shape[1:]), start="seed")
    out = task.logits({"scale": torch.ones(1)}, torch.ones(shape), Key(3))
    kept = out != 0
    assert torch.allclose(out[kept], torch.tensor(4 / 3))
    assert abs(float(kept.float().mean()) - 0.75) < 0.03
    if whole:
        assert torch.equal(kept.all(dim=(2, 3)), kept.any(dim=(2, 3)))


@pytest.mark.parametrize("twice", ["registered", "called"])
def test_a_dropout_used_twice_draws_two_masks_from_the_key(twice: str) -> None:
    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.first = nn.Dropout(0.5)
            if twice == "registered":
                self.second = self.first

        def forward(self, x: Tensor) -> Tensor:
            second = self.second if twice == "registered" else self.first
            return torch.cat([self.first(x * self.scale), second(x * self.scale)], 1)

    task = Task.of(Noise(), torch.ones(2, 64), start="seed")
    x, params = torch.ones(2, 64), {"scale": torch.ones(1)}
    torch.manual_seed(1)
    out = task.logits(params, x, Key(0))
    assert not torch.equal(out[:, :64], out[:, 64:])
    torch.manual_seed(2)
    assert torch.equal(out, task.logits(params, x, Key(0)))


def test_copies_compute_independently_in_threads() -> None:
    """Each thread has parameters of its own bound to its copy all the time."""
    task = normed()
    x, y = points()

    def train(task: Task, seed: int) -> Params:
        params = task.own(task.init(Key(seed)))
        training, velocity = Training(momentum=0.9), []
        for step in range(30):
            key = Key(seed).fold(step)
            grads = task.gradients(params, batch_of(x, y, key)).grads
            training.update(params, grads, velocity, 0.05)
        return params

    alone = [train(task, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(train, [task.copy() for _ in range(4)], range(4)))
    for one, other in zip(alone, together, strict=True):
        assert same(one, other)
    assert not same(alone[0], alone[1])


CRASHES = """
import torch
from torch import nn
from gossamer import Batch, Key, Task

torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(4, 8, 1, 2, bias=False), nn.Flatten(), nn.Linear(128, 3))
x = torch.randn(16, 4, 8, 8).contiguous(memory_format=torch.channels_last)
task = Task.of(net, x)
params = task.own(task.init(Key(0)))
batch = Batch(x, torch.zeros(16, dtype=torch.int64), Key(1), 0, 1, 0, 1.0, 1)
for _ in range(200):
    task.gradients(params, batch)
    kept = [torch.randn(size) for size in range(1, 200, 7)]
"""


def test_small_strided_convolutions_do_not_break_the_process() -> None:
    """torch 2.13 corrupts its heap in these when channels come last."""
    found = subprocess.run([sys.executable, "-c", CRASHES], capture_output=True, check=False)
    assert found.returncode == 0, found.stderr.decode()[-300:]
