"""The benchmark: all methods on the same federations, each at the learning rate found for it.

A cell is one run. First a method is tried with a few learning rates, for few rounds, with a seed
of its own and on validation data; then it is run at the best of them. Every finished cell is a
small file, so that a benchmark that was interrupted goes on with the next cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gossamer.config import Config, Experiment
from gossamer.engine import Options
from gossamer.method_names import has_global_model
from gossamer.report import Run
from gossamer.report.curves import last
from gossamer.report.groups import differing
from gossamer.report.kept import Shelf
from gossamer.reproduce.plans import overridden, probes

FOLDER = "benchmark"
"""Of the benchmark's files, below `results/`."""
MODELS = {"fmnist": "lenet5_caffe", "cifar10": "lenet_cifar"}
"""The data sets, each with its LeNet."""
TITLES = {"fmnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
SEARCH_SEED = 100
"""No final run has it."""
HELD_OUT = 0.2
"""The share of clients' training data that the search holds out to choose on."""
EVALUATIONS = 10
"""Of a final run."""
COMMON: Mapping[str, Any] = {
    "clients": 10,
    "epochs": 2.0,
    "batch": 32,
    "momentum": 0.5,
    "schedule": "constant",
    "density": 0.1,
    "probe_epochs": 5.0,
}
"""Settings of all methods that have them."""
METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {},
    "fedprox": {},
    "fedavgm": {"server_momentum": 0.5},
    "fedopt": {"server_lr": 0.01},
    "scaffold": {"momentum": 0.0},
    "lg_fedavg": {},
    "fedrep": {"head_epochs": 2},
    "ditto": {},
    "spafl": {"momentum": 0.9, "alpha": 0.001},
    "subfedavg": {"target": 0.9},
    "lotteryfl": {},
    "fedspa": {},
    "fedpm": {"momentum": 0.0},
    "fedmrn": {},
    "nst": {},
    "pdst": {},
    "spdst": {},
    "jmwst": {},
    "random_mask": {},
    "feddst": {"readjust_every": 3},
    "pffdst": {"every": 1},
    "pfflash": {},
    "prunefl": {"steps": 16, "adjust_every": 5},
    "fedtiny": {"adjust_every": 3, "adjust_until": 15},
    "fedmef": {"adjust_every": 3, "adjust_until": 15},
    "fedrts": {"adjust_every": 3, "adjust_until": 15},
    "zerofl": {},
    "ssfl": {},
    "sparsyfed": {},
    "fedsparse": {"lambda0": 5e-5, "server_lr": 0.01, "threshold_lr": 0.01},
    "feddrop": {"server_lr": 0.01},
    "laplace": {"strength": 0.0001},
    "mixture": {},
    "fedpaq": {},
    "stc": {},
    "ef21": {},
    "powersgd": {},
}
"""The methods that train a model of this kind, with settings of their own that no rate replaces."""


@dataclass(frozen=True)
class Size:
    """How much of the benchmark is run."""

    rounds: int = 100
    seeds: int = 2
    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    """The learning rates that are tried with every method."""
    search_rounds: int = 15


@dataclass(frozen=True)
class Cell:
    """A run of the benchmark, and the file that it is kept in."""

    path: Path
    config: Config

    @property
    def title(self) -> str:
        return f"{self.path.parent.parent.name} {self.path.parent.name} {self.path.stem}"


def search(data: str, method: str, size: Size, results: Path) -> list[Cell]:
    """The runs that find the learning rate of a method, on validation data."""
    folder = results / FOLDER / data / f"search-{size.search_rounds}"
    return [
        Cell(
            folder / f"{method}-lr-{rate:g}.json",
            _config(
                data,
                method,
                {"rounds": size.search_rounds, "seed": SEARCH_SEED, "valid": HELD_OUT, "lr": rate},
                Options(eval_every=size.search_rounds, select="valid"),
            ),
        )
        for rate in size.rates
    ]


def final(data: str, method: str, size: Size, results: Path, rate: float) -> list[Cell]:
    """The runs of a method at its learning rate, one for each seed."""
    folder = finals(results, data, size)
    every = max(1, size.rounds // EVALUATIONS)
    return [
        Cell(
            folder / f"{method}-seed-{seed}.json",
            _config(
                data,
                method,
                {"rounds": size.rounds, "seed": seed, "lr": rate},
                Options(eval_every=every),
            ),
        )
        for seed in range(size.seeds)
    ]


def best_rate(cells: Sequence[Cell], shelf: Shelf) -> float | None:
    """The learning rate whose clients are the best on validation data; the smaller of equals.

    None if every run diverged.
    """
    scores: dict[float, float] = {}
    for cell in cells:
        run = shelf.find(cell.config)
        score = None if run is None or run.diverged else last(run.curve("valid_mean"))
        if score is not None:
            scores[float(cell.config.settings["lr"])] = score
    return max(sorted(scores), key=lambda rate: scores[rate]) if scores else None


def _config(data: str, method: str, settings: Mapping[str, Any], options: Options) -> Config:
    experiment = Experiment(
        data=data, partition="dirichlet:0.3", pool=100, model=MODELS.get(data, "lenet5_caffe")
    )
    config = overridden(
        Config(method, {}, experiment, replace(options, checkpoint_every=10**6)),
        {**COMMON, **METHODS.get(method, {}), **settings},
    )
    rounds = config.experiment.rounds + probes(config.build_method())
    return replace(config, experiment=replace(config.experiment, rounds=rounds))


def finals(results: Path, data: str, size: Size) -> Path:
    """The folder of the final runs of a size."""
    return results / FOLDER / data / f"rounds-{size.rounds}"


def largest(results: Path, data: str) -> Path | None:
    """The folder of the final runs with the most rounds; None if nothing was run."""
    folders = [path for path in (results / FOLDER / data).glob("rounds-*") if any(path.iterdir())]
    return max(folders, key=lambda path: int(path.name.removeprefix("rounds-")), default=None)


def kept(folder: Path) -> dict[str, list[Run]]:
    """The final runs in a folder by method, in the order of `METHODS`; those that diverged too.

    Seeds whose settings are not those of the first are left out: a search with more rates may have
    found another one, at which they have not been run yet.
    """
    runs: dict[str, list[Run]] = {}
    for run in sorted(Shelf(folder), key=lambda run: run.seed or 0):
        mine = runs.setdefault(str(run.config["method"]), [])
        if not mine or not differing([mine[0], run]):
            mine.append(run)
    order = list(METHODS)
    names = sorted(runs, key=lambda name: (order.index(name) if name in order else 99, name))
    return {name: runs[name] for name in names}


def score_of(method: str) -> str:
    """The curve that a method is shown by: the server's model, or the clients' own."""
    return "global_score" if has_global_model(method) else "personal_mean"


def rates_of(runs: Mapping[str, Sequence[Run]]) -> Iterator[tuple[str, float]]:
    """The learning rate of each method."""
    for method, each in runs.items():
        yield method, float(each[0].table("settings")["lr"])
