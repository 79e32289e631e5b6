"""What taking dead filters out is worth, over multiplying them by zero.

Steps of SGD as clients take them, in turns: a model in which half of the units of every layer are
masked, and the same model without them. Also what it takes to make the small model.
"""

import statistics
import time
from collections.abc import Callable

import torch

import gossamer as gs
from gossamer import groups, models
from gossamer.core import Batch, Params
from gossamer.optim import sgd

TURNS = 15
STEPS = 4
BATCH = 64
MODELS: dict[str, tuple[int, int, int]] = {
    "lenet5_caffe": (1, 28, 28),
    "resnet8": (3, 32, 32),
    "resnet20": (3, 32, 32),
}


def measure() -> dict[str, object]:
    """Processor time of masked steps as a multiple of that of compacted ones."""
    torch.set_num_threads(1)
    job = f"{STEPS} steps, batch {BATCH}, half of all units, one core, median of {TURNS} turns"
    return {"job": job, "models": {name: _model(name, shape) for name, shape in MODELS.items()}}


def _model(name: str, shape: tuple[int, int, int]) -> dict[str, object]:
    draw = gs.Key(3).generator()
    x = torch.rand(BATCH, *shape, generator=draw).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (BATCH,), generator=draw)
    batch = Batch(x, y, gs.Key(4), step=0, steps=1, epoch=0, epochs=1.0, per_epoch=1)
    task = gs.Task.of(models.build(name, shape, 10), x[:2])
    params = task.init(gs.Key(1))
    start = time.process_time()
    structure = groups.trace(task)
    traced = time.process_time() - start
    # Every other unit: layers that share units must agree on those they lose.
    keep = {layer: torch.arange(count) % 2 < 1 for layer, count in structure.units.items()}
    making = []
    for _ in range(TURNS):
        fresh = task.copy()  # a task remembers what was made for it
        start = time.process_time()
        groups.compact(fresh, params, keep)
        making.append(time.process_time() - start)
    cut = structure.cut(keep)
    masks = {layer: mask.float() for layer, mask in cut.masks().items()}
    masked = task.own(groups.masked(task, params, keep))
    small, thin = cut.task(task), cut.task(task).own(cut.take(params))
    ways: dict[str, Callable[[], None]] = {
        "masked": lambda: _train(task, masked, batch, masks),
        "compacted": lambda: _train(small, thin, batch, {}),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(TURNS + 1):
        for way, train in ways.items():
            start = time.process_time()
            train()
            if turn:  # the first one warms up
                seconds[way].append(time.process_time() - start)
    pairs = zip(seconds["masked"], seconds["compacted"], strict=True)
    return {
        "seconds": {way: round(statistics.median(times), 4) for way, times in seconds.items()},
        "masked_to_compacted": round(statistics.median(a / b for a, b in pairs), 2),
        "parameters": round(cut.layout.count / task.layout.count, 3),
        "products": round(cut.layout.macs / task.layout.macs, 3),
        "milliseconds_to_trace": round(1e3 * traced, 1),
        "milliseconds_to_make": round(1e3 * statistics.median(making), 1),
    }


def _train(task: gs.Task, params: Params, batch: Batch, masks: Params) -> None:
    for _ in range(STEPS):
        grads = task.gradients(params, batch, masks).grads
        sgd([params[name] for name in grads], list(grads.values()), [], rate=0.01)
