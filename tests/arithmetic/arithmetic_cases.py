"""Small models with every kind of step that the kernels know."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from gossamer import Batch, Key, Params, Task
from gossamer.arithmetic.choice import Arithmetic
from gossamer.arithmetic.library import library, missing
from gossamer.arithmetic.native import Native
from gossamer.arithmetic.plan import Lists, Plan
from gossamer.core import Masks
from gossamer.task.layout import Layout
from helpers import batch_of


class Residual(nn.Module):
    """Blocks with shortcuts: none, a convolution, or every second pixel and zero channels."""

    def __init__(
        self, norm: Callable[[int], nn.Module], before: bool = False, width: int = 8
    ) -> None:
        super().__init__()
        self.before = before
        wide = width + 2
        self.stem = nn.Conv2d(2, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([norm(width), norm(width), norm(wide), norm(wide)])
        self.same = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.down = nn.Conv2d(width, wide, 3, stride=2, padding=1, bias=False)
        self.short = nn.Conv2d(width, wide, 1, stride=2, bias=False)
        self.last = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(wide, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.before:
            x = x + self.same(torch.relu(self.norms[0](x)))
            x = functional.relu(self.norms[1](x))
        else:
            x = torch.relu(self.norms[0](x))
            x = torch.relu(x + self.norms[1](self.same(x)))
        x = functional.relu(self.norms[2](self.down(x)) + self.short(x))
        x = torch.relu(self.norms[3](self.last(x)) + x)
        return self.head(self.pool(x).flatten(1))


class Shortcut(nn.Module):
    """A residual block whose shortcut has no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3, padding=1)
        self.down = nn.Conv2d(2, 5, 3, stride=2, padding=1)
        self.head = nn.Linear(5 * 12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        short = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, 3))
        return self.head(torch.flatten(self.down(x) + short, 1))


def convolution(
    inputs: int = 2,
    outputs: int = 3,
    size: tuple[int, int] = (6, 5),
    kernel: tuple[int, int] = (3, 3),
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    bias: bool = True,
) -> nn.Module:
    """Two convolutions without a kink, of which the second has an input gradient."""
    first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias)
    second = nn.Conv2d(outputs, 4, kernel, stride, padding, bias=bias)
    with torch.no_grad():
        features = second(first(torch.zeros(1, inputs, *size))).numel()
    return nn.Sequential(first, second, nn.Flatten(), nn.Linear(features, 3, bias=bias))


def sequence(*parts: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The parts, and a linear layer behind them."""
    body = nn.Sequential(*parts, nn.Flatten())
    with torch.no_grad():
        return body.append(nn.Linear(body.eval()(torch.zeros(1, *shape)).shape[1], 3)).train()


IMAGE = (2, 7, 6)
LARGE = (2, 28, 26)
"""Activations of such images are so large that batches of 48 and more are computed in parts."""
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(9, 3)), (9,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(9, 17), nn.ReLU(), nn.Linear(17, 4)), (9,)),
    "convolution": (convolution, (2, 6, 5)),
    "strided": (lambda: convolution(kernel=(3, 3), stride=(2, 2), padding=(1, 1)), (2, 6, 5)),
    "not square": (lambda: convolution(kernel=(5, 2), stride=(3, 1), padding=(2, 1)), (2, 6, 5)),
    "sparser than its stride": (lambda: convolution(kernel=(2, 1), stride=(3, 3)), (2, 6, 5)),
    "to one pixel": (lambda: convolution(kernel=(6, 5)), (2, 6, 5)),
    "max pool": (
        lambda: sequence(
            nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), shape=IMAGE
        ),
        IMAGE,
    ),
    "average pool": (
        lambda: sequence(
            nn.Conv2d(2, 5, 3, padding=1),
            nn.AvgPool2d(2),
            nn.ReLU(),
            nn.Conv2d(5, 4, 3),
            shape=IMAGE,
        ),
        IMAGE,
    ),
    "batch norm": (
        lambda: sequence(
            nn.Conv2d(2, 5, 3, bias=False),
            nn.BatchNorm2d(5),
            nn.ReLU(),
            nn.Conv2d(5, 4, 2),
            shape=IMAGE,
        ),
        IMAGE,
    ),
    "batch norm of the input": (
        lambda: sequence(nn.BatchNorm2d(2), nn.Conv2d(2, 5, 3), nn.ReLU(), shape=IMAGE),
        IMAGE,
    ),
    "static batch norm": (
        lambda: sequence(
            nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5, track_running_stats=False), shape=IMAGE
        ),
        IMAGE,
    ),
    "plain batch norm of vectors": (
        lambda: sequence(nn.Linear(9, 6), nn.BatchNorm1d(6, affine=False), shape=(9,)),
        (9,),
    ),
    "group norm": (
        lambda: sequence(
            nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), nn.Conv2d(6, 4, 2), shape=IMAGE
        ),
        IMAGE,
    ),
    "group norm of the input": (
        lambda: sequence(nn.GroupNorm(1, 2), nn.Conv2d(2, 4, 3), shape=IMAGE),
        IMAGE,
    ),
    "dropout": (
        lambda: sequence(
            nn.Conv2d(2, 6, 3), nn.Dropout2d(0.3), nn.ReLU(), nn.Dropout(0.5), shape=IMAGE
        ),
        IMAGE,
    ),
    "double softmax": (
        lambda: nn.Sequential(nn.Linear(9, 5), nn.Softmax(1), nn.Linear(5, 3), nn.Softmax(1)),
        (9,),
    ),
    "residual": (lambda: Residual(nn.BatchNorm2d), IMAGE),
    "pre-activation": (lambda: Residual(lambda n: nn.GroupNorm(2, n), before=True), IMAGE),
    "shortcut without parameters": (Shortcut, (1, 7, 6)),
    "tiles": (
        lambda: sequence(
            nn.Conv2d(2, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 17, 3, padding=(2, 0)),
            nn.ReLU(),
            nn.Conv2d(17, 18, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            shape=IMAGE,
        ),
        IMAGE,
    ),
    "residual tiles": (lambda: Residual(nn.BatchNorm2d, before=True, width=16), IMAGE),
    "in parts": (
        lambda: sequence(
            nn.Conv2d(2, 24, 5, padding=2),
            nn.GroupNorm(3, 24),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(24, 5, 3, stride=2),
            shape=LARGE,
        ),
        LARGE,
    ),
    "logits of a convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 3, (7, 6)), nn.Flatten()),
        IMAGE,
    ),
}


def net(name: str, arithmetic: Arithmetic = "native") -> Task:
    """The task of a model."""
    make, shape = NETS[name]
    return Task.of(make(), torch.zeros(2, *shape), arithmetic=arithmetic, start="seed")


KERNELS = pytest.mark.skipif(library() is None, reason=missing())

DENSITIES = (0.0, 0.05, 0.5, 1.0)
BATCHES = (1, 3, 7, 10, 16, 20, 37, 64, 100)


class AllSparse(Native):
    """Computes every masked layer at its non-zeros, even where that is slower."""

    def sparse_layers(self, masks: Mapping[str, Tensor], batch: int) -> dict[str, Lists]:
        return {name: self.lists(name, masks[name]) for name in self.plan.layers if name in masks}


class AllDense(Native):
    """Computes every layer with its zeros."""

    def sparse_layers(self, masks: Mapping[str, Tensor], batch: int) -> dict[str, Lists]:
        return {}


WAYS: tuple[type[Native], ...] = (Native, AllSparse, AllDense)


def plan_of(module: nn.Module, shape: tuple[int, ...]) -> tuple[Layout, Plan]:
    """The layout and plan of a model."""
    kernels = library()
    assert kernels is not None
    layout = Layout.trace(module, torch.zeros(2, *shape))
    return layout, Plan.of(kernels, module, layout)


def draw(layout: Layout, density: float, seed: int = 0, scale: float = 0.5) -> tuple[Params, Masks]:
    """Random parameters of every kind, positive variances, and masks of all layers."""
    generator = torch.Generator().manual_seed(seed)
    params, masks = {}, {}
    for name in (*layout.parameters, *layout.buffers):
        shape = layout[name].shape
        params[name] = torch.randn(shape, generator=generator) * scale
        if name in layout.buffers:
            params[name] = params[name].abs() + 0.5
        if len(shape) > 1:
            masks[name] = torch.rand(shape, generator=generator) < density
            params[name] = params[name] * masks[name]
    return params, masks


def examples(
    shape: tuple[int, ...], batch: int, seed: int = 1, classes: int = 3, key: Key | None = None
) -> Batch:
    """A batch of random examples."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, *shape, generator=generator)
    return batch_of(x, torch.randint(classes, (batch,), generator=generator), key)


def autograd(module: nn.Module, params: Params, batch: Batch) -> tuple[float, Params, Params]:
    """The loss, gradients of all parameters, and running statistics afterwards, in float64."""
    precise = copy.deepcopy(module).double().train()
    held = {name: tensor.double() for name, tensor in params.items()}
    leaves = {name: held[name].requires_grad_() for name, _ in precise.named_parameters()}
    loss = functional.cross_entropy(functional_call(precise, held, batch.x.double()), batch.y)
    grads = torch.autograd.grad(loss, list(leaves.values()))
    statistics = {name: tensor for name, tensor in held.items() if name not in leaves}
    return float(loss.detach()), dict(zip(leaves, grads, strict=True)), statistics


def close(found: Tensor, exact: Tensor, tolerance: float = 3e-5) -> bool:
    """Equal but for roundings, relative to the largest number of the tensor."""
    error = (found.double() - exact).abs().max() if found.numel() else torch.tensor(0.0)
    return bool(error <= tolerance * (exact.abs().max() + 0.1)) if found.numel() else True
