"""Which rows of a comparison differ: each against the best one, paired by seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.report.columns import paragraph
from gossamer.report.figures import figures
from gossamer.report.groups import Group
from gossamer.report.paired import Against, against_best
from gossamer.reproduce.results import Results
from gossamer.task.metrics import titled


@dataclass(frozen=True)
class Difference:
    """How far a row is below the best one."""

    best: str
    other: Against
    metric: str = "accuracy"

    @property
    def words(self) -> str:
        """The difference as a sentence."""
        row, found, p = self.other.row, self.other.paired, self.other.p
        if found.mean is None:
            return f"{self.best} and {row} have no seed in common"
        unit, below = (100, "points below") if self.metric == "accuracy" else (1, "worse")
        points = f"{unit * found.mean:.2g}"
        if found.error is None or p is None:
            return f"{row}: {points} {below}, one seed; no difference shown"
        points = f"{points} ± {unit * found.error:.2g} {below}, {len(found.values)} seeds"
        verdict = "" if self.other.shown else "; no difference shown"
        return f"{row}: {points}, p = {p:.2g}{verdict}"


def differences(table: Results) -> list[Difference]:
    """Every row against the one with the best last score; runs that diverged are left out."""
    sign = 1 if table.rises else -1
    measured = {row.group.label: _by_seed(row.group, table.main, sign) for row in table.rows}
    known = {label: values for label, values in measured.items() if values}
    if len(known) < 2:
        return []
    best, others = against_best(known)
    return [Difference(best, other, table.metric) for other in others]


def text(found: Sequence[Difference]) -> Iterator[str]:
    """Lines for a terminal; none if there is nothing to compare, or one seed only."""
    if not any(each.other.paired.error is not None for each in found):
        return
    metric, best = titled(found[0].metric), found[0].best
    yield paragraph(
        f"Differences of last {metric} from {best}, the best: means ± one standard "
        "error over seeds, which are paired; two-sided t-tests, corrected for all pairs of rows "
        "by Holm's method:"
    )
    for each in found:
        yield paragraph(each.words, "- ")


def plain(found: Sequence[Difference]) -> list[dict[str, Any]]:
    """The differences for programs."""
    return [
        {
            "best": each.best,
            "other": each.other.row,
            "seeds": len(each.other.paired.values),
            "mean": each.other.paired.mean,
            "se": each.other.paired.error,
            "p": each.other.p,
            "shown": each.other.shown,
        }
        for each in found
    ]


def _by_seed(group: Group, main: str, sign: int) -> Mapping[int, float]:
    """The last score of each sound run by its seed, such that higher is better."""
    found = {run.seed: figures(run, main)["score"] for run in group.sound}
    return {
        seed: sign * value
        for seed, value in found.items()
        if seed is not None and value is not None
    }
