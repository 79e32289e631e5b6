"""Virtual time to 85 % accuracy on 200 devices of three classes, for six ways of training.

python tools/devices_study.py                    # runs what is missing in results/devices
python tools/devices_study.py --seeds 1 --rounds 4 --results small --runs small/runs  # a trial

A perceptron with 128 hidden units. Fashion-MNIST is divided among 200 clients by a Dirichlet
distribution of 0.5. Two fifths of them are phones of 2018, two fifths Raspberry Pis and one fifth
microcontrollers on LTE-M; speeds spread by a factor of 1.65 within a class. A run ends when it
reaches 85 %: of the global model, or of clients' own models if the method keeps such. A run that
was interrupted is resumed, and one that is kept in the results is not repeated. All runs together
take half an hour on one core. `tools/results.py` writes the table and the picture.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from gossamer.report.kept import keep
from gossamer.report.reading import read_run

ROOT = Path(__file__).parents[1]
RESULTS, RUNS = ROOT / "results" / "devices", ROOT / "runs" / "devices-study"
TARGET = 0.85
SEEDS, ROUNDS = 3, 100
DEVICES = "phone-2018:40%,raspberry-pi-4:40%,mcu:20%"
COMMON = (
    "--data fmnist --partition dirichlet:0.5 --pool 200 --model mlp:hidden=128 --clients 20 "
    f"--devices {DEVICES} --spread 0.5 --eval-every 2 --until accuracy={TARGET} --workers 1"
)
DENSE = "--epochs 2 --batch 32 --lr 0.1"
WAYS = {
    "fedavg": f"fedavg {DENSE}",
    "fedavg-deadline": f"fedavg {DENSE} --deadline 30s --oversample 1.3",
    "fedbuff": f"fedavg {DENSE} --asynchronous buffer=10,concurrency=40,staleness=polynomial:0.5",
    "spdst-by-memory": "spdst --density 0.2 --epochs 2 --batch 32 --lr 0.1 --momentum 0.9 "
    "--budgets by-memory",
    "spafl": "spafl --epochs 3 --batch 32 --lr 0.01 --momentum 0.9",
    "fedsparse": f"fedsparse {DENSE} --lambda0 5e-6",
}


def words(way: str, seed: int, rounds: int) -> list[str]:
    """The command of a run, without the program and its folder."""
    return ["run", *shlex.split(f"{WAYS[way]} {COMMON} --rounds {rounds} --seed {seed}")]


def run(way: str, seed: int, rounds: int, results: Path, runs: Path) -> None:
    """Runs once, or goes on, and keeps the result; one that is kept is left alone."""
    kept, folder = (results / f"{way}-seed-{seed}.json").resolve(), runs / f"{way}-{seed}"
    if folder.is_relative_to(ROOT):  # a kept command is the same on all machines
        folder = folder.relative_to(ROOT)
    if kept.exists():
        return
    command = words(way, seed, rounds)
    if (ROOT / folder / "config.toml").exists():
        command = ["resume", str(folder)]
    else:
        command += ["--out", str(folder)]
    print(f"{way}, seed {seed}", flush=True)
    subprocess.run(
        [sys.executable, "-m", "gossamer", *command, "--quiet"],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    found = read_run(ROOT / folder)
    keep(found, kept)
    minutes = max(found.curve("device_seconds").values(), default=0.0) / 60
    reached = found.finished.get("reached") or "not reached"
    print(f"  {found.done} rounds, {minutes:.1f} virtual minutes, {reached}", flush=True)


def main() -> None:
    """Runs the study; what is done already is not repeated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--only", choices=WAYS, nargs="*", default=list(WAYS))
    options = parser.parse_args()
    for seed in range(options.seeds):
        for way in options.only:
            run(way, seed, options.rounds, options.results, options.runs.resolve())


if __name__ == "__main__":
    main()
