"""Registered clients: time per round and peak memory with a fixed cohort and a growing pool.

A small network on Synthetic(1, 1), cohort of 10, no evaluation; each size in a process of its own,
the sizes in turns. What is compared is the last size with the first.
"""

import json
import resource
import statistics
import subprocess
import sys

import gossamer as gs
from benchmarks.machine import Seconds
from gossamer import data, models

SIZES = (100, 10_000, 100_000)
REPEATS = 3
ROUNDS = 300


def child(pool: int) -> dict[str, float]:
    """One run in this process: the median round and the peak of memory."""
    federation = data.federation("synthetic", pool=pool, seed=1)
    task = gs.Task.of(
        models.build("mlp:hidden=32", (60,), 10), federation.client(0).train.x[:2], start="seed"
    )
    seconds = Seconds()
    gs.run(
        gs.FedAvg(clients=10, training=gs.Training(batch=32)),
        task,
        federation,
        rounds=ROUNDS,
        seed=1,
        options=gs.Options(eval_every=0),
        sinks=[seconds],
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": statistics.median(seconds.rounds), "peak": peak}


def measure() -> dict[str, object]:
    """Medians over repeats, and the growth from the smallest pool to the largest."""
    found: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
    for _ in range(REPEATS):
        for size in SIZES:
            out = subprocess.run(
                [sys.executable, "-m", "benchmarks.scale", str(size)],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            found[size].append(json.loads(out.splitlines()[-1]))
    seconds = {size: statistics.median(r["seconds"] for r in found[size]) for size in SIZES}
    memory = {size: statistics.median(r["peak"] for r in found[size]) for size in SIZES}
    return {
        "job": f"mlp 60-32-10 on synthetic:1,1, cohort 10, {ROUNDS} rounds, evaluation off",
        "milliseconds_per_round": {str(n): round(1e3 * s, 2) for n, s in seconds.items()},
        "peak_MiB": {str(n): round(m / 2**20, 1) for n, m in memory.items()},
        "time_growth": round(seconds[SIZES[-1]] / seconds[SIZES[0]] - 1, 4),
        "memory_growth": round(memory[SIZES[-1]] / memory[SIZES[0]] - 1, 4),
    }


if __name__ == "__main__":
    print(json.dumps(child(int(sys.argv[1]))))
