"""Groups of runs: the seeds of one configuration share a label and a colour."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.report.runs import Run

IRRELEVANT = {
    *("experiment.seed", "options.workers", "options.checkpoint_every"),
    "options.on_client_error",
}
"""Settings in which the runs of a group may differ: the seed, and what affects no result."""
FACTS = ("name", "partition", "pool", "classes", "shape", "scale", "augment")
"""Facts of a federation that do not depend on the seed."""
LONGEST = 28
"""Maximum characters of a setting in a label."""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def sound(self) -> tuple[Run, ...]:
        """Its runs that did not diverge: those that figures are averaged over."""
        return tuple(run for run in self.runs if not run.diverged)

    @property
    def diverged(self) -> str:
        """How many of its runs diverged; empty if none did."""
        count = len(self.runs)
        lost = count - len(self.sound)
        return "" if not lost else "diverged" if count == 1 else f"{lost} of {count} diverged"

    @property
    def lost(self) -> str:
        """How many replies its runs lost; empty if none."""
        count = sum(run.failed for run in self.sound)
        return "" if not count else "1 reply lost" if count == 1 else f"{count} replies lost"

    @property
    def missed(self) -> str:
        """How many of its runs ended without reaching any of their goals; empty if none did."""
        ended = [run for run in self.sound if run.goals and run.finished]
        # Results that were kept before goals were recorded do not say.
        lost = sum(run.finished.get("reached", "?") == "" for run in ended)
        count = len(self.runs)
        if not lost:
            return ""
        return "goal missed" if count == 1 else f"{lost} of {count} missed the goal"

    @property
    def drawn(self) -> tuple[Run, ...]:
        """The runs whose curves are shown: those that did not diverge, if there are any."""
        return self.sound or self.runs

    @property
    def finished(self) -> bool:
        """Whether all of its runs have finished."""
        return all(run.finished for run in self.runs)


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The runs by configuration, in order of appearance; repeated seeds form separate groups."""
    members_of: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        key, copy = _key(run), 0
        while any(run.seed == other.seed for other in members_of.get((key, copy), ())):
            copy += 1
        members_of.setdefault((key, copy), []).append(run)
    groups = [tuple(members) for members in members_of.values()]
    return [Group(label, members) for label, members in zip(_labels(groups), groups, strict=True)]


def settings(run: Run) -> dict[str, Any]:
    """All settings of a run by `table.name`; from the log if there is no configuration."""
    tables = {name: value for name, value in run.config.items() if isinstance(value, dict)}
    if not tables:
        plan = run.started.get("settings")
        data = run.started.get("data")
        tables = {
            "experiment": {"rounds": run.planned, "seed": run.seed},
            "settings": plan if isinstance(plan, dict) else {},
            "data": {name: data[name] for name in FACTS if name in data}
            if isinstance(data, dict)
            else {},
        }
    return {
        f"{table}.{name}": value
        for table, values in tables.items()
        for name, value in values.items()
    }


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Settings that differ between runs, with each run's value; seeds are left out."""
    each = [settings(run) for run in runs]
    names = [
        name for name in each[0] if name not in IRRELEVANT and all(name in one for one in each)
    ]
    columns = {name: [one[name] for one in each] for name in names}
    return {
        name: values
        for name, values in columns.items()
        if any(_text(value) != _text(values[0]) for value in values)
    }


def _key(run: Run) -> str:
    """A key that is equal for runs that differ only in the seed."""
    known = {name: value for name, value in settings(run).items() if name not in IRRELEVANT}
    # A run that has not started has a configuration, but no log.
    model = None if run.config else run.started.get("parameters")
    return _text([run.config.get("method") or run.method, model, known])


def _labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The method's name, with settings or the folder if it is ambiguous."""
    firsts = [members[0] for members in groups]
    labels = []
    for run in firsts:
        alike = [other for other in firsts if other.method == run.method]
        place = alike.index(run)
        words = [_word(name, values[place]) for name, values in differing(alike).items()]
        usable = 0 < len(words) <= 3
        labels.append(" · ".join([run.method, *words]) if usable else run.method)
    for names in ([run.name for run in firsts], [run.folder for run in firsts]):
        labels = [
            label if labels.count(label) == 1 else f"{run.method} · {name}"
            for label, run, name in zip(labels, firsts, names, strict=True)
        ]
    return labels


def _word(name: str, value: object) -> str:
    text = value if isinstance(value, str) else _text(value)
    if isinstance(value, str) and "/" in value:
        text = Path(value).name
    short = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f"{name.rpartition('.')[2].replace('_', ' ')} {short or '-'}"


def _text(value: object) -> str:
    """A text that is equal for equal values, such as 1 and 1.0."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)


def common(groups: Sequence[Group], of: Sequence[str]) -> Mapping[str, Any]:
    """Those of the named settings that have the same value in all groups."""
    each = [settings(group.first) for group in groups]
    return {
        name: each[0][name]
        for name in of
        if each and all(name in one and one[name] == each[0][name] for one in each)
    }
