"""The share of a LeNet round that goes into encoding and decoding its messages.

The messages of the job of `speed`: dense ones as FedAvg sends them, and packed ones with their mask
at density 0.1. Each is written and read over and over, best of many; the time of a round is that of
the engine in the same run.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import gossamer as gs
from benchmarks.machine import Seconds
from gossamer import data, models
from gossamer.wire import Packed, Schema, decode, pack, write

REPEATS = 100
ROUNDS = 4
CLIENTS = 10


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
    task = gs.Task.of(models.build("lenet5_caffe", (1, 28, 28), 10), example)
    params = task.init(gs.Key(1))
    masks = {name: torch.rand(t.shape) < 0.1 for name, t in params.items()}
    messages = {"dense": Dense(params), "density 0.1": Sparse(masks, pack(params, masks))}
    seconds = Seconds()
    method = gs.FedAvg(clients=CLIENTS, training=gs.Training(epochs=1, batch=64))
    options = gs.Options(eval_every=0)
    gs.run(method, task, federation, rounds=ROUNDS, seed=1, options=options, sinks=[seconds])
    round_seconds = statistics.median(seconds.rounds)
    torch.set_num_threads(1)
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
        "notes": "shares: two messages a client, one by one, of the core time of two cores",
    }


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)
