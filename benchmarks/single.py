"""One example at a time: sparse models over their dense forms in ONNX Runtime and torch.

One thread, processor time, medians of interleaved turns. The first convolution and the head are
dense, as the papers keep them; all other layers have one density.
"""

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import gossamer as gs
from benchmarks.arithmetic import TURNS, _masks, clock
from gossamer import export, models
from gossamer.arithmetic.library import library
from gossamer.core import Examples
from gossamer.export import Model

DENSITIES = (0.1, 0.05, 0.01)
MODELS: dict[str, tuple[int, int, int]] = {
    "lenet5_caffe": (1, 28, 28),
    "conv6": (3, 32, 32),
    "femnist_cnn": (1, 28, 28),
}


def measure() -> dict[str, object]:
    """How many times as fast as the dense model, and microseconds."""
    kernels = library()
    if kernels is None or importlib.util.find_spec("onnxruntime") is None:
        return {"skipped": "the kernels are not built, or onnxruntime is missing"}
    torch.set_num_threads(1)
    return {
        "job": f"one example, one thread, median of {TURNS} interleaved turns",
        "build": kernels.build,
        "models": {name: _model(name, shape) for name, shape in MODELS.items()},
    }


def _model(name: str, shape: tuple[int, int, int]) -> dict[str, object]:
    import onnxruntime

    draw = gs.Key(1).generator()
    x = torch.randn(2, *shape, generator=draw)
    task = gs.Task.of(models.build(name, shape, 10), x, start="seed")
    params = task.init(gs.Key(0))
    test = Examples(x, torch.zeros(2, dtype=torch.int64))
    dense = Model(task, params, {}, test)
    one = x[:1].numpy()
    ways: dict[str, Callable[[], object]] = {}
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        export.save(dense, Path(folder, "dense.onnx"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            str(Path(folder, "dense.onnx")), options, providers=["CPUExecutionProvider"]
        )
        put = session.get_inputs()[0].name
        ways["onnxruntime"] = lambda: session.run(None, {put: one})
        sizes["onnxruntime"] = Path(folder, "dense.onnx").stat().st_size
        for density in DENSITIES:
            masks = _masks(task, density)
            sparse = {n: t * masks[n] if n in masks else t for n, t in params.items()}
            path = Path(folder, f"{density}.gsm")
            export.save(Model(task, sparse, {}, test), path)
            predict = gs.load(path)
            ways[str(density)] = lambda predict=predict: predict(one)  # type: ignore[misc]
            sizes[str(density)] = path.stat().st_size
    module = dense.module().to(memory_format=torch.channels_last)
    image = x[:1].contiguous(memory_format=torch.channels_last)

    def forward() -> None:
        with torch.inference_mode():
            module(image)

    ways["torch"] = forward
    seconds = clock(ways)
    labels = [str(density) for density in DENSITIES]
    return {
        "times_as_fast_as_onnxruntime": {
            label: round(seconds["onnxruntime"] / seconds[label], 2) for label in labels
        },
        "times_as_fast_as_torch": {
            label: round(seconds["torch"] / seconds[label], 2) for label in labels
        },
        "microseconds": {way: round(1e6 * taken, 1) for way, taken in seconds.items()},
        "bytes": sizes,
    }
