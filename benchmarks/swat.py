"""A step of SWAT by the package's own kernels, over torch's with dense tensors that have zeros.

One thread, medians of interleaved turns: loss and gradients of one batch, at a tenth of the weights
and activations, with the search for the largest of them.
"""

import torch

import gossamer as gs
from benchmarks.arithmetic import MODELS as SHAPES
from benchmarks.arithmetic import TURNS, clock
from gossamer import models
from gossamer.core import Batch
from gossamer.engine.processor import keep_freed_memory
from gossamer.sparsity import swat

DENSITY = 0.1
MODELS = ("lenet5_caffe", "femnist_cnn", "cnn7", "resnet8", "resnet18:width=32", "mlp")


def measure() -> dict[str, object]:
    """Torch's time over the kernels', model by model."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    return {
        "job": f"gradients at density {DENSITY}, one thread, median of {TURNS} interleaved turns",
        "times_as_fast": {f"{name}, batch {SHAPES[name][1]}": _ratio(name) for name in MODELS},
    }


def _ratio(name: str) -> float:
    shape, size = SHAPES[name]
    draw = gs.Key(1).generator()
    x = torch.randn(size, *shape, generator=draw).contiguous(memory_format=torch.channels_last)
    batch = Batch(x, torch.randint(10, (size,), generator=draw), gs.Key(2), 0, 1, 0, 1.0, 1)
    task = gs.Task.of(models.build(name, shape, 10), x[:2], start="seed")
    sparse = swat.sparse_task(task, DENSITY)
    unknown = {name: torch.zeros(2) for name in swat.cuts(sparse)}
    params = sparse.own({**task.init(gs.Key(0)), **unknown})

    def kernels() -> object:
        swat.forget(sparse, params)
        return swat.gradients(task, sparse, params, batch, DENSITY)

    def dense() -> object:
        swat.forget(sparse, params)
        return sparse.gradients(params, batch)

    seconds = clock({"kernels": kernels, "torch": dense})
    return round(seconds["torch"] / seconds["kernels"], 2)
