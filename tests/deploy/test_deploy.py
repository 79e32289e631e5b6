"""Sparse models as files: what is loaded computes what was trained, and damage is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gossamer as gs
from gossamer import export, models
from gossamer.arithmetic.library import library
from gossamer.core import Ensemble, Examples
from gossamer.deploy import Predictor, Unreadable, plain
from gossamer.deploy.format import HEAD, MAGIC, VERSION, decode, encode
from gossamer.deploy.kernels import Batches, Singles
from gossamer.deploy.stored import Floats, Packed, Stored
from gossamer.export.sparse import sparse, stored

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
MODELS = {
    "lenet5_caffe": GREY,
    "lenet5:dropout=true": COLOUR,
    "lenet_cifar:double_softmax=true": COLOUR,
    "mnistnet": GREY,
    "femnist_cnn": GREY,
    "cnn7": COLOUR,
    "conv6": COLOUR,
    "vgg16": COLOUR,
    "resnet8": COLOUR,
    "resnet20": COLOUR,
    "resnet18:width=8": COLOUR,
    "resnet18:width=8,norm=group": COLOUR,
    "mlp": GREY,
    "mlp:hidden=30x20": (7,),
}
needs_kernels = pytest.mark.skipif(library() is None, reason="the kernels are not built")


def of(
    module: nn.Module, shape: tuple[int, ...], density: float = 0.1, count: int = 5
) -> export.Model:
    """A model with norms that do something and weights of a density."""
    draw = gs.Key(1).generator()
    x = torch.randn(count, *shape, generator=draw)
    task = gs.Task.of(module, torch.zeros(2, *shape), start="seed")
    params = task.init(gs.Key(2))
    for name, tensor in params.items():
        noise = torch.rand(tensor.shape, generator=draw)
        if tensor.dim() == 1:
            params[name] = tensor + noise if tensor.is_floating_point() else tensor
        elif tensor.dim() > 1:
            params[name] = tensor * (noise < density)
    test = Examples(x, torch.zeros(count, dtype=torch.int64))
    return export.Model(task, params, {"method": "none"}, test)


def ways(model: Stored) -> dict[str, Callable[[Floats], Floats]]:
    """All implementations that are there."""
    found: dict[str, Callable[[Floats], Floats]] = {"numpy": lambda x: plain.outputs(model, x)}
    if (kernels := library()) is not None:
        found |= {"single": Singles(kernels, model), "batch": Batches(kernels, model)}
    return found


def agree(model: export.Model, tolerance: float = 2e-5) -> Stored:
    """The model as it is read back, after all implementations have given torch's scores."""
    read = decode(encode(stored(model)))
    wanted = model.module()(model.test.x).numpy()
    scale = max(1.0, float(np.abs(wanted).max()))
    for way, predict in ways(read).items():
        error = float(np.abs(predict(model.test.x.numpy()) - wanted).max())
        assert error <= tolerance * scale, (way, error)
    return read


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_is_read_back_gives_the_scores_of_torch(name: str) -> None:
    shape = MODELS[name]
    agree(of(models.build(name, shape, 10), shape))


def test_dense_models_and_empty_layers_work_too() -> None:
    for density in (0.0, 0.4, 1.0):
        agree(of(models.build("lenet5_caffe", GREY, 10), GREY, density))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, int, int], float]:
    kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    padding = (draw(st.integers(0, kernel[0] - 1)), draw(st.integers(0, kernel[1] - 1)))
    stride = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    height = draw(st.integers(kernel[0], 14))
    width = draw(st.one_of(st.integers(kernel[1], 20), st.sampled_from([35, 330, 400])))
    channels, outputs = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    first = nn.Conv2d(channels, outputs, kernel, stride, padding, bias=draw(st.booleans()))
    shape = tuple(first(torch.zeros(1, channels, height, width)).shape[1:])
    second = nn.Conv2d(outputs, 3, 3, padding=1)
    flat = 3 * shape[1] * shape[2]
    module = nn.Sequential(first, nn.ReLU(), second, nn.Flatten(), nn.Linear(flat, 2))
    return module, (channels, height, width), draw(st.sampled_from([0.1, 0.5, 1.0]))


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_convolutions_of_every_geometry(case: tuple[nn.Module, tuple[int, ...], float]) -> None:
    agree(of(*case, count=2))


class Odd(nn.Module):
    """Steps that the models of the papers do not have, or not in this order."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(2)
        self.convolution = nn.Conv2d(2, 6, 3, 2, 1)
        self.norm = nn.GroupNorm(3, 6)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.project = nn.Conv2d(6, 6, 1)
        self.last = nn.BatchNorm2d(6)
        self.mean = nn.AdaptiveAvgPool2d(2)
        self.drop = nn.Dropout(0.5)
        self.linear = nn.Linear(24, 5, bias=False)
        self.vector = nn.BatchNorm1d(5)
        self.end = nn.Softmax(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.norm(self.convolution(self.first(x)))))
        y = self.project(x)
        x = torch.relu(x + self.last(y)) + y
        x = self.drop(torch.flatten(self.mean(x), 1))
        scores: Tensor = self.end(self.vector(self.linear(x)))
        return scores


def test_steps_in_odd_orders_and_norms_that_cannot_be_folded() -> None:
    read = agree(of(Odd(), (2, 15, 16), density=0.5))
    kinds = [step.kind.name for step in read.chain.steps]
    # Two batch norms read what no layer computes, or what others read too; the third is folded.
    assert kinds.count("BATCH_NORM") == 2 and "DROPOUT" not in kinds


def test_zeros_take_one_bit() -> None:
    tensor = np.zeros((4, 100), np.float32)
    tensor[1, 3:9] = 2
    packed = Packed.of(tensor)
    assert packed.bits is not None and len(packed.bits) == 50 and len(packed.values) == 6
    assert np.array_equal(packed.full(), tensor) and packed.density == 6 / 400
    assert Packed.of(np.ones((3, 3), np.float32)).bits is None


@pytest.fixture(scope="module")
def small() -> export.Model:
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return of(nn.Sequential(*layers, nn.Linear(64, 3)), (1, 8, 8), density=0.3, count=20)


def test_one_example_or_a_batch_of_any_size(small: export.Model) -> None:
    predict = Predictor(decode(sparse(small)))
    x = small.test.x.numpy()
    wanted = small.module()(small.test.x).numpy()
    assert predict(x[0]).shape == (3,) and predict(x[:0]).shape == (0, 3)
    for count in (1, 2, 12, 13, 20):
        assert np.allclose(predict(x[:count]), wanted[:count], atol=1e-5)
    assert np.allclose(predict(x.astype(np.float64).transpose(0, 1, 3, 2).swapaxes(2, 3)), wanted)
    assert np.allclose(predict(np.tile(x, (10, 1, 1, 1)))[180:], wanted, atol=1e-5)
    assert (predict.shape, predict.classes, predict.facts) == ((1, 8, 8), 3, {"method": "none"})
    with pytest.raises(ValueError, match=r"reads examples of shape \(1, 8, 8\)"):
        predict(x[:, :, :5])


@needs_kernels
def test_threads_share_a_model(small: export.Model) -> None:
    predict = Predictor(decode(sparse(small)))
    x = small.test.x.numpy()
    alone = [predict(each) for each in x]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            together = list(threads.map(predict, x))
            assert all(map(np.array_equal, alone, together))


@pytest.mark.parametrize("variable", ["", "off"])
def test_a_device_needs_no_torch(variable: str, small: export.Model, tmp_path: Path) -> None:
    export.save(small, tmp_path / "model.gsm")
    np.save(tmp_path / "x.npy", small.test.x.numpy())
    code = (
        "import sys, numpy, gossamer\n"
        "predict = gossamer.load('model.gsm')\n"
        "x = numpy.load('x.npy')\n"
        "numpy.save('y.npy', numpy.concatenate([predict(x), predict(x[:1])]))\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    environment = {**os.environ, "GOSSAMER_NATIVE": variable}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    wanted = small.module()(small.test.x).numpy()
    assert np.allclose(np.load(tmp_path / "y.npy"), np.vstack([wanted, wanted[:1]]), atol=1e-5)


# damaged files -----------------------------------------------------------------------------------


def signed(rest: bytes) -> bytes:
    """A file with a valid head, so that only the contents can be wrong."""
    return HEAD.pack(MAGIC, VERSION, zlib.crc32(rest), len(rest)) + rest


def test_a_damaged_file_gives_one_clear_error(small: export.Model, tmp_path: Path) -> None:
    data = sparse(small)
    path = tmp_path / "model.gsm"
    cut = [data[:size] for size in (0, 5, HEAD.size, 60, len(data) - 1)]
    longer, other = data + b"x", b"something else entirely, and long enough"
    flipped = [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in range(0, len(data), 7)]
    newer = data[:8] + (VERSION + 1).to_bytes(4, "little") + data[12:]
    for bad in (*cut, longer, other, *flipped, newer):
        path.write_bytes(bad)
        with pytest.raises(Unreadable, match=r"model.gsm is not a whole sparse model: .*again$"):
            gs.load(path)


@cache
def varied() -> bytes:
    layers = [nn.Conv2d(1, 2, 3, 2, 1), nn.GroupNorm(2, 2), nn.AvgPool2d(2), nn.Flatten()]
    module = nn.Sequential(*layers, nn.Linear(8, 2), nn.BatchNorm1d(2), nn.ReLU())
    return encode(stored(of(module, (1, 8, 8), density=0.4)))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_no_contents_make_the_reader_crash(data: st.DataObject) -> None:
    rest = bytearray(varied()[HEAD.size :])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(rest) // 4 - 1)) * 4
        number = data.draw(st.sampled_from([0, 1, 2, 3, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1]))
        rest[at : at + 4] = number.to_bytes(4, "little")
    try:
        read = decode(signed(bytes(rest)))
    except Unreadable:
        return
    x = np.zeros((2, *read.shape), np.float32)
    for predict in ways(read).values():
        with np.errstate(all="ignore"):
            assert predict(x).shape == (2, read.classes)


def test_absurd_sizes_are_refused_before_anything_is_allocated(small: export.Model) -> None:
    rest = encode(stored(small))[HEAD.size :]
    facts = int.from_bytes(rest[:4], "little")
    many = (2**32 - 1).to_bytes(4, "little")
    for place in (0, 4 + facts, 8 + facts, 12 + facts):
        with pytest.raises(Unreadable):
            decode(signed(rest[:place] + many + rest[place + 4 :]))
    deep = b'{"a":' * 10_000
    with pytest.raises(Unreadable, match="facts are no JSON"):
        decode(signed(len(deep).to_bytes(4, "little") + deep + rest[4 + facts :]))


# what cannot be written --------------------------------------------------------------------------


def test_models_that_cannot_be_written_are_refused_in_a_sentence(small: export.Model) -> None:
    twice = Ensemble((small.params, small.params), (1.0, 1.0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"one model and no ensemble; use \.safetensors"):
        sparse(export.Model(small.task, twice, {}, small.test))
    strange = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Tanh())
    with pytest.raises(ValueError, match=r"cannot run this model: it uses Tanh; use \.safe"):
        sparse(of(strange, (1, 8, 8)))
    alone = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False))
    with pytest.raises(ValueError, match="batch norm without running statistics"):
        sparse(of(nn.Sequential(*alone, nn.Flatten(), nn.Linear(72, 2)), (1, 8, 8)))
