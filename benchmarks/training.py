"""Whole runs as a user starts them: seconds of local training of SPDST at 0.05, over FedAvg's.

`gossamer run` with two workers, in turns; seconds are those that clients report in the log. Round 1
is left out: SPDST's is the probe. FedAvg is run as it is, where small dense models have kernels of
their own too, and with torch. LeNet is also run by one worker, for the speed-up of two, and by two
processes at once with one worker each: they share nothing but the machine, so two workers can
hardly do better.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gossamer.data.sources import SOURCES
from gossamer.data.sources.search import find

ROUNDS = int(os.environ.get("GOSSAMER_BENCHMARK_ROUNDS", "4"))
TURNS = int(os.environ.get("GOSSAMER_BENCHMARK_REPEATS", "3"))
JOBS = {
    "lenet5_caffe": [
        *["--data", "fmnist", "--model", "lenet5_caffe", "--partition", "iid", "--pool", "100"],
        *["--clients", "10", "--batch", "64"],
    ],
    "resnet18:width=32": [
        *["--data", "cifar10", "--model", "resnet18:width=32", "--partition", "iid"],
        *["--pool", "400", "--clients", "4", "--batch", "32"],
    ],
}
METHODS = {
    "fedavg": ["fedavg"],
    "fedavg, torch": ["fedavg", "--arithmetic", "torch"],
    "spdst": ["spdst", "--density", "0.05", "--probe-clients", "2", "--probe-epochs", "1"],
}


def measure() -> dict[str, object]:
    """Medians of turns, and their ratios."""
    if absent := [name for name in ("fmnist", "cifar10") if find(SOURCES[name]) is None]:
        return {"skipped": f"{absent[0]} is not on this machine"}
    found: dict[str, object] = {"rounds": ROUNDS, "turns": TURNS}
    for job, options in JOBS.items():
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
        for _ in range(TURNS):
            for name, words in METHODS.items():
                taken[name].append(_run([*words, *options], workers=2))
        training = {name: statistics.median(t for t, _ in times) for name, times in taken.items()}
        rounds = {name: statistics.median(r for _, r in times) for name, times in taken.items()}
        found[job] = {
            "seconds_of_training": {name: round(each, 3) for name, each in training.items()},
            "ratio_of_training": _ratio(taken["fedavg"], taken["spdst"]),
            "ratio_to_torch": _ratio(taken["fedavg, torch"], taken["spdst"]),
            "ratio_of_rounds": round(rounds["fedavg"] / rounds["spdst"], 2),
            "command": " ".join(["gossamer run", *METHODS["spdst"], *options]),
        }
    words = [*METHODS["spdst"], *JOBS["lenet5_caffe"]]
    alone, both, apart = [], [], []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(TURNS):
            alone.append(_run(words, workers=1)[1])
            both.append(_run(words, workers=2)[1])
            processes = pool.map(lambda _: _run(words, workers=1)[1], range(2))
            apart.append(statistics.mean(processes) / 2)
    for name, taken in (("two_workers_over_one", both), ("two_processes_over_one", apart)):
        found[name] = round(statistics.median(alone) / statistics.median(taken), 2)
    return found


def _ratio(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> float:
    """The median over turns of the ratio of seconds of training."""
    pairs = zip(one, other, strict=True)
    return round(statistics.median(first[0] / second[0] for first, second in pairs), 2)


def _run(words: list[str], workers: int) -> tuple[float, float]:
    """Seconds of local training, and of rounds, from the second round on."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "gossamer", "run", *words, "--out", str(out)]
        command += ["--rounds", str(ROUNDS), "--epochs", "1", "--eval-every", "0", "--quiet"]
        command += ["--momentum", "0.9", "--lr", "0.01", "--workers", str(workers), "--seed", "1"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    seconds = {"client-finished": 0.0, "round-finished": 0.0}
    for event in events:
        if event["event"] in seconds and event["round"] > 1:
            seconds[event["event"]] += event["clock"]["seconds"]
    return seconds["client-finished"], seconds["round-finished"]
