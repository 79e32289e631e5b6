"""Sweeps: settings to try, in a grid or at random, and which were best on validation data."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from gossamer.core import Key
from gossamer.engine.options import Select
from gossamer.fields import Setting, convert
from gossamer.report import units
from gossamer.report.columns import table
from gossamer.report.curves import mean, spread

RANGE = ".."
DECADES = 10
"""A range whose ends are so many times apart is drawn from logarithmically."""
DIGITS = 3
MARK = "*"

T = TypeVar("T")
Values = Mapping[str, Sequence[str]]
"""The values to try of every setting, as texts; a range is one text such as `0.001..0.1`."""


def listed(setting: Setting, text: str) -> list[str]:
    """The values of an option: `0.01,0.03,0.1`, or a range.

    Texts have no lists: a comma may be part of them.
    """
    if not (setting.choices or _is_number(setting) or setting.type is bool):
        return [text]
    values = [word.strip() for word in text.split(",")]
    for word in values:
        for end in word.split(RANGE) if RANGE in word else [word]:
            convert(setting, end)
    if len(set(values)) < len(values):
        raise ValueError(f"`{setting.name}={text}` names a value twice")
    return values


def grid(values: Values) -> list[dict[str, str]]:
    """Every combination, the last setting changing fastest.

    Raises:
        ValueError: a value is a range.

    >>> grid({"lr": ["0.1", "1"], "batch": ["8"]})
    [{'lr': '0.1', 'batch': '8'}, {'lr': '1', 'batch': '8'}]
    """
    for name, words in values.items():
        if ranges := [word for word in words if RANGE in word]:
            raise ValueError(
                f"`{name}={ranges[0]}` is a range, from which values are drawn; add `random=20`, "
                f"or list values"
            )
    return combinations(values)


def combinations(values: Mapping[str, Sequence[T]]) -> list[dict[str, T]]:
    """Every choice of one value per setting."""
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def drawn(values: Values, count: int, seed: int, whole: Sequence[str] = ()) -> list[dict[str, str]]:
    """Up to `count` different combinations at random; the same seed draws the same ones.

    Args:
        values: lists and ranges; a range of 1 to 10 or more is drawn from logarithmically.
        count: how many to draw; fewer if there are not as many.
        seed: of the draw.
        whole: settings that are whole numbers.
    """
    found: list[dict[str, str]] = []
    for attempt in range(20 * count):
        draw = Key(seed).fold("sweep", attempt).numpy()
        chosen = {}
        for name, words in values.items():
            word = words[int(draw.integers(len(words)))]
            chosen[name] = _between(word, float(draw.random()), name in whole)
        if chosen not in found:
            found.append(chosen)
        if len(found) == count:
            break
    return found


def _between(word: str, share: float, whole: bool) -> str:
    if RANGE not in word:
        return word
    low, high = map(float, word.split(RANGE))
    if low > high:
        raise ValueError(f"the range {word} ends before it begins")
    if low > 0 and high / low >= DECADES:
        value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        value = low + share * (high - low)
    return str(min(round(value), int(high))) if whole else f"{value:.{DIGITS}g}"


def whole_numbers(settings: Sequence[Setting]) -> list[str]:
    """The names of settings that are whole numbers."""
    return [item.name for item in settings if item.type is int]


def _is_number(setting: Setting) -> bool:
    kinds = get_args(setting.type) or (setting.type,)
    return int in kinds or float in kinds


# results ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One combination of settings, and the figures of its runs, one per seed."""

    settings: Mapping[str, Any]
    figures: Sequence[Mapping[str, Any]]
    """Of every finished run: `accuracy`, `density`, `bits`, `seconds`."""
    missing: int = 0
    """Runs that failed or did not finish."""

    @property
    def title(self) -> str:
        """The settings in a line."""
        return " ".join(f"{name}={value}" for name, value in self.settings.items()) or "defaults"

    def mean(self, name: str) -> float | None:
        """The mean over seeds of an accuracy."""
        return mean(each["accuracy"].get(name) for each in self.figures)

    def error(self, name: str) -> float | None:
        """The standard error of that mean; None for one seed."""
        known = [v for each in self.figures if (v := each["accuracy"].get(name)) is not None]
        apart = spread(known)
        return None if apart is None else apart / math.sqrt(len(known))


SCORES = {"valid": "valid_best", "test": "best"}
"""The accuracy by which a sweep is decided."""


def ranked(trials: Sequence[Trial], select: Select) -> list[Trial]:
    """Trials from best to worst; those without a score, or with runs missing, come last."""

    def place(trial: Trial) -> tuple[bool, float]:
        score = trial.mean(SCORES[select])
        return (score is None or trial.missing > 0, -(score or 0.0))

    return sorted(trials, key=place)


def best(trials: Sequence[Trial], select: Select) -> Trial | None:
    """The best trial whose runs are all there."""
    for trial in ranked(trials, select)[:1]:
        if not trial.missing and trial.mean(SCORES[select]) is not None:
            return trial
    return None


def text(trials: Sequence[Trial], select: Select) -> str:
    """The table for a terminal, best first."""
    order, winner = ranked(trials, select), best(trials, select)
    names = list(order[0].settings) if order else []
    header = [*(names or ["settings"]), "valid" if select == "valid" else "best test"]
    header += [*(["test there"] if select == "valid" else []), "density", "Mbit", "time"]
    body = []
    for trial in order:
        mark = f"{MARK} " if trial is winner else "  "
        cells = [str(value) for value in trial.settings.values()] or ["defaults"]
        cells[0] = mark + cells[0]
        cells.append(_figure(trial, SCORES[select]))
        if select == "valid":
            cells.append(_figure(trial, "best"))
        density = mean(each["density"] for each in trial.figures)
        sent = mean(each["bits"]["up"] + each["bits"]["down"] for each in trial.figures)
        cells += ["–" if density is None else f"{density:.3g}"]
        cells += ["–" if sent is None else f"{sent / 1e6:.4g}"]
        cells += [units.seconds(mean(each["seconds"] for each in trial.figures))]
        body.append(cells)
    several = any(len(trial.figures) > 1 for trial in order)
    legend = f"{MARK} best on {'validation' if select == 'valid' else 'test'} data"
    if several:
        legend = f"means over seeds ± standard error; {legend}"
    return f"{table(body, header)}\n{legend}"


def verdict(trials: Sequence[Trial], select: Select) -> str:
    """Which settings were best, and whether another is within the noise."""
    winner = best(trials, select)
    if winner is None:
        return "no combination has finished"
    name = SCORES[select]
    score, error = winner.mean(name), winner.error(name)
    told = f"best: {winner.title}, {_figure(winner, name)}"
    if select == "valid":
        told += f" on validation data, {_figure(winner, 'best')} on test data there"
    else:
        told += " on test data, on which it was chosen: expect less on new data"
    close = []
    for trial in ranked(trials, select)[1:]:
        theirs, apart = trial.mean(name), trial.error(name)
        if None in (theirs, apart, error, score) or trial.missing:
            continue
        if score - theirs <= 2 * math.hypot(error, apart):  # type: ignore[operator,arg-type]
            close.append(trial.title)
    if close:
        told += f"; no difference shown to {', '.join(close[:3])}"
    return told


def comma_separated(trials: Sequence[Trial], select: Select) -> str:
    """CSV with a row per combination and unrounded numbers, best first."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = list(trials[0].settings) if trials else []
    scores = ("valid_best", "best", "global", "personal_mean")
    columns = [column for score in scores for column in (score, f"{score}_error")]
    writer.writerow([*names, "seeds", "missing", *columns])
    for trial in ranked(trials, select):
        figures = [value for s in scores for value in (trial.mean(s), trial.error(s))]
        cells = ["" if value is None else repr(value) for value in figures]
        writer.writerow([*trial.settings.values(), len(trial.figures), trial.missing, *cells])
    return stream.getvalue()


def _figure(trial: Trial, name: str) -> str:
    value, error = trial.mean(name), trial.error(name)
    if value is None:
        return "failed" if trial.missing else "–"
    shown = f"{value:.4f}" + ("" if error is None else f" ± {error:.2g}")
    return f"{shown} ({trial.missing} missing)" if trial.missing else shown
