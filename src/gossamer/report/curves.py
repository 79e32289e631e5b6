"""Means over seeds, and fewer points where there are more than a screen can show."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from gossamer.report.reading import Curve

MOST = 1000
"""Points of a curve that are kept."""
DIGITS = 6
"""Significant digits of a number in the page."""

Column = list[float | None]


def table(
    runs: Sequence[Mapping[str, Curve]],
    names: Sequence[str],
    along: Sequence[str] = (),
    most: int = MOST,
) -> dict[str, Column]:
    """Figures by round as columns: the mean over runs, and `NAME±` where there are several.

    A round's mean is over the runs that have the figure there; `along` are further columns, which
    have no part in choosing the rounds. Figures that no run has are left out.
    """
    known = [name for name in names if any(run.get(name) for run in runs)]
    more = [name for name in along if known and any(run.get(name) for run in runs)]
    rounds = sorted({place for name in known for run in runs for place in run.get(name, ())})
    columns: dict[str, Column] = {"round": [float(place) for place in rounds]}
    for name in (*known, *more):
        values = [[run[name][at] for run in runs if at in run.get(name, ())] for at in rounds]
        columns[name] = [statistics.fmean(each) if each else None for each in values]
        if len(runs) > 1 and name in known:
            columns[f"{name}±"] = [spread(each) for each in values]
    kept = thin([columns[name] for name in known], most)
    return {name: [short(column[at]) for at in kept] for name, column in columns.items()}


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample, None for fewer than two."""
    return statistics.stdev(values) if len(values) > 1 else None


def thin(columns: Sequence[Column], most: int = MOST) -> list[int]:
    """Places to keep, at most about `most`: the first, the last, and in every stretch the extremes.

    Of every column the lowest and the highest value of all are among them.
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
    """A number with as many digits as can be seen; whole ones without a point."""
    if value is None:
        return None
    found = float(f"{value:.{DIGITS}g}")
    return int(found) if found == int(found) else found


def last(curve: Curve) -> float | None:
    """The figure of the last round that has it."""
    return curve[max(curve)] if curve else None


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
