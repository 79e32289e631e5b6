"""The results of a sweep: which settings were best on validation data, as text and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.engine.options import Select
from gossamer.report import units
from gossamer.report.columns import table
from gossamer.report.curves import mean, standard_error
from gossamer.report.paired import against_best

MARK = "*"


@dataclass(frozen=True)
class Trial:
    """One combination of settings, and the figures of its runs, one per seed."""

    settings: Mapping[str, Any]
    figures: Sequence[Mapping[str, Any]]
    """Of every finished run: `seed`, `scores`, `metric`, `better`, `density`, `bits`, `seconds`."""
    missing: int = 0
    """Runs that failed or did not finish."""

    @property
    def title(self) -> str:
        """The settings in a line."""
        return " ".join(f"{name}={value}" for name, value in self.settings.items()) or "defaults"

    def mean(self, name: str) -> float | None:
        """The mean over seeds of a score."""
        return mean(each["scores"].get(name) for each in self.figures)

    @property
    def sign(self) -> float:
        """1 if higher scores are better, otherwise -1."""
        return -1.0 if any(each.get("better") == "lower" for each in self.figures) else 1.0

    def error(self, name: str) -> float | None:
        """The standard error of that mean; None for one seed."""
        return standard_error(list(self.by_seed(name).values()))

    def by_seed(self, name: str) -> Mapping[int, float]:
        """A score of each run by its seed."""
        scores = {each["seed"]: each["scores"].get(name) for each in self.figures}
        return {seed: value for seed, value in scores.items() if value is not None}


SCORES = {"valid": "valid_best", "test": "best"}
"""The score by which a sweep is decided."""


def ranked(trials: Sequence[Trial], select: Select) -> list[Trial]:
    """Trials from best to worst; those without a score, or with runs missing, come last."""

    def place(trial: Trial) -> tuple[bool, float]:
        score = trial.mean(SCORES[select])
        return (score is None or trial.missing > 0, -trial.sign * (score or 0.0))

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
    """Which settings were best, and from which others the seeds do not show a difference."""
    winner = best(trials, select)
    if winner is None:
        return "no combination has finished"
    name = SCORES[select]
    told = f"best: {winner.title}, {_figure(winner, name)}"
    if select == "valid":
        told += f" on validation data, {_figure(winner, 'best')} on test data there"
    else:
        told += " on test data, on which it was chosen: expect worse on new data"
    whole = [trial for trial in ranked(trials, select) if not trial.missing]
    known = {trial.title: trial.by_seed(name) for trial in whole if trial.by_seed(name)}
    if len(known) > 1 and winner.error(name) is None:
        return f"{told}; one seed shows no difference to the others"
    signed = {
        title: {seed: winner.sign * value for seed, value in values.items()}
        for title, values in known.items()
    }
    close = [each.row for each in against_best(signed)[1] if not each.shown]
    if close:
        more = f" and {len(close) - 3} more" if len(close) > 3 else ""
        told += f"; no difference shown to {', '.join(close[:3])}{more}"
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
    shown = units.score(value) + ("" if error is None else f" ± {error:.2g}")
    return f"{shown} ({trial.missing} missing)" if trial.missing else shown
