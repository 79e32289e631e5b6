"""What masks cost on a client, over dense training for as many steps.

One client trains for an epoch, by FedAvg, SPDST and JMWST in turns: all of the client's work from
the message it receives to the one it sends, and the steps alone. SPDST holds its mask; JMWST moves
it once, in the middle.
"""

import statistics
import time

import torch

import gossamer as gs
from gossamer import models
from gossamer.core import Data, Examples
from gossamer.engine.client import AnyMethod, batches, train

TURNS = 15
MODELS: dict[str, tuple[tuple[int, int, int], int]] = {
    "lenet5_caffe": ((1, 28, 28), 600),
    "mnistnet": ((1, 28, 28), 300),
    "resnet8": ((3, 32, 32), 96),
}
BATCH = 32


def measure() -> dict[str, object]:
    """Seconds of a participation and of its steps, as multiples of FedAvg's."""
    torch.set_num_threads(1)
    return {
        "job": f"one epoch, batch {BATCH}, density 0.05, one core, median of {TURNS} turns",
        "models": {name: _model(name, shape, count) for name, (shape, count) in MODELS.items()},
    }


def _model(name: str, shape: tuple[int, int, int], count: int) -> dict[str, object]:
    draw = gs.Key(3).generator()
    x = torch.rand(count, *shape, generator=draw)
    y = torch.randint(10, (count,), generator=draw)
    nothing = Examples(x[:0], y[:0])
    task = gs.Task.of(models.build(name, shape, 10), x[:2])
    client = gs.Ctx(
        task, 2, 500, gs.Key(1).fold("client"), gs.Key(2), Data(Examples(x, y), nothing, nothing)
    )
    methods: dict[str, AnyMethod] = {
        "fedavg": gs.FedAvg(training=gs.Training(epochs=1, batch=BATCH, lr=0.01)),
        "spdst": gs.METHODS["spdst"],
        "jmwst": gs.METHODS["jmwst"],
    }
    downs, locals = {}, {}
    for label, method in methods.items():
        server = gs.Ctx(task, 2, 500, gs.Key(1), gs.Key(2))
        state = method.init(server)
        downs[label] = method.down(server, state, gs.Client(0, count))
        locals[label] = train(method, client, downs[label], None).result.local
    whole: dict[str, list[float]] = {label: [] for label in methods}
    steps: dict[str, list[float]] = {label: [] for label in methods}
    for _ in range(TURNS):
        for label, method in methods.items():
            start = time.process_time()
            train(method, client, downs[label], locals[label])
            whole[label].append(time.process_time() - start)
            job = method.begin(client, downs[label], locals[label])
            work, prepared = job.work, list(batches(client, job))
            start = time.process_time()
            for batch in prepared:
                work = method.step(client, work, batch)
            steps[label].append(time.process_time() - start)
    return {
        "seconds": {label: round(statistics.median(times), 4) for label, times in whole.items()},
        "whole_to_fedavg": _ratios(whole),
        "steps_to_fedavg": _ratios(steps),
    }


def _ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    base = seconds["fedavg"]
    return {
        label: round(statistics.median(a / b for a, b in zip(times, base, strict=True)), 3)
        for label, times in seconds.items()
    }
