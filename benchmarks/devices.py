"""A million devices with traces and a cohort of a thousand: start-up, time per event, memory.

A small network on Synthetic(1, 1), no evaluation. Every device has two spans in a CSV file of its
own making. Synchronous: rounds of 1,000 clients. Asynchronous: 1,000 clients under way, merged by
100; an event is a reply. The same with a pool of ten thousand, so that what grows with the pool is
seen. Each run is in a process of its own.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import gossamer as gs
from benchmarks.machine import Seconds
from gossamer import data, models
from gossamer.engine.events import Started

POOLS = (10_000, 1_000_000)
COHORT = 1000
MIXTURE = "phone-2024:50%,raspberry-pi-4:30%,mcu:20%"
DAY = 86400


def traces(pool: int, path: Path) -> Path:
    """Two spans a day for everybody: at night, and around noon."""
    draw = np.random.default_rng(1)
    night = np.maximum(draw.uniform(-2 * 3600, 6 * 3600, pool), 0)
    noon = draw.uniform(10 * 3600, 14 * 3600, pool)
    rows = np.empty((2 * pool, 3))
    rows[:, 0] = np.repeat(np.arange(pool), 2)
    rows[0::2, 1], rows[0::2, 2] = night, night + 2 * 3600
    rows[1::2, 1], rows[1::2, 2] = noon, noon + 3600
    with path.open("w") as file:
        file.write("client,from,until\n")
        np.savetxt(file, rows, fmt=("%d", "%.1f", "%.1f"), delimiter=",")
    return path


class Ready:
    """Notes when the first event was written."""

    def __init__(self) -> None:
        self.at = 0.0

    def emit(self, event: object, clock: object) -> None:
        if isinstance(event, Started):
            self.at = time.perf_counter()

    def close(self) -> None:
        pass


def child(pool: int, kind: str, folder: str) -> dict[str, float]:
    """One run in this process."""
    path = Path(folder) / f"traces-{pool}.csv"
    began = time.perf_counter()
    federation = data.federation("synthetic", pool=pool, seed=1)
    task = gs.Task.of(
        models.build("mlp:hidden=32", (60,), 10), federation.client(0).train.x[:2], start="seed"
    )
    how = {"asynchronous": f"buffer=100,concurrency={COHORT}"} if kind == "asynchronous" else {}
    options = gs.Options(eval_every=0, devices=MIXTURE, spread=0.5, **how)
    options = gs.Options(**{**vars(options), "availability": f"{path}@1d"})
    seconds, ready = Seconds(), Ready()
    rounds = 12 if how else 3
    method = gs.FedAvg(clients=COHORT, training=gs.Training(batch=32))
    parts = (method, task, federation)
    summary = gs.run(
        *parts, rounds=rounds, seed=1, options=options, sinks=[seconds, ready], quiet=True
    )
    later = seconds.rounds[1:]
    events = 100 if how else COHORT
    return {
        "start_up_seconds": ready.at - began,
        "first_round_seconds": seconds.rounds[0],
        "milliseconds_per_event": 1e3 * sum(later) / len(later) / events,
        "virtual_seconds": summary.device_seconds or 0.0,
        "peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def measure() -> dict[str, object]:
    """Both kinds of runs with both pools."""
    found: dict[str, object] = {"job": f"mlp 60-32-10 on synthetic:1,1, cohort {COHORT}, traces"}
    with tempfile.TemporaryDirectory() as folder:
        for pool in POOLS:
            traces(pool, Path(folder) / f"traces-{pool}.csv")
            for kind in ("synchronous", "asynchronous"):
                words = [sys.executable, "-m", "benchmarks.devices", str(pool), kind, folder]
                told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
                figures = json.loads(told.splitlines()[-1])
                found[f"{kind}, {pool:,} devices"] = {n: round(x, 3) for n, x in figures.items()}
    return found


if __name__ == "__main__":
    print(json.dumps(child(int(sys.argv[1]), sys.argv[2], sys.argv[3])))
