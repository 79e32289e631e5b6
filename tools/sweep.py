"""Runs configurations with several settings and seeds, resumably, and prints a table.

    python tools/sweep.py papers/flash/mnist-{nst,pdst,spdst}.toml --set density=0.05,0.1 \
        --set partition=lda:0.1,lda:1 --seeds 3 --train-rounds 100 --out runs/flash-mnist

Every run is a `gossamer run` in its own process, `--processes` at a time, with the seeds outermost,
so that an interrupted sweep has complete seeds. Settings that a method does not have are ignored
for it. A probing first round is added to `--train-rounds`. A search on
validation data, of personal models and how dense they are, is

    python tools/sweep.py papers/spafl/fmnist.toml --set pool=20 --set clients=2 --set valid=0.9 \
        --set select=valid --set scale=raw,normalised --set alpha=0.001,0.002 --seeds 1 \
        --show valid_mean,personal_density --within 0.1 --out runs/spafl-search

and methods at equal traffic, here after 1, 3 and 5 GB, by the last three tests before that:

    python tools/sweep.py papers/pffdst/lenet-{feddst,pffdst}.toml --seeds 2 --at 1,3,5 --over 3 \
        --out runs/pffdst
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer import config, fields
from gossamer.engine.events import read
from gossamer.engine.options import Options
from gossamer.reproduce.plans import probes


@dataclass(frozen=True)
class Run:
    """One run of a sweep: a file, the settings that differ, and a seed."""

    file: Path
    settings: tuple[tuple[str, str], ...]
    seed: int
    rounds: int

    def folder(self, out: Path) -> Path:
        words = [self.file.stem, *(f"{name}={value}" for name, value in self.settings)]
        return out / ",".join([*words, f"rounds={self.rounds}", f"seed={self.seed}"])

    def command(self, out: Path, workers: int) -> list[str]:
        here = self.folder(out)
        gossamer = [sys.executable, "-m", "gossamer"]
        if (here / "config.toml").exists():
            return [*gossamer, "resume", str(here), "--workers", str(workers), "--quiet"]
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self.settings]
        more = ["--seed", str(self.seed), "--rounds", str(self.rounds), "--workers", str(workers)]
        return [*gossamer, "run", str(self.file), *flags, *more, "--quiet", "--out", str(here)]

    def done(self, out: Path) -> dict[str, Any] | None:
        """The last event of a finished run, its traffic, and all evaluations."""
        path = self.folder(out) / "events.jsonl"
        log = read(path) if path.exists() else []
        if not log or log[-1]["event"] != "finished":
            return None
        rounds = [event for event in log if event["event"] == "round-finished"]
        sent = {0: 0} | {event["round"]: event["up"] + event["down"] for event in rounds}
        tested = [
            {**event, "global": event["global_accuracy"], "sent": sent[event["round"]]}
            for event in log
            if event["event"] == "evaluated"
        ]
        return {**log[-1], "sent": rounds[-1]["up"] + rounds[-1]["down"], "tested": tested}


def runs(options: argparse.Namespace) -> list[Run]:
    """All runs, seeds outermost, without duplicates."""
    settings_of = [word.partition("=")[::2] for word in options.set]
    choices = [[(name, value) for value in values.split(",")] for name, values in settings_of]
    planned = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for chosen in itertools.product(*choices):
            for file in map(config.locate, options.files):
                known = config.read(file)
                method = config.find_method(known.method)
                names = {item.name for item in fields.settings(method)}
                names |= {item.name for item in fields.settings(config.Experiment())}
                names |= {item.name for item in fields.settings(Options())}
                rounds = known.experiment.rounds
                if options.train_rounds:
                    rounds = options.train_rounds + probes(method)
                settings = tuple(pair for pair in chosen if pair[0] in names)
                planned.append(Run(file, settings, seed, rounds))
    return list(dict.fromkeys(planned))


def table(planned: list[Run], options: argparse.Namespace) -> str:
    """Figures of finished runs, mean and deviation over seeds, as Markdown.

    Settings that are the same for all runs are left out. `within` adds the first figure at its best
    among the rounds whose models were so sparse, with the round; `at` adds the figures after so
    many gigabytes.
    """
    out, shown, within = options.out, options.show.split(","), options.within
    budgets = [float(word) for word in options.at.split(",") if word]
    groups: dict[tuple[tuple[tuple[str, str], ...], str], list[dict[str, Any]]] = {}
    for run in planned:
        if done := run.done(out):
            groups.setdefault((run.settings, run.file.stem), []).append(done)
    values: dict[str, set[str]] = {}
    for settings, _ in groups:
        for key, value in settings:
            values.setdefault(key, set()).add(value)
    best = [] if within is None else [f"best {shown[0]} at density {within:g} or less"]
    points = [(figure, budget) for figure in shown if "_best" not in figure for budget in budgets]
    after = [f"{figure} after {budget:g} GB" for figure, budget in points]
    heads = ["run", "settings", "seeds", *shown, *best, *after, "GB sent"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for (settings, name), each in groups.items():
        cells = [_spread([done["accuracy"][figure] for done in each]) for figure in shown]
        if within is not None:
            cells.append("; ".join(_sparse(done["tested"], shown[0], within) for done in each))
        for figure, budget in points:
            cells.append(_spread([_after(done, figure, budget, options.over) for done in each]))
        sent = statistics.mean(done["sent"] for done in each) / 8e9
        words = ", ".join(f"{key} {value}" for key, value in settings if len(values[key]) > 1)
        lines.append(f"| {' | '.join([name, words, str(len(each)), *cells, f'{sent:.4g}'])} |")
    return "\n".join(lines)


def _sparse(tested: list[dict[str, Any]], figure: str, within: float) -> str:
    """The best figure of a run among rounds whose personal models kept at most so much."""
    sparse = [each for each in tested if (each["personal_density"] or 1) <= within]
    if not sparse:
        return "never"
    best = max(sparse, key=lambda each: each[figure])
    return f"{best[figure]:.4f} ({best['round']})"


def _after(done: dict[str, Any], figure: str, budget: float, over: int) -> float | None:
    """The mean of the last tests of a run before it had sent so many gigabytes, if it did."""
    if done["sent"] < budget * 8e9:
        return None
    before = [each[figure] for each in done["tested"] if each["sent"] <= budget * 8e9]
    known = [value for value in before[-over:] if value is not None]  # nobody has a model at first
    return float(statistics.mean(known)) if known else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", help="e.g. papers/flash/mnist-spdst.toml")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=A,B", help="settings")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--train-rounds", type=int, default=0, help="training rounds (default: the files')"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--show", default="global,global_best", help="figures, with commas")
    parser.add_argument(
        "--within", type=float, help="also show the best accuracy at this density or less"
    )
    parser.add_argument(
        "--at", default="", help="also show figures after these gigabytes, with commas"
    )
    parser.add_argument(
        "--over", type=int, default=1, help="number of evaluations to average before that"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    planned = runs(options)
    missing = [run for run in planned if run.done(options.out) is None]
    began = time.monotonic()

    def one(run: Run) -> None:
        if time.monotonic() - began > 60 * options.minutes:
            return
        subprocess.run(run.command(options.out, workers=1), check=True)
        print(json.dumps({"done": str(run.folder(options.out))}), flush=True)

    with ThreadPoolExecutor(options.processes) as pool:
        for _ in pool.map(one, missing):
            pass
    print(table(planned, options))


def _spread(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    mean = f"{statistics.mean(known):.4f}"
    return f"{mean} ± {statistics.stdev(known):.4f}" if len(known) > 1 else mean


if __name__ == "__main__":
    main()
