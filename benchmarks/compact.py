"""What taking dead filters out is worth, over multiplying them by zero.

Steps of SGD as clients take them, in turns: a model in which half of the units of every layer are
masked, and the same model without them. Also what it takes to make the small model, and the step of
a client of FedSparse, gates and all, with 60 % of its groups pruned.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

import gossamer as gs
from gossamer import fields, models, submodels
from gossamer.core import Batch, Client, Ctx, Data, Examples, Params
from gossamer.methods.as_published.fedsparse import FedSparseVariants
from gossamer.optim import sgd

TURNS = 15
STEPS = 4
BATCH = 64
MODELS: dict[str, tuple[int, int, int]] = {
    "lenet5_caffe": (1, 28, 28),
    "resnet8": (3, 32, 32),
    "resnet20": (3, 32, 32),
}
PRUNED = 0.6
GATED: dict[str, tuple[str, tuple[int, int, int], bool]] = {
    "lenet5": ("lenet5", (3, 32, 32), False),
    "lenet5 --gate-bias": ("lenet5", (3, 32, 32), True),
    "lenet5_caffe": ("lenet5_caffe", (1, 28, 28), False),
    "resnet20 --gate-bias": ("resnet20", (3, 32, 32), True),
}


def measure() -> dict[str, object]:
    """Processor time of masked steps as a multiple of that of compacted ones."""
    torch.set_num_threads(1)
    job = f"{STEPS} steps, batch {BATCH}, half of all units, one core, median of {TURNS} turns"
    return {
        "job": job,
        "models": {name: _model(name, shape) for name, shape in MODELS.items()},
        "fedsparse": {name: _fedsparse(*what) for name, what in GATED.items()},
    }


def _model(name: str, shape: tuple[int, int, int]) -> dict[str, object]:
    batch = _batch(shape)
    task = gs.Task.of(models.build(name, shape, 10), batch.x[:2], start="seed")
    params = task.init(gs.Key(1))
    start = time.process_time()
    structure = submodels.trace(task)
    traced = time.process_time() - start
    # Every other unit: layers that share units must agree on those they lose.
    keep = {layer: torch.arange(count) % 2 < 1 for layer, count in structure.units.items()}
    making = []
    for _ in range(TURNS):
        fresh = task.copy()  # a task remembers what was made for it
        start = time.process_time()
        submodels.compact(fresh, params, keep)
        making.append(time.process_time() - start)
    cut = structure.cut(keep)
    masks = {layer: mask.float() for layer, mask in cut.masks().items()}
    masked = task.own(submodels.masked(task, params, keep))
    small, thin = cut.task(task), cut.task(task).own(cut.take(params))
    ways: dict[str, Callable[[], None]] = {
        "masked": lambda: _train(task, masked, batch, masks),
        "compacted": lambda: _train(small, thin, batch, {}),
    }
    seconds = _in_turns(ways)
    pairs = zip(seconds["masked"], seconds["compacted"], strict=True)
    return {
        "seconds": {way: round(statistics.median(times), 4) for way, times in seconds.items()},
        "masked_to_compacted": round(statistics.median(a / b for a, b in pairs), 2),
        "parameters": round(cut.layout.count / task.layout.count, 3),
        "products": round(cut.layout.macs / task.layout.macs, 3),
        "milliseconds_to_trace": round(1e3 * traced, 1),
        "milliseconds_to_make": round(1e3 * statistics.median(making), 1),
    }


def _fedsparse(name: str, shape: tuple[int, int, int], gate_bias: bool) -> dict[str, object]:
    """A client's step without what is pruned, over the same with all of it."""
    batch = _batch(shape)
    task = gs.Task.of(models.build(name, shape, 10), batch.x[:2], start="seed")
    method = FedSparseVariants(gate_bias=gate_bias)
    ctx = Ctx(task, 1, 1, gs.Key(5), gs.Key(6))
    state = method.init(ctx)
    draw = gs.Key(7).generator()
    layers = method.pure.groups(ctx).split(state.thresholds).values()
    chosen = torch.cat([torch.rand(part.shape, generator=draw) < PRUNED for part in layers])
    raised = torch.where(chosen, 30.0, state.thresholds)
    pruned = method.prune(ctx, replace(state, thresholds=raised))
    down = method.down(ctx, pruned, Client(0, BATCH))
    own = Examples(batch.x, batch.y)
    here = replace(ctx, data=Data(own, own, own))
    ways: dict[str, Callable[[], None]] = {}
    trained = {}
    for way, compact in (("whole", False), ("compacted", True)):
        mine = fields.replace(method, {"compact": compact})
        work = mine.begin(here, down, None).work
        trained[way] = sum(tensor.numel() for tensor in work.params.values())

        def steps(mine: FedSparseVariants = mine, work: object = work) -> None:
            for _ in range(STEPS):
                mine.step(here, work, batch)  # type: ignore[arg-type]

        ways[way] = steps
    seconds = _in_turns(ways)
    pairs = zip(seconds["compacted"], seconds["whole"], strict=True)
    return {
        "parameters": trained,
        "compacted_to_whole": round(statistics.median(a / b for a, b in pairs), 2),
    }


def _batch(shape: tuple[int, int, int]) -> Batch:
    draw = gs.Key(3).generator()
    x = torch.rand(BATCH, *shape, generator=draw).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (BATCH,), generator=draw)
    return Batch(x, y, gs.Key(4), step=0, steps=1, epoch=0, epochs=1.0, per_epoch=1)


def _in_turns(ways: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Processor time of every way in every turn."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(TURNS + 1):
        for way, train in ways.items():
            start = time.process_time()
            train()
            if turn:  # the first one warms up
                seconds[way].append(time.process_time() - start)
    return seconds


def _train(task: gs.Task, params: Params, batch: Batch, masks: Params) -> None:
    for _ in range(STEPS):
        grads = task.gradients(params, batch, masks).grads
        sgd([params[name] for name in grads], list(grads.values()), [], rate=0.01)
