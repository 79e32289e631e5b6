"""The kernels against autograd in float64: every kind of layer, geometry, batch and density."""

from __future__ import annotations

import threading

import pytest
import torch
from arithmetic_cases import (
    BATCHES,
    DENSITIES,
    KERNELS,
    NETS,
    WAYS,
    AllSparse,
    autograd,
    close,
    convolution,
    draw,
    examples,
    plan_of,
    sequence,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from gossamer import Key, Params
from gossamer.arithmetic.native import Native

pytestmark = KERNELS
EXACT = [name for name in NETS if name != "dropout"]
"""Dropout draws other numbers than torch's."""


def check(
    module: nn.Module,
    shape: tuple[int, ...],
    batch: int,
    density: float,
    way: type[Native],
    scale: float = 0.5,
) -> None:
    """Gradients, gradients everywhere, running statistics and outputs are those of autograd."""
    layout, plan = plan_of(module, shape)
    native = way(plan)
    params, masks = draw(layout, density, scale=scale)
    data = examples(shape, batch, classes=plan.classes)
    loss, exact, statistics = autograd(module, params, data)
    for everywhere in (False, True):
        held = {name: tensor.clone() for name, tensor in params.items()}
        found_loss, found = native.gradients(held, data, masks, everywhere)
        assert abs(found_loss - loss) <= 1e-5 * max(1, abs(loss))
        assert list(found) == list(layout.parameters)
        for name, grad in found.items():
            wanted = exact[name] * masks[name] if name in masks and not everywhere else exact[name]
            assert close(grad, wanted), name
        for name, tensor in statistics.items():
            assert close(held[name], tensor), name
    module = module.double().eval()
    with torch.no_grad():
        held = {name: tensor.double() for name, tensor in params.items()}
        outputs = torch.func.functional_call(module, held, data.x.double())
    assert close(native.outputs(params, data.x), outputs)


@given(
    inputs=st.integers(1, 9),
    outputs=st.integers(1, 9),
    size=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    bias=st.booleans(),
    batch=st.sampled_from(BATCHES),
    density=st.sampled_from(DENSITIES),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=200)
def test_convolutions_of_any_geometry_equal_autograd(
    inputs: int,
    outputs: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    bias: bool,
    batch: int,
    density: float,
    way: type[Native],
) -> None:
    for axis in (0, 1):
        assume(padding[axis] < kernel[axis] <= size[axis] + 2 * padding[axis])
    module = convolution(inputs, outputs, size, kernel, stride, padding, bias)
    check(module, (inputs, *size), batch, density, way)


@given(
    inputs=st.integers(16, 21),
    outputs=st.integers(16, 35),
    size=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    bias=st.booleans(),
    batch=st.sampled_from(BATCHES),
    relu=st.booleans(),
)
@settings(max_examples=100)
def test_tiled_convolutions_of_any_geometry_equal_autograd(
    inputs: int,
    outputs: int,
    size: tuple[int, int],
    padding: tuple[int, int],
    bias: bool,
    batch: int,
    relu: bool,
) -> None:
    for axis in (0, 1):
        assume(size[axis] + 2 * padding[axis] >= 3)
    first = nn.Conv2d(1, inputs, 1, bias=bias)
    parts = [first, nn.Conv2d(inputs, outputs, 3, padding=padding, bias=bias), nn.ReLU()]
    module = sequence(*parts[: 2 + relu], shape=(1, *size))
    _, plan = plan_of(module, (1, *size))
    assert [layer.tiled for layer in plan.layers.values()] == [False, True, False]
    # Wide layers with large weights would make probabilities of zero and one, and no gradients.
    check(module, (1, *size), batch, 1.0, Native, scale=0.1)


@given(
    inputs=st.integers(1, 40),
    inner=st.integers(1, 40),
    classes=st.integers(2, 9),
    bias=st.booleans(),
    batch=st.sampled_from(BATCHES),
    density=st.sampled_from(DENSITIES),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=100)
def test_linear_layers_of_any_size_equal_autograd(
    inputs: int,
    inner: int,
    classes: int,
    bias: bool,
    batch: int,
    density: float,
    way: type[Native],
) -> None:
    layers = nn.Linear(inputs, inner, bias=bias), nn.Linear(inner, classes, bias=bias)
    check(nn.Sequential(*layers), (inputs,), batch, density, way)


@given(
    channels=st.integers(1, 5),
    size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    kind=st.sampled_from(["max", "max of relu", "average"]),
    batch=st.sampled_from(BATCHES),
)
@settings(max_examples=100)
def test_pooling_of_any_geometry_equals_autograd(
    channels: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    kind: str,
    batch: int,
) -> None:
    if kind == "average":
        padding = (0, 0)
    for axis in (0, 1):
        assume(2 * padding[axis] <= kernel[axis] <= size[axis] + 2 * padding[axis])
    pool = (
        nn.AvgPool2d(kernel, stride) if kind == "average" else nn.MaxPool2d(kernel, stride, padding)
    )
    parts = [nn.Conv2d(2, channels, 3, padding=1), *([nn.ReLU()] * (kind == "max of relu")), pool]
    with torch.no_grad():
        features = nn.Sequential(*parts)(torch.zeros(1, 2, *size)).numel()
    module = nn.Sequential(*parts, nn.Flatten(), nn.Linear(features, 3))
    check(module, (2, *size), batch, 1.0, Native)


@pytest.mark.parametrize("name", EXACT)
def test_models_equal_autograd(name: str) -> None:
    make, shape = NETS[name]
    for batch in (7, 10, 37) if "batch norm" in name else (1, 3, 10, 20, 37):
        for density in (0.2, 1.0):
            for way in WAYS:
                check(make(), shape, batch, density, way)


@pytest.mark.parametrize("name", NETS)
def test_the_same_call_gives_the_same_bits_in_any_thread(name: str) -> None:
    make, shape = NETS[name]
    layout, plan = plan_of(make(), shape)
    params, masks = draw(layout, 0.3)
    batches = [examples(shape, batch, key=Key(batch)) for batch in (10, 37, 3, 10)]

    def work(results: list[list[Params]]) -> None:
        native = Native(plan)
        for _ in range(3):
            held = {name: tensor.clone() for name, tensor in params.items()}
            results.append([native.gradients(held, batch, masks, False)[1] for batch in batches])

    results: list[list[Params]] = []
    threads = [threading.Thread(target=work, args=(results,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            assert all(torch.equal(left[name], right[name]) for name in left)


def test_memory_of_a_larger_batch_does_not_change_a_smaller_one() -> None:
    make, shape = NETS["residual"]
    layout, plan = plan_of(make(), shape)
    params, masks = draw(layout, 0.3)
    used, fresh = AllSparse(plan), AllSparse(plan)
    used.gradients(dict(params), examples(shape, 64), masks, False)
    held = [{name: tensor.clone() for name, tensor in params.items()} for _ in range(2)]
    small = examples(shape, 7)
    left = used.gradients(held[0], small, masks, False)[1]
    right = fresh.gradients(held[1], small, masks, False)[1]
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_dropout_drops_its_share_by_the_key_of_the_batch() -> None:
    parts = nn.Linear(9, 1000), nn.Dropout(0.25), nn.Linear(1000, 3)
    layout, plan = plan_of(nn.Sequential(*parts), (9,))
    native = Native(plan)
    params, _ = draw(layout, 1.0)

    def dropped(key: Key) -> torch.Tensor:
        return native.gradients(params, examples((9,), 1, key=key), {}, False)[1]["0.bias"] == 0

    assert abs(float(dropped(Key(1)).float().mean()) - 0.25) < 0.05
    assert torch.equal(dropped(Key(1)), dropped(Key(1)))
    assert not torch.equal(dropped(Key(1)), dropped(Key(2)))
    kept = ~dropped(Key(1))
    data = examples((9,), 1, key=Key(1))
    x = (params["0.weight"] @ data.x[0] + params["0.bias"]) * kept / 0.75
    logits = params["2.weight"] @ x + params["2.bias"]
    loss = torch.nn.functional.cross_entropy(logits[None], data.y)
    assert abs(native.gradients(params, data, {}, False)[0] - float(loss)) < 1e-4


def test_empty_batches_are_refused() -> None:
    layout, plan = plan_of(NETS["mlp"][0](), (9,))
    params, masks = draw(layout, 0.5)
    with pytest.raises(ValueError, match="a batch has no examples"):
        Native(plan).gradients(params, examples((9,), 0), masks, False)


@pytest.mark.parametrize("label", [-1, 4, -100, 2**40])
def test_labels_that_are_no_class_are_refused(label: int) -> None:
    layout, plan = plan_of(NETS["mlp"][0](), (9,))
    params, masks = draw(layout, 0.5)
    data = examples((9,), 5)
    data.y[3] = label
    with pytest.raises(IndexError, match="a label is not one of the model's 4 classes"):
        Native(plan).gradients(params, data, masks, False)
