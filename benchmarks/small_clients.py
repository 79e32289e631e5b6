"""Small clients: the engine against pfl-research, on the setting of pfl's CIFAR-10 benchmark.

1,000 clients of 50 examples, 50 a round, batch 10, one local epoch, FedAvg; the two-layer CNN of
that benchmark, and an MLP with 64 hidden units, whose clients take so little that what is around
their steps counts. Each side is a process of its own on one and the same core, with one torch
thread and without evaluation; they run in turns. Time is that of a round, without the start and the
first round.

pfl has an environment of its own, which is made in the cache if it is missing;
GOSSAMER_BENCHMARK_PFL names the Python of another one. GOSSAMER_BENCHMARK_REPEATS makes it shorter.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from gossamer import data
from gossamer.data.inputs import Images
from gossamer.data.sources.search import cache
from gossamer.engine import events

REPEATS = int(os.environ.get("GOSSAMER_BENCHMARK_REPEATS", "3"))
HERE = Path(__file__).parent
PACKAGES = ("numpy", "pfl")


@dataclass(frozen=True)
class Job:
    """What both sides train."""

    model: str
    rounds: int
    pool: int = 1000
    clients: int = 50
    batch: int = 10
    lr: float = 0.1
    classes: int = 10


JOBS = (Job("cnn", 4), Job("mlp", 40))


def measure() -> dict[str, object]:
    """Seconds per round of each side for each model, and their ratio."""
    if not any(entry.name == "cifar10" and entry.found for entry in data.ls()):
        return {"skipped": "CIFAR-10 is missing: `gossamer data get cifar10` fetches it"}
    try:
        python = pfl_python()
    except (OSError, subprocess.CalledProcessError) as problem:
        return {"skipped": f"pfl's environment cannot be made: {problem}"}
    found: dict[str, object] = {"pfl": version(python, "pfl"), "torch_of_pfl": version(python)}
    with tempfile.TemporaryDirectory() as folder:
        examples = Path(folder) / "examples.npz"
        write_examples(examples, JOBS[0])
        for job in JOBS:
            found[job.model] = in_turns(job, python, examples)
    return found


def in_turns(job: Job, python: str, examples: Path) -> dict[str, object]:
    """Both sides, one after the other, several times."""
    seconds: dict[str, list[float]] = {"engine": [], "pfl": []}
    for repeat in range(REPEATS):
        seconds["engine"].append(per_round(engine_times(job, repeat)))
        seconds["pfl"].append(per_round(pfl_times(job, repeat, python, examples)))
    return summary(job, seconds)


def summary(job: Job, seconds: dict[str, list[float]]) -> dict[str, object]:
    """What is kept of the repeats: the ratio is the median of the ratios of the turns."""
    ratios = [b / a for a, b in zip(seconds["engine"], seconds["pfl"], strict=True)]
    return {
        "job": f"{job.model}, cifar10, iid, {job.pool} clients, {job.clients} a round, "
        f"batch {job.batch}, 1 epoch, one core",
        "rounds": job.rounds,
        "seconds_per_round": {
            side: [round(each, 4) for each in found] for side, found in seconds.items()
        },
        "pfl_over_engine": round(statistics.median(ratios), 3),
    }


def per_round(ends: Sequence[float]) -> float:
    """The mean seconds of a round, given when rounds ended; the first one is not counted."""
    if len(ends) < 2:
        raise ValueError(f"seconds per round need two rounds at least, not {len(ends)}")
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def engine_times(job: Job, seed: int) -> list[float]:
    """When the rounds of `gossamer run` ended."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words: list[object] = ["run", "fedavg", "--data", "cifar10", "--partition", "iid"]
        words += ["--model", f"{HERE / 'small_models.py'}:{job.model}", "--pool", job.pool]
        words += ["--clients", job.clients, "--rounds", job.rounds, "--epochs", 1]
        words += ["--batch", job.batch, "--lr", job.lr, "--seed", seed, "--workers", 1]
        words += ["--eval-every", 0, "--quiet", "--out", out]
        on_one_core([sys.executable, "-m", "gossamer", *map(str, words)])
        told = events.read(out / "events.jsonl")
    return [each["clock"]["time"] for each in told if each["event"] == "round-finished"]


def pfl_times(job: Job, seed: int, python: str, examples: Path) -> list[float]:
    """When the rounds of pfl ended."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({**asdict(job), "seed": seed, "data": str(examples)}, file)
        file.flush()
        found = on_one_core([python, str(HERE / "pfl_side.py"), file.name])
    times: list[float] = json.loads(found.splitlines()[-1])
    return times


def on_one_core(words: Sequence[str]) -> str:
    """Runs a command on the last core of this process; returns what it printed."""
    core = max(os.sched_getaffinity(0))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        words,
        check=True,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    return done.stdout


def write_examples(path: Path, job: Job) -> None:
    """All examples, how pixels become inputs, and the rows of each client."""
    federation = data.federation("cifar10", "iid", pool=job.pool, seed=0)
    arrays = federation.arrays
    assert isinstance(arrays.kind, Images)
    factor, offset = arrays.kind.affine(federation.scale)
    np.savez(
        path,
        pixels=np.asarray(arrays.train).reshape(-1, *arrays.kind.size),
        factor=factor.numpy(),
        offset=offset.numpy(),
        y=arrays.labels.train,
        rows=np.array([federation.train[client.id] for client in federation.pool]),
    )


def pfl_python() -> str:
    """The Python of pfl's environment, which is made if it is missing."""
    if given := os.environ.get("GOSSAMER_BENCHMARK_PFL"):
        return given
    folder = cache().parent / "pfl-environment"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        # The same torch on both sides; of the other packages pfl needs versions of its own.
        packages = [f"torch=={metadata.version('torch').split('+')[0]}", *PACKAGES]
        install = [str(python), "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(install, check=True, stdout=sys.stderr)
        ready.touch()
    return str(python)


def version(python: str, package: str = "torch") -> str:
    """The version of a package in an environment."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()
