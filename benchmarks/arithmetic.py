"""A training step of the package's own kernels, over one of masked-dense torch.

One thread, medians of interleaved turns, one process for each build of the kernels. Beside the
build for AVX2, torch is held to AVX2 too, as on a processor that has no more. The first
convolution and the head are dense, as the papers keep them; all other layers have one density. The
memory is what a step needs beside the batch: activations and their gradients, parameters, gradients
and momentum, as the kernels hold them and as torch allocates them.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

import gossamer as gs
from gossamer import models
from gossamer.arithmetic.library import BUILDS, FOLDER, VARIABLE, library
from gossamer.arithmetic.model import Model
from gossamer.core import Batch
from gossamer.engine.processor import keep_freed_memory

TURNS = 5
DENSITIES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
MODELS: dict[str, tuple[tuple[int, int, int], int]] = {
    "lenet5_caffe": (GREY, 64),
    "mnistnet": (GREY, 64),
    "lenet_cifar": (COLOUR, 64),
    "femnist_cnn": (GREY, 64),
    "cnn7": (COLOUR, 32),
    "conv6": (COLOUR, 32),
    "resnet8": (COLOUR, 64),
    "resnet20": (COLOUR, 64),
    "resnet18:width=32": (COLOUR, 32),
    "resnet18:width=64": (COLOUR, 32),
    "mlp": (GREY, 16),
    "mlp:hidden=1000x1000": (GREY, 16),
}
TORCH = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
}
"""Variables that hold torch and its libraries to the instructions of a build."""
TRAINING = gs.Training(momentum=0.9, lr=0.01)


def measure() -> dict[str, object]:
    """Ratios of every build that runs here, the best one first."""
    if library() is None:
        return {"skipped": "the kernels are not built"}
    best = library().build  # type: ignore[union-attr]
    builds = {}
    for build in BUILDS[BUILDS.index(best) : -1] or [best]:
        if (FOLDER / f"kernels_{build}.so").is_file():
            command = [sys.executable, "-m", "benchmarks.arithmetic"]
            environment = {**os.environ, VARIABLE: build, **TORCH.get(build, {})}
            text = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
            builds[build] = json.loads(text.stdout)
    return {
        "job": f"one step with momentum, one thread, median of {TURNS} interleaved turns",
        "builds": builds,
    }


def ratios() -> dict[str, object]:
    """Torch's time over the kernels', model by model and density by density."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    return {
        f"{name}, batch {size}": _model(name, *MODELS[name]) for name, (_, size) in MODELS.items()
    }


def _model(name: str, shape: tuple[int, int, int], size: int) -> dict[str, object]:
    draw = gs.Key(1).generator()
    x = torch.randn(size, *shape, generator=draw).contiguous(memory_format=torch.channels_last)
    batch = Batch(x, torch.randint(10, (size,), generator=draw), gs.Key(2), 0, 1, 0, 1.0, 1)
    module = models.build(name, shape, 10)
    tasks = {
        way: gs.Task.of(module, x[:2], arithmetic=way, start="seed")
        for way in ("torch", "native", "auto")
    }
    steps: dict[str, Callable[[], object]] = {}
    trained: dict[str, Model] = {}
    rule = gs.Task.of(module, x[:2], start="seed")
    chosen = {}
    for density in DENSITIES:
        masks = _masks(tasks["torch"], density)
        trained[f"native {density}"] = _start(tasks["native"], masks)
        chosen[density] = rule.native_for(masks, batch) is not None
    trained["torch"] = _start(tasks["torch"], _masks(tasks["torch"], 0.05))
    for label, model in trained.items():
        steps[label] = lambda model=model: model.step(batch, TRAINING, 0.01)  # type: ignore[misc]
    seconds = clock(steps)
    over = {label: round(seconds["torch"] / taken, 2) for label, taken in seconds.items()}
    return {
        "torch_ms": round(1e3 * seconds["torch"], 3),
        "kernels": {str(d): over[f"native {d}"] for d in DENSITIES},
        # Where the rule chooses torch, a step is torch's.
        "by_rule": {str(d): over[f"native {d}"] if chosen[d] else 1.0 for d in DENSITIES},
        "memory_mb": _memory(tasks["torch"], tasks["native"], batch),
    }


def _masks(task: gs.Task, density: float) -> gs.Masks:
    layers = [name for name in task.layout.parameters if len(task.layout[name].shape) > 1]
    inner = layers[1 if task.layout[layers[0]].kind == "conv" else 0 : -1]
    draw = gs.Key(3).generator()
    shapes = {name: task.layout[name].shape for name in inner if density < 1}
    return {name: torch.rand(shape, generator=draw) < density for name, shape in shapes.items()}


def _start(task: gs.Task, masks: gs.Masks) -> Model:
    params = task.init(gs.Key(0))
    params |= {name: params[name] * mask for name, mask in masks.items()}
    return Model(task, task.own(params), masks)


def clock(steps: dict[str, Callable[[], object]], least: float = 0.03) -> dict[str, float]:
    """The median processor time of each step, measured in turns."""
    repeats = {}
    for label, step in steps.items():
        step()
        start = time.thread_time()
        step()
        repeats[label] = max(1, int(least / max(time.thread_time() - start, 1e-6)))
    taken: dict[str, list[float]] = {label: [] for label in steps}
    for _ in range(TURNS):
        for label, step in steps.items():
            step()
            start = time.thread_time()
            for _ in range(repeats[label]):
                step()
            taken[label].append((time.thread_time() - start) / repeats[label])
    return {label: statistics.median(times) for label, times in taken.items()}


def _memory(dense: gs.Task, sparse: gs.Task, batch: Batch) -> dict[str, float]:
    """Megabytes of a client's training: dense with torch, and at density 0.05 with the kernels."""
    weights = sum(leaf.count for leaf in dense.layout.leaves.values()) * 4
    model = _start(dense, {})
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.step(batch, TRAINING, 0.01)
    own = {tensor.untyped_storage().data_ptr() for tensor in model.params.values()}
    activations = sum(size for place, size in saved.items() if place not in own)
    masks = _masks(sparse, 0.05)
    packed = _start(sparse.copy(), masks)  # whose memory has not grown for dense layers
    packed.step(batch, TRAINING, 0.01)
    assert packed._packed is not None
    held = [packed._packed.values, packed._packed.grads, packed._packed.velocity]
    values = sum(tensor.nbytes for part in held for tensor in part.values())
    values += sum(12 * lists.count for lists in packed._packed.lists.values())
    native = packed._packed.native
    return {
        # Parameters, gradients and momentum; the float masks of a masked-dense step come on top.
        "torch_dense": round((3 * weights + activations) / 1e6, 2),
        "kernels_0.05": round((values + native.bytes) / 1e6, 2),
    }


if __name__ == "__main__":
    print(json.dumps(ratios()))
