"""Mask codecs: megabytes of float32 model a second, at density 0.1, on one core.

LeNet-5-Caffe with independent weights and with the mask of a trained one, a ResNet-20 of many small
layers, and changes of a mask that the receiver holds. Times are of the processor, the best of
several, so that what else the machine does counts less. Also: how much faster the cut between the
largest weights of a sparse layer and the others is found than by NumPy's partition alone.
"""

import importlib.util
import lzma
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gossamer.sparsity.algebra import ranked
from gossamer.wire.masks import ans, rice
from gossamer.wire.masks.entropy import conditional_bits, mask_bits

DENSITY = 0.1
MOVED = 0.05
REPEATS = 30
LENET = [(20, 1, 5, 5), (50, 20, 5, 5), (500, 800), (10, 500)]
RESNET = [
    (16, 3, 3, 3),
    *[(16, 16, 3, 3)] * 6,
    (32, 16, 3, 3),
    *[(32, 32, 3, 3)] * 5,
    (64, 32, 3, 3),
    *[(64, 64, 3, 3)] * 5,
    (10, 64),
]
TRAINED = Path(__file__).parents[1] / "tests/wire/fixtures/lenet5_caffe_top10.npy.xz"

Masks = list[NDArray[np.bool_]]


def independent(shapes: list[tuple[int, ...]], density: float) -> Masks:
    """Every weight kept with the same chance."""
    generator = np.random.default_rng(1)
    return [generator.random(shape) < density for shape in shapes]


def trained() -> Masks:
    """The mask kept for the tests."""
    with lzma.open(TRAINED) as file:
        bits = np.unpackbits(np.load(file), bitorder="little").view(np.bool_)
    ends = np.cumsum([math.prod(shape) for shape in LENET])
    parts = np.split(bits[: ends[-1]], ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, LENET, strict=True)]


def measure() -> dict[str, object]:
    """Speeds and sizes of every codec; sizes as multiples of the limit for independent weights."""
    masks = {
        "lenet": independent(LENET, DENSITY),
        "lenet_trained": trained(),
        "resnet20": independent(RESNET, DENSITY),
    }
    found = {name: _codec(some, rice.encode, rice.decode) for name, some in masks.items()}
    old = masks["lenet"]
    new = [_moved(mask) for mask in old]
    given = _row(
        old,
        lambda: rice.encode_given(new, old),
        lambda data: rice.decode_given(data, old),
        conditional_bits(new, old),
    )
    report: dict[str, object] = {
        "job": f"masks of density {DENSITY}, MB/s of float32 model, best of {REPEATS}",
        "encode_MB_per_second": found["lenet"]["encode_MB_per_second"],
        "decode_MB_per_second": found["lenet"]["decode_MB_per_second"],
        "rice": {**found, "lenet_given": given},
        "cut_over_partition": {str(density): _cut(density) for density in (1.0, 0.5, 0.1, 0.02)},
    }
    if importlib.util.find_spec("constriction"):
        report["ans"] = {n: _codec(some, ans.encode, ans.decode) for n, some in masks.items()}
    return report


def _cut(density: float) -> float:
    """Partition over `ranked`, for a layer of 400,000 weights of which half as many are kept."""
    generator = np.random.default_rng(1)
    size = math.prod(LENET[2])
    weights = np.abs(generator.normal(size=size)).astype(np.float32)
    weights[generator.random(size) >= density] = 0
    place = size - round(density * size / 2)
    alone = _seconds(lambda: np.partition(weights, place))
    return round(alone / _seconds(lambda: ranked(weights, place)), 2)


def _moved(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A mask with a share of its weights dropped and as many others grown."""
    generator = np.random.default_rng(2)
    flat = mask.reshape(-1).copy()
    count = round(MOVED * np.count_nonzero(flat))
    lost = generator.choice(np.flatnonzero(flat), count, replace=False)
    gained = generator.choice(np.flatnonzero(~flat), count, replace=False)
    flat[lost], flat[gained] = False, True
    return flat.reshape(mask.shape)


def _codec(
    masks: Masks,
    encode: Callable[[Masks], bytes],
    decode: Callable[[bytes, list[tuple[int, ...]]], Masks],
) -> dict[str, float]:
    shapes = [mask.shape for mask in masks]
    return _row(masks, lambda: encode(masks), lambda data: decode(data, shapes), mask_bits(masks))


def _row(
    masks: Masks, encode: Callable[[], bytes], decode: Callable[[bytes], Masks], limit: float
) -> dict[str, float]:
    data = encode()
    megabytes = 4e-6 * sum(mask.size for mask in masks)
    return {
        "encode_MB_per_second": round(megabytes / _seconds(encode)),
        "decode_MB_per_second": round(megabytes / _seconds(lambda: decode(data))),
        "bits_over_limit": round(8 * len(data) / limit, 4),
    }


def _seconds(task: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        task()
        times.append(time.process_time() - start)
    return min(times)
