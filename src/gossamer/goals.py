"""Goals by name: what `--task` and `--metric` choose, and what the data say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from gossamer import models
from gossamer.core import Examples, Key
from gossamer.references import gone, is_code, only_in_python
from gossamer.task import Task
from gossamer.task.goal import GOALS, Goal, goal_of


def named(task: str) -> Goal:
    """The goal of a name such as `regression`, or the one that `my.py:goal` returns.

    Raises:
        KeyError: there is no such goal.
        ValueError: the function returns something else.
    """
    if only_in_python(task):
        raise gone("goal", task, "task")
    if not is_code(task):
        return goal_of(task)
    made = models.load(task)()
    if not isinstance(made, Goal):
        raise ValueError(f"{task} returned a {type(made).__name__}; return a gs.Goal")
    return made


def kind_of(task: str) -> str:
    """What labels are for a goal; empty where the data decide."""
    return named(task).kind if task else ""


def for_data(task: str, metric: str, facts: Mapping[str, object]) -> Goal:
    """The goal of a run.

    Args:
        task: its name; empty: the one that the data are made for.
        metric: the headline; empty: the first of the goal's metrics.
        facts: what a federation describes itself by.
    """
    goal = named(task or str(facts.get("task", "classification")))
    centre, spread = facts.get("target_mean"), facts.get("target_std")
    if goal.kind == "regression" and isinstance(centre, Sequence) and isinstance(spread, Sequence):
        goal = goal.scaled([float(each) for each in centre], [float(each) for each in spread])
    return goal.led_by(metric) if metric else goal


def model(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    classes: int,
    goal: Goal,
    facts: Mapping[str, object],
) -> nn.Module:
    """A model for a goal, with the options that follow from the data.

    Args:
        name: of the model; empty: the default for such examples.
        shape: of an example.
        dtype: of an example.
        classes: outputs that the data need.
        goal: what it is trained for.
        facts: what a federation describes itself by.
    """
    language = goal.kind == "language"
    name = name or models.default(shape, dtype, language)
    known: dict[str, object] = {"every": True} if language else {}
    known |= {"vocabulary": facts["vocabulary"]} if "vocabulary" in facts else {}
    head = name.partition(":")[0]
    takes = models.options(head) if head in models.MODELS else {}
    return models.build(
        name, shape, classes, **{key: value for key, value in known.items() if key in takes}
    )


def name_of(goal: Goal) -> str | None:
    """The name of a goal among those that have one; None for others."""
    usual = GOALS[goal.kind]
    alike = goal.criterion is usual.criterion and set(goal.metrics) == set(usual.metrics)
    return goal.kind if alike and goal.name == usual.name else None


def check(task: Task, few: Examples) -> None:
    """Raises ValueError if a model or the data do not fit the goal, with what to do."""
    if task.goal.kind == "classification":
        return  # whatever has classes fits, as it always did
    params = task.own(task.init(Key(0)))
    with torch.no_grad():
        outputs = task.logits(params, few.x.to(task.device))
    try:
        task.goal.check(outputs, few.y)
    except ValueError as problem:
        hint = "choose another `model=`, or another `task=`"
        raise ValueError(f"{problem}; {hint}") from None
