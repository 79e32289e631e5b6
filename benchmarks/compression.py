"""Accuracy against bytes: sparse, quantised and low-rank methods with the same budget of traffic.

LeNet on Fashion-MNIST and on CIFAR-10, 100 clients with Dirichlet labels, five of them a round.
Each run ends when it has sent the budget, both ways together, or after the most rounds that there
are. A run that was stopped is resumed from its folder, and a finished one is not run again:
`results/compression.json` is written after each of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import files
from benchmarks.machine import machine
from gossamer import fields
from gossamer.config import Config, Experiment, find_method
from gossamer.engine import Options, start
from gossamer.engine.checkpoint import newest
from gossamer.engine.resuming import ROUNDS as CHECKPOINTS

ROOT = Path(__file__).parents[1]
FILE = ROOT / "results" / "compression.json"
RUNS = ROOT / "runs" / "compression"
SEEDS = (0, 1)
DATA = {
    "fmnist": Experiment(data="fmnist", model="lenet5_caffe", partition="dirichlet:0.3"),
    "cifar10": Experiment(data="cifar10", model="lenet5_caffe", partition="dirichlet:0.3"),
}
COMMON = {"clients": 5, "epochs": 1.0, "batch": 50, "lr": 0.1, "momentum": 0.0}


@dataclass(frozen=True)
class Contender:
    """A method, how its messages are compressed, and settings of its own."""

    method: str
    compress: str = ""
    wire: str = "f32"
    own: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """What is compared, and where the results go."""

    contenders: Mapping[str, Contender]
    data: Mapping[str, Experiment]
    bits: float = 4e9
    rounds: int = 60
    pool: int = 100
    seeds: tuple[int, ...] = SEEDS
    eval_every: int = 10
    file: Path = FILE
    runs: Path = RUNS


CONTENDERS = {
    "dense": Contender("fedavg"),
    "f16": Contender("fedavg", wire="f16"),
    "qsgd": Contender("fedavg", "up=qsgd:16,down=qsgd:16"),
    "sign+ef": Contender("fedavg", "up=sign+ef,down=sign"),
    "STC": Contender(
        "stc", own={"compress_up": "ternary:0.01+ef", "compress_down": "ternary:0.01"}
    ),
    "top-k+ef": Contender("fedavg", "up=topk:0.01+ef,down=topk:0.01"),
    "PowerSGD": Contender("fedavg", "up=low_rank:2+ef,down=low_rank:2"),
    "SPDST": Contender("spdst", own={"density": 0.1}),
    "SPDST+qsgd": Contender("spdst", "qsgd:16", own={"density": 0.1}),
    "FedDST": Contender("feddst", own={"density": 0.1}),
    "FedPM": Contender("fedpm", own={"lr": 0.1}),
    "SpaFL": Contender("spafl", own={"lr": 0.01, "momentum": 0.9, "epochs": 3.0}),
    "SpaFL+qsgd": Contender("spafl", "qsgd:16", own={"lr": 0.01, "momentum": 0.9, "epochs": 3.0}),
}


def measure() -> dict[str, object]:
    """The whole study: about an hour; stop it at any time, the same command continues it."""
    return perform(Study(CONTENDERS, DATA))


def perform(study: Study) -> dict[str, object]:
    """Runs what is not known yet."""
    torch.set_num_threads(1)
    known = _known(study)
    for name, case in _cases(study):
        if name not in known:
            known[name] = _row(study, name, *case)
            study.file.parent.mkdir(parents=True, exist_ok=True)
            study.file.write_text(files.text(_described(study, known)))
    return _described(study, known)


def _cases(study: Study) -> Iterator[tuple[str, tuple[str, str, int]]]:
    for seed in study.seeds:
        for data in study.data:
            for contender in study.contenders:
                yield f"{data}/{contender}/{seed}", (data, contender, seed)


def _known(study: Study) -> dict[str, dict[str, Any]]:
    """The rows of the file, if it has the settings of this study."""
    found = json.loads(study.file.read_text()) if study.file.exists() else {}
    settings = json.loads(json.dumps(_described(study, {})["settings"]))
    return {row["run"]: row for row in found["runs"]} if found.get("settings") == settings else {}


def _described(study: Study, known: Mapping[str, Mapping[str, Any]]) -> dict[str, object]:
    return {
        "benchmark": "compression",
        "machine": machine(),
        "command": "python -m benchmarks compression",
        "settings": {
            "bits": study.bits,
            "rounds": study.rounds,
            "pool": study.pool,
            "common": COMMON,
            "contenders": {n: vars(each) for n, each in study.contenders.items()},
            "data": {n: {"data": e.data, "model": e.model} for n, e in study.data.items()},
        },
        "figure": "accuracy of the global model on the server's test data; of personal models "
        "where clients keep their own (SpaFL)",
        "runs": [known[name] for name, _ in _cases(study) if name in known],
    }


def _row(study: Study, name: str, data: str, contender: str, seed: int) -> dict[str, Any]:
    began = time.process_time()
    chosen = study.contenders[contender]
    settings = {item.name for item in fields.settings(find_method(chosen.method))}
    given = {n: v for n, v in {**COMMON, **chosen.own}.items() if n in settings}
    experiment = replace(
        study.data[data],
        pool=study.pool,
        rounds=study.rounds,
        seed=seed,
        wire=chosen.wire,
        compress=chosen.compress,
    )
    options = Options(workers=1, eval_every=study.eval_every, until=f"bits={study.bits}")
    out = study.runs / name
    run = Config(chosen.method, given, experiment, options).build_run(out)
    done = start(run, resume=newest(out / CHECKPOINTS) is not None)
    history = done.history.records
    evaluated = [each for each in history if each.get("global_accuracy") is not None]
    print(name, done.rounds, done.accuracy["global"], done.accuracy["personal_mean"], flush=True)
    return {
        "run": name,
        "data": data,
        "contender": contender,
        "seed": seed,
        "rounds": done.rounds,
        "reached": done.reached,
        "diverged": done.diverged,
        "accuracy": dict(done.accuracy),
        "up": done.cost.up,
        "down": done.cost.down,
        "curve": {
            key: [each.get(key) for each in evaluated]
            for key in ("round", "up", "down", "global_accuracy", "personal_mean")
        },
        "processor_seconds": round(time.process_time() - began, 1),
    }
