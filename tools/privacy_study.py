"""Accuracy against epsilon for what methods send: weights, weights on a mask, bits, thresholds.

python tools/privacy_study.py  # runs what is missing in results/privacy, one file per run

Fashion-MNIST is divided among 1,000 clients by a Dirichlet distribution of 0.2. A round takes 50 of
them on average, each by a coin of its own (`sampling=poisson`). The clip of each method is chosen
by a small search on validation data, with a seed of its own, at epsilon 4.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "privacy"

ROUNDS, CLIENTS, POOL, DELTA = 15, 50, 1000, 1e-5
EPSILONS = (1.0, 2.0, 4.0, 8.0)
SEEDS = (0, 1, 2)
SEARCHED = 4.0
"""The epsilon of the search."""
SEARCH_SEED = 100
COMMON = (
    f"--data fmnist --partition dirichlet:0.2 --pool {POOL} --model lenet5_caffe "
    f"--clients {CLIENTS} --rounds {ROUNDS} --eval-every {ROUNDS} --workers 1"
).split()
METHODS = {
    "fedavg": "fedavg --weighting uniform --epochs 2 --batch 16 --lr 0.05",
    "spdst": "spdst --density 0.05 --allocation erk --weighting uniform "
    "--epochs 2 --batch 16 --lr 0.3 --momentum 0.9",
    "fedpm": "fedpm --epochs 2 --batch 16 --lr 0.1",
    "spafl": "spafl --epochs 3 --batch 16 --lr 0.01 --momentum 0.9",
}
CLIPS = {
    "fedavg": (0.03, 0.1, 0.3, 1.0),
    "spdst": (0.3, 1.0, 3.0, 10.0),
    "fedpm": (1.0, 10.0, 100.0),
    "spafl": (0.01, 0.1),
}
NOTHING = "clip=1e-9,noise=0"
"""A change of next to nothing: clients are alone."""


def private(clip: float, epsilon: float) -> str:
    """What `--dp` is given."""
    return f"clip={clip:g},epsilon={epsilon:g},delta={DELTA:g},sampling=poisson"


def run(name: str, method: str, seed: int, dp: str = "", extra: tuple[str, ...] = ()) -> Any:
    """Runs once and writes the file, unless it is there; returns its contents."""
    path = RESULTS / f"{name}.json"
    if path.exists():
        return json.loads(path.read_text())
    words = ["run", *METHODS[method].split(), *COMMON, "--seed", str(seed), *extra]
    words += ["--dp", dp] if dp else []
    folder = tempfile.mkdtemp(prefix="privacy-study-")
    try:
        command = [sys.executable, "-m", "gossamer", *words]
        done = subprocess.run(
            [*command, "--quiet", "--json", "--out", f"{folder}/run"],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    finally:
        shutil.rmtree(folder)
    figures = json.loads(done.stdout.splitlines()[-1])
    accuracy = figures["accuracy"]
    kept = ("global", "personal_mean", "local_mean", "valid_mean", "personal_worst_decile")
    found = {
        "name": name,
        "method": method,
        "seed": seed,
        "command": " ".join(["gossamer", *words]),
        "accuracy": {key: accuracy[key] for key in kept},
        "privacy": figures["privacy"],
        "bits_up": figures["bits"]["up"],
        "seconds": figures["seconds"],
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(name, {key: value for key, value in found["accuracy"].items() if value}, flush=True)
    return found


def chosen_clip(method: str) -> float:
    """The clip with the best mean accuracy on clients' validation data."""
    scores = {}
    for clip in CLIPS[method]:
        found = run(
            f"search-{method}-{clip:g}",
            method,
            SEARCH_SEED,
            private(clip, SEARCHED),
            ("--valid", "0.2", "--select", "valid"),
        )
        scores[clip] = found["accuracy"]["valid_mean"]
    return max(scores, key=lambda clip: scores[clip])


def main() -> None:
    """Runs the study; what is done already is not repeated."""
    clips = {method: chosen_clip(method) for method in METHODS}
    for seed in SEEDS:
        for method, clip in clips.items():
            run(f"{method}-none-{seed}", method, seed)
            for epsilon in EPSILONS:
                run(f"{method}-{epsilon:g}-{seed}", method, seed, private(clip, epsilon))
        run(f"spafl-alone-{seed}", "spafl", seed, NOTHING)


if __name__ == "__main__":
    main()
