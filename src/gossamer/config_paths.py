"""Paths in configurations: complete, so that they are valid in every folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer import data
from gossamer.data.budgeted import BY_MEMORY
from gossamer.data.budgets import are_shares
from gossamer.data.sources.hub import on_disk
from gossamer.task.first_weights import KINDS

if TYPE_CHECKING:
    from gossamer.config import Experiment
    from gossamer.engine.options import Options


def absolute(method: str) -> str:
    """A method's name with the full path of its file, so that it is valid in every folder."""
    place, colon, member = method.rpartition(":")
    return f"{Path(place).resolve()}:{member}" if colon and place.endswith(".py") else method


def absolute_paths(experiment: Experiment) -> Experiment:
    """The experiment with full paths of its files, so that it is valid in every folder."""
    form, colon, path = experiment.data.partition(":")
    if form == "hf" and on_disk(path) is None:
        colon = ""  # a name on the hub is no path
    if colon and path and form in data.FORMATS:
        experiment = dataclasses.replace(experiment, data=f"{form}:{_full(path)}")
    if colon and form.endswith(".py"):
        experiment = dataclasses.replace(experiment, data=f"{_full(form)}:{path}")
    place, colon, rest = experiment.model.partition(":")
    if colon and place.endswith(".py"):
        experiment = dataclasses.replace(experiment, model=f"{_full(place)}:{rest}")
    if experiment.start and experiment.start not in KINDS:
        experiment = dataclasses.replace(experiment, start=_full(experiment.start))
    given = experiment.budgets not in ("", BY_MEMORY)
    if given and not are_shares(experiment.budgets):
        experiment = dataclasses.replace(experiment, budgets=_full(experiment.budgets))
    return experiment


def absolute_options(options: Options) -> Options:
    """The options with full paths of files about devices."""
    devices, hours = options.devices, options.availability
    if devices.endswith(".csv"):
        options = dataclasses.replace(options, devices=_full(devices))
    name, at, period = hours.rpartition("@")
    if (name or hours).endswith(".csv"):
        options = dataclasses.replace(
            options, availability=f"{_full(name or hours)}{at}{period * bool(at)}"
        )
    return options


def _full(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def beside(folder: Path, plain: dict[str, Any], shipped: bool) -> None:
    """Gives Python files that lie beside a configuration their folder.

    Unless they were shipped with it, files of the same name in the working folder come first.
    """
    experiment = plain.get("experiment", {})
    for table, name in ((plain, "method"), (experiment, "model"), (experiment, "data")):
        place, colon, rest = str(table.get(name, "")).partition(":")
        known = colon and place.endswith(".py") and (folder / place).is_file()
        if known and (shipped or not Path(place).exists()):
            table[name] = f"{folder / place}:{rest}"
