"""From objects of a Python program to a configuration that builds them again, where one can."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from torch import nn

from gossamer import data, fields, goals, models
from gossamer.compression import Compressed
from gossamer.config import Config, Experiment, absolute_paths, find_method, toml
from gossamer.core import AnyMethod, Key
from gossamer.data.federation import Federation
from gossamer.data.origin import Origin
from gossamer.engine.run_record import Run
from gossamer.methods import METHODS
from gossamer.references import PYTHON, only_in_python, reference
from gossamer.task import Task
from gossamer.task.first_weights import seeded_globally
from gossamer.task.layout import Layout

MethodLike: TypeAlias = "AnyMethod | str"
"""A method, or the name of one."""
TaskLike: TypeAlias = "Task | nn.Module | str | Callable[..., nn.Module]"
"""A task, a module, the name of a model, or a function that builds a module."""
FederationLike: TypeAlias = (
    "Federation | data.Arrays | str | Callable[[], Federation | data.Arrays]"
)
"""A federation, the name of a data set, or a function that makes a federation."""


@dataclass(frozen=True)
class Parts:
    """What is run, and the names by which a configuration refers to it."""

    method: AnyMethod
    task: Task
    federation: Federation
    name: str
    """Of the method."""
    model: str
    origin: Origin | str
    """How the data came about: arguments of `data.federation`, or a reference."""


def parts(method: MethodLike, task: TaskLike, federation: FederationLike, seed: int) -> Parts:
    """The objects that were given, or those that names and functions stand for."""
    method_name = method if isinstance(method, str) else _method_name(method)
    method = find_method(method) if isinstance(method, str) else method
    federation, origin = federation_of(federation, seed)
    built, model = _task(task, federation, seed)
    return Parts(method, built, federation, method_name, model, origin)


def lost(made: Parts) -> list[str]:
    """The parts that a configuration cannot build again, in words."""
    found = []
    if only_in_python(made.name):
        found.append(f"the method ({made.name.partition(':')[2]})")
    if only_in_python(made.model):
        found.append(f"the model ({made.model.partition(':')[2]})")
    if isinstance(made.origin, str) and only_in_python(made.origin):
        found.append(f"the data ({made.origin.partition(':')[2]})")
    return found


def configuration(made: Parts, run: Run) -> str:
    """The configuration of a run as TOML, headed by what it can be used for."""
    task = made.task
    experiment = Experiment(
        model=made.model,
        start=task.start,
        metric=_metric(made),
        prunable=_prunable(made),
        rounds=run.rounds,
        seed=run.key.seed,
        wire=str(run.wire),
        precision=task.precision,
        device=task.device,
        arithmetic=task.arithmetic,
    )
    experiment = absolute_paths(fields.replace(experiment, _data(made.origin)))
    method = made.method
    if isinstance(method, Compressed) and not isinstance(METHODS.get(made.name), Compressed):
        experiment = fields.replace(experiment, {"compress": method.ways})
        method = method.method
    name = "" if run.name == made.name.rpartition(":")[2] else run.name
    config = Config(made.name, {}, experiment, run.options, name)
    return toml(config, method, _heading(made, run.folder))


def _heading(made: Parts, folder: Path) -> str:
    missing = lost(made)
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "an interpreter"
    if not missing:
        return f"gossamer run {folder / 'config.toml'}\nStarted from Python ({program})."
    which = "it was" if len(missing) == 1 else "they were"
    return (
        f"started from Python ({program})\n"
        f"This file cannot build {' and '.join(missing)} again: {which} made by the program.\n"
        f"`gossamer report` works; gs.resume continues the run in Python."
    )


def _data(origin: Origin | str) -> dict[str, object]:
    """Settings of the experiment that divide the data as they were."""
    if isinstance(origin, str):
        return {"data": origin}
    return {
        "data": origin.name,
        "partition": origin.partition or "",
        "pool": origin.pool or 0,
        "least": -1 if origin.least is None else origin.least,
        "valid": origin.valid,
        "label": origin.inputs.label,
        "size": origin.inputs.size,
        "layout": origin.inputs.layout,
        "scale": origin.inputs.scale,
        "augment": origin.inputs.augment,
        "task": origin.inputs.task,
        "data_seed": origin.seed,
        "budgets": origin.budgets or "",
    }


def _method_name(method: AnyMethod) -> str:
    """The entry of METHODS that a method is one of, or the reference of its class."""
    if isinstance(method, Compressed):
        entries = {name: entry for name, entry in METHODS.items() if entry == method}
        return next(iter(entries), None) or _method_name(method.method)
    mine = _values(method)
    alike = {
        name: sum(mine[key] != value for key, value in _values(entry).items())
        for name, entry in METHODS.items()
        if type(entry) is type(method)
    }
    if alike:
        return min(alike, key=lambda name: alike[name])
    known = reference(type(method))
    try:
        type(method)()
    except TypeError:  # a field without a default
        known = None
    return known or f"{PYTHON}:{type(method).__name__}"


def _values(method: AnyMethod) -> dict[str, object]:
    return {item.name: item.default for item in fields.settings(method)}


def federation_of(given: FederationLike, seed: int) -> tuple[Federation, Origin | str]:
    """A federation, and how it came about."""
    if isinstance(given, str):
        made: Federation = data.federation(given, seed=seed)
        return made, getattr(made, "origin", None) or given
    if isinstance(given, data.Arrays):
        return data.federation(given, seed=seed), f"{PYTHON}:{given.name}"
    if callable(given):
        called, known = given(), reference(given)
        if isinstance(called, data.Arrays):
            called = data.federation(called, seed=seed)
        return called, known or f"{PYTHON}:{getattr(given, '__name__', 'function')}"
    origin: Origin | None = getattr(given, "origin", None)
    return given, origin or f"{PYTHON}:{given.name}"


def _task(given: TaskLike, federation: Federation, seed: int) -> tuple[Task, str]:
    """The task, and the name of its model."""
    if isinstance(given, Task):
        # What a program did to the weights of a module since it was built, nobody can repeat.
        again = goals.name_of(given.goal) and given.start == "seed"
        named = models.name_of(given.module) if again else None
        return given, named or f"{PYTHON}:{type(given.module).__name__}"
    example = federation.client(federation.pool[0].id).train.x[:2]
    shape = tuple(example.shape[1:])
    if isinstance(given, str):
        language = federation.describe().get("task") == "language"
        name = given or models.default(shape, example.dtype, language)
        config = Config("fedavg", {}, Experiment(model=name, seed=seed))
        return config.build_task(federation), name
    goal = goals.for_data("", "", federation.describe())
    if isinstance(given, nn.Module):
        return Task.of(given, example, goal=goal), f"{PYTHON}:{type(given).__name__}"
    with seeded_globally(Key(seed).fold("model")):
        built = models.call(given, shape, federation.classes)
    name = getattr(given, "__name__", "function")
    return Task.of(built, example, goal=goal), reference(given) or f"{PYTHON}:{name}"


def _metric(made: Parts) -> str:
    """The headline metric, if it is not that of the data's task."""
    usual = goals.for_data("", "", made.federation.describe()).headline.name
    return "" if made.task.goal.headline.name == usual else made.task.goal.headline.name


def _prunable(made: Parts) -> str:
    """Names of what may be pruned, if it is not what is by default."""
    federation, layout = made.federation, made.task.layout
    example = federation.client(federation.pool[0].id).train.x[:2]
    usual = Layout.trace(made.task.module, example)
    return "" if layout.prunable == usual.prunable else ",".join(layout.prunable)
