"""What a client of each budget takes: seconds, memory, weights and FLOPs of HeteroFL and relatives.

Every client trains on the same examples, in a process of its own, with one thread. The clients of a
method take turns, so that a ratio compares what ran within the same seconds. Memory is the peak of
the resident set in training over what the process had when the sub-model had arrived.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
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
EXAMPLES, BATCH, TURNS = 300, 20, 5
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
Figures = dict[str, float]


def measure() -> dict[str, object]:
    """Of each method, by budget."""
    return {
        "job": f"{MODEL}, {EXAMPLES} examples, batches of {BATCH}, one epoch, one thread; medians "
        f"of {TURNS} turns, in which the clients of a method follow one another",
        "methods": {name: by_budget(_turns(name)) for name in METHODS},
    }


def by_budget(turns: dict[float, list[Figures]]) -> dict[str, Figures]:
    """Medians of each budget, and medians of the ratios to the full model in the same turn."""
    found = {}
    for budget, each in turns.items():
        figures = {name: median(turn[name] for turn in each) for name in each[0]}
        for name in ("seconds", "megabytes"):
            pairs = zip(each, turns[1.0], strict=True)
            figures[f"{name}_over_full"] = median(turn[name] / full[name] for turn, full in pairs)
        found[str(budget)] = figures
    return found


def _turns(method: str) -> dict[float, list[Figures]]:
    """What every client took, turn by turn; one process for each budget, one at work at a time."""
    # Large blocks go back to the system at once, so that the resident set is what is in use.
    own = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "4096"}
    found: dict[float, list[Figures]] = {budget: [] for budget in BUDGETS}
    with ExitStack() as stack:
        clients = {}
        for budget in BUDGETS:
            words = [sys.executable, "-m", "benchmarks.widths", method, str(budget)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = stack.enter_context(subprocess.Popen(words, text=True, env=own, **pipes))
            clients[budget] = process
            _answer(process)  # it has begun, and has trained once
        for _ in range(TURNS):
            for budget, process in clients.items():
                found[budget].append(_answer(process, ask=True))
        for process in clients.values():
            assert process.stdin is not None
            process.stdin.close()
    return found


def _answer(process: subprocess.Popen[str], ask: bool = False) -> Figures:
    assert process.stdin is not None and process.stdout is not None
    if ask:
        process.stdin.write("turn\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{process.args} ended with {process.wait()} before it had answered")
    found: Figures = json.loads(line)
    return found


def client(name: str, budget: float) -> Callable[[], Figures]:
    """A client with its sub-model; each call trains one round and tells what it took."""
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
    shared = {
        "weights": sum(tensor.numel() for tensor in down.params.values()),
        "gflops": FLOPS["passes"](effort) / 1e9,
    }
    del done, effort

    def turn() -> Figures:
        gc.collect()
        before = _peak(reset=True)
        started = process_time()
        train(method, ctx, down, None)
        seconds = process_time() - started
        return shared | {"seconds": seconds, "megabytes": _peak() - before}

    return turn


def _peak(reset: bool = False) -> float:
    """The largest resident set of this process since the last reset, in megabytes."""
    if not STATUS.exists():
        return float("nan")
    if reset:
        ctypes.CDLL(None).malloc_trim(0)
        CLEAR.write_text("5")
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def main() -> None:
    """A client that answers every line of its input with the figures of one more round."""
    turn = client(sys.argv[1], float(sys.argv[2]))
    print(json.dumps(turn()), flush=True)
    for _ in sys.stdin:
        print(json.dumps(turn()), flush=True)


if __name__ == "__main__":
    main()
