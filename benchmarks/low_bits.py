"""Numbers of few levels on the wire: bits over their entropy, and MB/s of float32 model each way.

Gaussian, Laplace and real updates (one epoch of LeNet on Fashion-MNIST's sample, every layer by its
own deviation) at 3, 4, 16 and 256 levels, whole messages, on one core, in processor time.
`GOSSAMER_NATIVE=off` measures the coder in NumPy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import gossamer as gs
from gossamer import data, models
from gossamer.engine import Options, Run, start
from gossamer.engine.checks import ctx_of
from gossamer.task import Task
from gossamer.wire import Levels, Schema, decode, encode
from gossamer.wire.numbers import coder, levels

REPEATS = 5
LEVELS = (3, 4, 16, 256)
SIZES = {"lenet": [500, 25_000, 400_000, 5_000], "resnet18": [11_164_352]}


def measure() -> dict[str, object]:
    """Every case: bits over entropy, and speeds each way."""
    cases = [_case(*case) for case in _cases()]
    large = [case for case in cases if case["levels"] == 16 and case["values"] >= 400_000]
    return {
        "compiled": coder.native() is not None,
        "most_over_entropy": max(case["over_entropy"] for case in cases),
        "encode_16_levels": min(case["encode"] for case in large),
        "decode_16_levels": min(case["decode"] for case in large),
        "cases": cases,
    }


def _cases() -> Iterator[tuple[str, int, list[NDArray[np.float32]]]]:
    draw = np.random.default_rng(0)
    for model, sizes in SIZES.items():
        shapes: dict[str, Callable[[int], Any]] = {
            "gaussian": draw.standard_normal,
            "laplace": lambda size: draw.laplace(size=size),
        }
        for shape, drawn in shapes.items():
            values = [np.asarray(drawn(size), np.float32) for size in sizes]
            for count in LEVELS:
                yield f"{model}, {shape}", count, values
    update = _update()
    for count in LEVELS:
        yield "lenet, update", count, update


def _update() -> list[NDArray[np.float32]]:
    """The change of LeNet's layers in an epoch of one client."""
    federation = data.federation("fmnist-mini", None, 10, seed=0)
    example = federation.client(0).train.x[:2]
    module = models.build("lenet5_caffe", tuple(example.shape[1:]), federation.classes)
    method = gs.FedAvg(clients=1)
    run = Run(method, Task.of(module, example), federation, rounds=1, options=Options(eval_every=0))
    first = method.init(ctx_of(run, 0)).params
    last = start(run).state.params
    return [(last[name] - first[name]).numpy() for name in first]


def _quantised(values: NDArray[np.float32], count: int) -> NDArray[np.int8]:
    """Levels as compressors make them: the top tenth for three, steps of a deviation otherwise."""
    if count == 3:
        large = np.abs(values) >= np.quantile(np.abs(values), 0.9)
        return (np.sign(values) * large).astype(np.int8)
    half = count // 2
    scale = half / (4 * max(float(values.std()), 1e-30))
    return np.clip(np.round(values * scale), -half, half - 1).astype(np.int8)


def _case(name: str, count: int, values: list[NDArray[np.float32]]) -> dict[str, Any]:
    tensors = {str(i): torch.from_numpy(_quantised(v, count)) for i, v in enumerate(values)}
    least = -1 if count == 3 else -(count // 2)
    record = Levels(tensors, least, least + count - 1)
    schema = Schema.of(record)
    message = encode(record, schema)
    size = sum(each.size for each in values)
    limit = sum(levels.entropy(tensor.numpy(), least) for tensor in tensors.values())
    return {
        "case": name,
        "levels": count,
        "values": size,
        "bits_a_value": 8 * len(message) / size,
        "over_entropy": 8 * len(message) / limit,
        "encode": 4e-6 * size / _seconds(lambda: encode(record, schema)),
        "decode": 4e-6 * size / _seconds(lambda: decode(message, schema)),
    }


def _seconds(function: Callable[[], object]) -> float:
    """Processor time, the best of several."""
    best = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        function()
        best = min(best, time.process_time() - started)
    return best
