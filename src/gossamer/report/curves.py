"""Curves for the page: means over seeds, thinned to what a screen can show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from gossamer.report.runs import Curve

MOST = 1000
"""Maximum points of a curve."""
DIGITS = 6
"""Significant digits of numbers in the page."""

Column = list[float | None]


def table(
    runs: Sequence[Mapping[str, Curve]],
    names: Sequence[str],
    along: Sequence[str] = (),
    most: int = MOST,
) -> dict[str, Column]:
    """Figures by round as columns: the mean over runs, and if there are several, two more.

    `NAME±` is the standard error of the mean, and `NAME#` over how many runs it is.

    Args:
        runs: curves by name, for each run.
        names: the figures; those that no run has are left out.
        along: further figures, at the rounds of the first ones.
        most: maximum number of rounds.

    Returns:
        Columns of equal length, the column `round` first. The mean of a round is over the runs that
        have the figure there.
    """
    known = [name for name in names if any(run.get(name) for run in runs)]
    more = [name for name in along if known and any(run.get(name) for run in runs)]
    rounds = sorted({place for name in known for run in runs for place in run.get(name, ())})
    columns: dict[str, Column] = {"round": [float(place) for place in rounds]}
    for name in (*known, *more):
        values = [[run[name][at] for run in runs if at in run.get(name, ())] for at in rounds]
        columns[name] = [statistics.fmean(each) if each else None for each in values]
        if len(runs) > 1 and name in known:
            columns[f"{name}±"] = [standard_error(each) for each in values]
            columns[f"{name}#"] = [len(each) for each in values]
    kept = thin([columns[name] for name in known], most)
    return {name: [short(column[at]) for at in kept] for name, column in columns.items()}


def spread(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean; None for fewer than two values."""
    std = spread(values)
    return None if std is None else std / math.sqrt(len(values))


def thin(columns: Sequence[Column], most: int = MOST) -> list[int]:
    """About `most` indices to keep: the first, the last, and the extremes of every interval.

    The minimum and the maximum of every column are among them.
    """
    length = len(columns[0]) if columns else 0
    if length <= most:
        return list(range(length))
    parts = max(1, (most - 2) // (2 * len(columns)))
    kept = {0, length - 1}
    for column in columns:
        for part in range(parts):
            stretch = range(part * length // parts, (part + 1) * length // parts)
            known = [(value, at) for at in stretch if (value := column[at]) is not None]
            if known:
                kept |= {min(known)[1], max(known, key=lambda pair: (pair[0], -pair[1]))[1]}
    return sorted(kept)


def short(value: float | None) -> float | None:
    """A rounded number, as an integer if it is whole."""
    if value is None:
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded == int(rounded) else rounded


def last(curve: Curve) -> float | None:
    """The value at the last round of a curve."""
    return curve[max(curve)] if curve else None


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
