"""SWAT by the kernels: the gradients of torch's layers, and cuts that are exact."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gossamer import Key, Task, models
from gossamer.arithmetic.library import library
from gossamer.core import Batch, Params
from gossamer.sparsity import swat, swat_layers
from gossamer.sparsity.swat_layers import CUTS, UNKNOWN, cut

pytestmark = pytest.mark.skipif(library() is None, reason="the kernels are not built")

NETS = {
    "mlp": (lambda: models.build("mlp", (1, 28, 28), 10), (1, 28, 28)),
    "lenet": (lambda: models.build("lenet5_caffe", (1, 28, 28), 10), (1, 28, 28)),
    "padded": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 5, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(5, 6, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(96, 7),
        ),
        (2, 8, 8),
    ),
    "tiled": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 64, 4),
        ),
        (3, 8, 8),
    ),
}


def case(net: str, size: int, density: float) -> tuple[Task, Task, Params, Batch]:
    build, shape = NETS[net]
    draw = Key(1).generator()
    x = torch.randn(size, *shape, generator=draw).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(4, (size,), generator=draw)
    task = Task.of(build(), x[:1], start="seed", arithmetic="native")
    sparse = swat.sparse_task(task, density)
    unknown = {name: torch.full((2,), UNKNOWN) for name in swat.cuts(sparse)}
    params = sparse.own({**task.init(Key(0)), **unknown})
    return task, sparse, params, Batch(x, labels, Key(2), 0, 1, 0, 1.0, 1)


def copied(params: Params) -> Params:
    return {name: tensor.clone() for name, tensor in params.items()}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(("size", "density"), [(1, 0.3), (7, 0.1), (16, 0.1), (37, 0.5), (20, 0.9)])
def test_gradients_are_those_of_sparse_layers(net: str, size: int, density: float) -> None:
    task, sparse, params, batch = case(net, size, density)
    own, other = copied(params), copied(params)
    found = swat.gradients(task, sparse, own, batch, density)
    wanted = sparse.gradients(other, batch)
    assert found.loss == pytest.approx(float(wanted.loss), abs=1e-5)
    assert list(found.grads) == list(task.layout.parameters)
    for name, grad in wanted.grads.items():
        scale = float(grad.abs().max())
        assert torch.allclose(found.grads[name], grad, rtol=1e-3, atol=1e-5 * scale), name
        # Optimisers pair elements by their addresses.
        assert found.grads[name].stride() == params[name].stride(), name
    for name in swat.cuts(sparse):
        assert torch.allclose(own[name], other[name], rtol=1e-5, atol=1e-7), name


def test_every_weight_gets_a_gradient(net: str = "lenet") -> None:
    task, sparse, params, batch = case(net, 16, 0.1)
    grads = swat.gradients(task, sparse, params, batch, 0.1).grads
    small = swat.active(params, task.layout.prunable, 0.1)["fc1.weight"] == 0
    assert float(grads["fc1.weight"][small].abs().max()) > 0


def test_known_cuts_are_used_again() -> None:
    task, sparse, params, batch = case("padded", 16, 0.2)
    for name in swat.cuts(sparse):
        params[name].copy_(torch.tensor([0.05, 0.7]))
    other = copied(params)
    found = swat.gradients(task, sparse, params, batch, 0.2)
    wanted = sparse.gradients(other, batch)
    assert torch.equal(params[swat.cuts(sparse)[0]], torch.tensor([0.05, 0.7]))
    for name, grad in wanted.grads.items():
        scale = float(grad.abs().max())
        assert torch.allclose(found.grads[name], grad, rtol=1e-3, atol=1e-5 * scale), name


def test_a_model_that_is_one_layer_is_left_to_torch() -> None:
    x = torch.randn(4, 6)
    task = Task.of(nn.Linear(6, 3), x[:1], start="seed")
    sparse = swat.sparse_task(task, 0.5)
    params = {**task.init(Key(0)), CUTS: torch.full((2,), UNKNOWN)}
    batch = Batch(x, torch.tensor([0, 1, 2, 0]), Key(2), 0, 1, 0, 1.0, 1)
    found = swat.gradients(task, sparse, copied(params), batch, 0.5)
    assert torch.equal(found.grads["weight"], sparse.gradients(params, batch).grads["weight"])


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=60), st.integers(1, 20))
def test_cuts_are_exact(numbers: list[float], twentieths: int) -> None:
    values: Tensor = torch.tensor(numbers, dtype=torch.float32)
    density = twentieths / 20
    sizes = sorted(abs(float(each)) for each in values)
    kept = max(ceil(Fraction(twentieths, 20) * len(sizes)), 1)
    assert cut(values, density) == (sizes[-kept] if sizes else 0.0)


def test_the_kernel_and_numpy_cut_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(30, 20, 5, 5, generator=Key(3).generator())
    last = values.contiguous(memory_format=torch.channels_last)
    part = last[:, ::2]
    found = [cut(each, 0.1) for each in (values, last, part)]
    monkeypatch.setattr(swat_layers, "library", lambda: None)
    assert found == [cut(each, 0.1) for each in (values, last, part)]
