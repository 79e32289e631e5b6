"""Results as small files that last: the settings, the environment and the curves of a finished run.

A run's folder has megabytes of events and states; what tables and pictures need of it are a few
kilobytes. `results/` in the repository holds such files, and pages of the documentation are written
from them. They are read back as runs, so whatever presents a run presents a kept one.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gossamer import fields
from gossamer.config import Config, Experiment
from gossamer.engine import Options
from gossamer.engine.files import write_atomically
from gossamer.methods import METHODS
from gossamer.optim import Training
from gossamer.report.curves import short
from gossamer.report.figures import best_round
from gossamer.report.groups import IRRELEVANT
from gossamer.report.runs import EVALUATED, Curve, Run, meaningful
from gossamer.report.waiting import Waiting

FORMAT = 1
ADAM = ("optimiser", "adam_beta1", "adam_beta2", "adam_eps", "moments")
"""Settings of local training that older files do not have."""
_NAMES = {"global_accuracy": "global_score"}
"""Curves that files from before there were other metrics call otherwise."""
POINTS = 60
"""Evaluations that are kept of a run at equal distances, about."""
LAYER_POINTS = 10
"""Rounds at which the masks of layers are kept, about."""
LATEST = 10
"""Some papers report the mean of the last ten evaluations."""
Layers = Mapping[str, Mapping[str, Curve]]
FINISHED = ("round", "accuracy", "state_hash", "diverged", "reached")
STARTED = ("schema", "method", "rounds", "seed", "pool", "data", "parameters", "prunable", "task")


def keep(run: Run, path: Path) -> Path:
    """Writes a finished run as a small file.

    Args:
        run: As `read_run` reads it from its folder.
        path: Of the file; folders are made.

    Returns:
        The path.

    Raises:
        ValueError: The run has not finished, is damaged, or its configuration is missing.
    """
    if run.damaged:
        raise ValueError(f"{run.folder} is damaged: {'; '.join(run.notices)}")
    if not run.finished:
        raise ValueError(f"{run.folder} has not finished; results are kept of finished runs only")
    if not run.config:
        raise ValueError(f"{run.folder} has no configuration, so its figures could not be repeated")
    clock = run.finished.get("clock", {})
    rounds, columns = _columns(run)
    content: dict[str, Any] = {
        "format": FORMAT,
        "command": run.command,
        "config": run.config,
        "environment": run.started.get("environment", {}),
        "started": {name: run.started[name] for name in STARTED if name in run.started},
        "finished": {
            **{name: run.finished.get(name) for name in FINISHED},
            **({} if run.headline.name == "accuracy" else {"scores": run.scores}),
            "seconds": short(clock.get("seconds")) if isinstance(clock, dict) else None,
        },
        "failed": run.failed,
        **({"devices": {n: vars(each) for n, each in run.devices.items()}} if run.devices else {}),
        "densities": list(run.densities),
        "layers": _layers(run.layers),
        "curves": {"round": rounds, **columns},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _lines(content).encode())
    return path


def read_kept(path: Path) -> Run:
    """A kept result as a run.

    Raises:
        ValueError: The file is no kept result, or one of a newer format.
    """
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"{path} has format {content['format']}; this version reads {FORMAT}")
        finished = dict(content["finished"])
        columns = dict(content["curves"])
        rounds = columns.pop("round")
        return Run(
            folder=str(path),
            started={**content["started"], "environment": content["environment"]},
            finished={**finished, "clock": {"seconds": finished.pop("seconds")}},
            curves=meaningful(
                {_NAMES.get(n) or n: _curve(rounds, each) for n, each in columns.items()},
                content["started"].get("method"),
            ),
            failed=content["failed"],
            devices={n: Waiting(**each) for n, each in content.get("devices", {}).items()},
            densities=content.get("densities", ()),
            layers=_layer_curves(content.get("layers", {})),
            config=content["config"],
            text=f"# {content['command']}\n",
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as damage:
        raise ValueError(f"{path} is no kept result: {damage!r}") from damage


class Shelf:
    """The kept results below a folder, found by their settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, Run] = {}
        self._unlimited: dict[str, Run] = {}
        """Runs that refused nobody: without a limit on replies they would have been the same."""
        for path in sorted(folder.rglob("*.json")) if folder.is_dir() else ():
            if _is_kept(path):
                run = read_kept(path)
                self._runs[_identity(run.config)] = run
                if not run.failed:
                    self._unlimited[_identity(_without_limit(run.config))] = run

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def find(self, config: Config) -> Run | None:
        """The result of a run with these settings and this seed, if it was kept."""
        identity = _identity(tomllib.loads(config.toml()))
        return self._runs.get(identity) or self._unlimited.get(identity)


def _is_kept(path: Path) -> bool:
    with path.open("rb") as file:
        return b'"format"' in file.read(40)


def _identity(config: Mapping[str, Any]) -> str:
    """A text that is equal for configurations whose runs have the same results.

    Options with their usual value are left out, so that results from before an option are found.
    """
    usual = {f"options.{item.name}": item.default for item in fields.settings(Options())}
    usual |= {f"experiment.{item.name}": item.default for item in fields.settings(Experiment())}
    method = METHODS.get(str(config.get("method")))
    settings = fields.settings(method) if method else ()
    usual |= {f"settings.{item.name}": item.default for item in settings}
    local = {item.name: item.default for item in fields.settings(Training())}
    usual |= {f"settings.{name}": local[name] for name in ADAM}
    tables = {name: value for name, value in config.items() if isinstance(value, dict)}
    known = {
        f"{table}.{name}": float(value) if type(value) is int else value
        for table, values in tables.items()
        for name, value in values.items()
        if f"{table}.{name}" not in IRRELEVANT - {"experiment.seed"} | {"experiment.device"}
        and (f"{table}.{name}" not in usual or usual[f"{table}.{name}"] != value)
    }
    return json.dumps([config.get("method"), known], sort_keys=True, default=str)


def _without_limit(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**config, "options": {**config.get("options", {}), "reply_limit": 0.0}}


def _columns(run: Run) -> tuple[list[int], dict[str, list[float | None]]]:
    """Rounds to keep, and every curve at these rounds.

    Kept are evaluations at equal distances, the best and the latest ones, and the first round's
    costs; of accuracies also the first of each percent, where some figures are read.
    """
    curves = run.curves
    names = [name for name in EVALUATED if curves.get(name)]
    rounds = sorted({at for curve in map(run.curve, names or curves) for at in curve})
    every = -(-len(rounds) // POINTS) or 1
    chosen = {*rounds[::every], *rounds[-LATEST:], *rounds[:1]}
    for name in names:
        chosen.update(_percents(curves[name]) if run.headline.is_share else ())
        best = best_round(run, name)
        chosen |= set() if best is None else {best}
    for curve in curves.values():
        chosen |= {max(curve), *({1} & curve.keys())} if curve else set()
    kept = sorted(chosen)
    return kept, {name: [short(curve.get(at)) for at in kept] for name, curve in curves.items()}


def _percents(curve: Curve) -> Iterator[int]:
    """The rounds that were the first to reach a whole percent."""
    most = -math.inf
    for at in sorted(curve):
        if (percent := math.floor(100 * curve[at] + 1e-9)) > most:
            most = percent
            yield at


def _curve(rounds: Iterable[int], column: Iterable[float | None]) -> Curve:
    return {at: float(value) for at, value in zip(rounds, column, strict=True) if value is not None}


def _layers(layers: Layers) -> dict[str, Any]:
    """A few rounds, and the curves of every layer at these rounds."""
    rounds = sorted({at for curves in layers.values() for curve in curves.values() for at in curve})
    every = -(-len(rounds) // LAYER_POINTS) or 1
    kept = rounds[::-1][::every][::-1]
    columns = {
        layer: {name: [short(curve.get(at)) for at in kept] for name, curve in curves.items()}
        for layer, curves in layers.items()
    }
    return {"round": kept, "by_layer": columns} if kept else {}


def _layer_curves(kept: Mapping[str, Any]) -> Layers:
    return {
        layer: {name: _curve(kept["round"], column) for name, column in columns.items()}
        for layer, columns in kept.get("by_layer", {}).items()
    }


def _lines(content: Mapping[str, Any]) -> str:
    """JSON with one line per entry and per curve, so that a change can be read."""
    curves = ",\n  ".join(
        f"{json.dumps(name)}: {json.dumps(column)}" for name, column in content["curves"].items()
    )
    rest = [
        f"{json.dumps(name)}: {json.dumps(value)}"
        for name, value in content.items()
        if name != "curves"
    ]
    return "{" + ",\n ".join([*rest, f'"curves": {{\n  {curves}\n }}']) + "}\n"
