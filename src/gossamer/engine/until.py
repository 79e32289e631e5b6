"""Targets and budgets that end a run before its last round, such as `accuracy=0.85,bits=1e9`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from gossamer.engine.checkpoint import Progress
from gossamer.task.metrics import Better

COSTS = ("bits", "seconds", "device_seconds", "flops")
"""What a goal can be about besides the headline metric: what the run has cost so far."""


@dataclass(frozen=True)
class Goal:
    """A figure, and the value at which a run ends."""

    name: str
    value: float

    def __str__(self) -> str:
        return f"{self.name}={self.value:g}"


def parse(text: str, metric: str = "accuracy") -> tuple[Goal, ...]:
    """Reads `accuracy=0.85,bits=1e9`: the goals of a run, of which the first reached ends it.

    Args:
        text: The goals.
        metric: The headline metric.

    Raises:
        ValueError: a goal is unknown, named twice, or is no positive number.
    """
    goals: list[Goal] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if name not in (metric, *COSTS):
            close = difflib.get_close_matches(name, (metric, *COSTS), 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"`until=` takes {metric}, {', '.join(COSTS[:-1])} or {COSTS[-1]}, such as "
                f"{metric}=0.85 or bits=1e9, not {part!r}{hint}"
            )
        if any(goal.name == name for goal in goals):
            raise ValueError(f"`until={text}` has {name} twice")
        goals.append(Goal(name, _number(name, value)))
    return tuple(goals)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"`until=` needs a positive number for {name}, not {text!r}")
    if name == "accuracy" and value > 1:
        raise ValueError(f"`until=`: an accuracy is between 0 and 1, so {text} is never reached")
    return value


def check(text: str, metric: str, evaluated: bool, timed: bool) -> None:
    """Raises ValueError if a run can never reach one of its goals.

    Args:
        text: The goals.
        metric: The headline metric.
        evaluated: Whether the run is evaluated.
        timed: Whether it simulates time on devices.
    """
    for goal in parse(text, metric):
        if goal.name == metric and not evaluated:
            raise ValueError(f"`until={metric}` needs evaluations; use `eval_every=1`")
        if goal.name == "device_seconds" and not timed:
            raise ValueError("`until=device_seconds` needs devices, e.g. `devices=phone-2024`")


def reached(
    text: str, progress: Progress, metric: str = "accuracy", better: Better = "higher"
) -> str:
    """The first of a run's goals that it has reached; empty if there is none."""
    if not text:
        return ""
    known = _figures(progress, metric)
    for goal in parse(text, metric):
        value = known[goal.name]
        falls = goal.name == metric and better == "lower"
        if value is not None and (value <= goal.value if falls else value >= goal.value):
            return str(goal)
    return ""


def _figures(progress: Progress, metric: str) -> Mapping[str, float | None]:
    scores, cost = progress.scores, progress.cost
    personal = scores.get("personal_density") is not None
    order = ("personal_mean", "global") if personal else ("global", "personal_mean")
    known = [value for name in order if (value := scores.get(name)) is not None]
    return {
        metric: known[0] if known else None,
        "bits": cost.up + cost.down,
        "seconds": progress.seconds,
        "device_seconds": progress.device_seconds,
        "flops": cost.flops,
    }
