"""The share of a LeNet round that goes into encoding and decoding its messages.

Also what few changes of a mask take as one number, beside the gaps that larger changes travel as.

The messages of the job of `speed`: dense ones as FedAvg sends them, and packed ones with their mask
at density 0.1. Each is written and read over and over, best of many; the time of a round is that of
the engine in the same run.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

import gossamer as gs
from benchmarks.machine import Seconds
from gossamer import data, models
from gossamer.wire import Packed, Schema, decode, pack, write
from gossamer.wire.masks import few, rice
from gossamer.wire.masks.bits import Bits
from gossamer.wire.masks.entropy import conditional_bits

REPEATS = 100
ROUNDS = 4
CLIENTS = 10
CHANGES = ((0.01, 0.01), (0.05, 0.01), (0.01, 0.05))
"""Densities of masks, and the share of their ones that move."""


@dataclass(frozen=True)
class Dense:
    params: gs.Params


@dataclass(frozen=True)
class Sparse:
    masks: gs.Masks
    values: Packed


def measure() -> dict[str, object]:
    """Milliseconds to write and read a message, and the share of a round that all of them take."""
    federation = data.federation("fmnist-mini", "dirichlet:0.2", pool=20, seed=1)
    example = federation.client(0).train.x[:2]
    task = gs.Task.of(models.build("lenet5_caffe", (1, 28, 28), 10), example, start="seed")
    params = task.init(gs.Key(1))
    masks = {name: torch.rand(t.shape) < 0.1 for name, t in params.items()}
    messages = {"dense": Dense(params), "density 0.1": Sparse(masks, pack(params, masks))}
    seconds = Seconds()
    method = gs.FedAvg(clients=CLIENTS, training=gs.Training(epochs=1, batch=64))
    options = gs.Options(eval_every=0)
    gs.run(method, task, federation, rounds=ROUNDS, seed=1, options=options, sinks=[seconds])
    round_seconds = statistics.median(seconds.rounds)
    torch.set_num_threads(1)
    shapes = [tuple(tensor.shape) for tensor in params.values()]
    found = {}
    for name, record in messages.items():
        schema = Schema.of(record)
        blob = write(record, schema).data
        writing = _best(lambda record=record: write(record, Schema.of(record)))
        reading = _best(lambda blob=blob, schema=schema: decode(blob, schema))
        found[name] = {
            "write_ms": round(1e3 * writing, 3),
            "read_ms": round(1e3 * reading, 3),
            "encoding_share_of_round": round(CLIENTS * writing / round_seconds, 4),
            "decoding_share_of_round": round(CLIENTS * reading / round_seconds, 4),
        }
    return {
        "job": f"lenet5_caffe, fmnist-mini, 20 clients, {CLIENTS} a round of 5,000 examples",
        "seconds_per_round": round(round_seconds, 3),
        "messages": found,
        "few_changes": [_changes(shapes, *pair) for pair in CHANGES],
        "notes": "shares: two messages a client, one by one, of the core time of two cores",
    }


def _changes(shapes: list[tuple[int, ...]], density: float, moved: float) -> dict[str, object]:
    """Bytes and times of the changes of a random mask, as one number and by gaps."""
    draw = np.random.default_rng(1)
    old = [_mask(draw, shape, density) for shape in shapes]
    new = [_moved(draw, mask, moved) for mask in old]
    number, writing, reading = _coded(new, old)
    with _gaps_only():
        gaps, slower, longer = _coded(new, old)
    return {
        "density": density,
        "changes": sum(int((one ^ two).sum()) for one, two in zip(new, old, strict=True)),
        "bytes": number,
        "bytes_by_gaps": gaps,
        "over_limit": round(8 * number / conditional_bits(new, old), 4),
        "write_over_gaps": round(writing / slower, 2),
        "read_over_gaps": round(reading / longer, 2),
    }


def _coded(new: list[Bits], old: list[Bits]) -> tuple[int, float, float]:
    blob = rice.encode_given(new, old)
    writing = _best(lambda: rice.encode_given(new, old))
    return len(blob), writing, _best(lambda: rice.decode_given(blob, old))


@contextmanager
def _gaps_only() -> Iterator[None]:
    most, few.MOST = few.MOST, -1
    try:
        yield
    finally:
        few.MOST = most


def _mask(draw: np.random.Generator, shape: tuple[int, ...], density: float) -> Bits:
    found: Bits = draw.random(shape) < density
    return found


def _moved(draw: np.random.Generator, mask: Bits, share: float) -> Bits:
    """As many ones at other places as are lost."""
    flat = mask.flatten()
    count = round(share * flat.sum())
    lost = draw.choice(np.flatnonzero(flat), count, replace=False)
    gained = draw.choice(np.flatnonzero(~flat), count, replace=False)
    flat[lost], flat[gained] = False, True
    return flat.reshape(mask.shape)


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)
