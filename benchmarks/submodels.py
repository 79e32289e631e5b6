"""What a client of each budget takes: seconds, memory, weights and FLOPs of HeteroFL and relatives.

Every client trains on the same examples, in a process of its own, with one thread. Memory is the
peak of its resident set in training over what it had when the sub-model had arrived.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import process_time

import torch

import gossamer as gs
from gossamer.accounting import FLOPS, Effort, densities
from gossamer.core import Data
from gossamer.engine.client import server_ctx, train

BUDGETS = (1.0, 0.5, 0.25, 0.125, 0.0625)
METHODS = ("heterofl", "fjord", "fedrolex")
MODEL, SHAPE, CLASSES = "conv6", (3, 32, 32), 10
EXAMPLES, BATCH, TURNS = 300, 20, 3
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure() -> dict[str, object]:
    """Of each method, by budget."""
    found = {
        name: {str(budget): _in_process(name, budget) for budget in BUDGETS} for name in METHODS
    }
    return {
        "job": f"{MODEL}, {EXAMPLES} examples, batches of {BATCH}, one epoch, one thread; "
        f"median processor time of {TURNS} turns",
        "methods": found,
    }


def _in_process(method: str, budget: float) -> dict[str, float]:
    words = [sys.executable, "-m", "benchmarks.submodels", method, str(budget)]
    # Large blocks go back to the system at once, so that the resident set is what is in use.
    own = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "4096"}
    told = subprocess.run(words, check=True, capture_output=True, text=True, env=own)
    found: dict[str, float] = json.loads(told.stdout)
    return found


def client(name: str, budget: float) -> dict[str, float]:
    """One client's round, several times."""
    torch.set_num_threads(1)
    draw = gs.Key(1).generator()
    x = torch.randn(EXAMPLES, *SHAPE, generator=draw)
    y = torch.randint(CLASSES, (EXAMPLES,), generator=draw)
    task = gs.Task.of(gs.models.build(MODEL, SHAPE, CLASSES), x[:2])
    settings = {"epochs": 1, "batch": BATCH, "lr": 0.01}
    method = gs.fields.replace(gs.METHODS[name], settings)
    server = server_ctx(task, gs.Key(0), 1, 1, BUDGETS[::-1])
    down = method.down(server, method.init(server), gs.Client(0, EXAMPLES, budget))
    nothing = gs.Examples(x[:0], y[:0])
    ctx = replace(server, budgets=(1.0,), data=Data(gs.Examples(x, y), nothing, nothing))
    done = train(method, ctx, down, None)  # also builds what is built once
    effort = Effort(
        task.layout, densities(done.result.masks), done.examples, done.steps, done.per_epoch
    )
    found = {
        "weights": sum(tensor.numel() for tensor in down.params.values()),
        "gflops": FLOPS["passes"](effort) / 1e9,
    }
    del done, effort
    gc.collect()
    seconds, peaks = [], []
    for _ in range(TURNS):
        before = _peak(reset=True)
        started = process_time()
        train(method, ctx, down, None)
        seconds.append(process_time() - started)
        peaks.append(_peak() - before)
    return found | {"seconds": median(seconds), "megabytes": median(peaks)}


def _peak(reset: bool = False) -> float:
    """The largest resident set of this process since the last reset, in megabytes."""
    if not STATUS.exists():
        return float("nan")
    if reset:
        ctypes.CDLL(None).malloc_trim(0)
        CLEAR.write_text("5")
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    print(json.dumps(client(sys.argv[1], float(sys.argv[2]))))
