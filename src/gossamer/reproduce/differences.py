"""Which rows of a comparison differ: each against the best one, paired by seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.report.columns import paragraph
from gossamer.report.figures import figures
from gossamer.report.groups import Group
from gossamer.report.paired import LEVEL, Paired, holm, paired
from gossamer.reproduce.results import Results
from gossamer.task.metrics import titled


@dataclass(frozen=True)
class Difference:
    """How far a row is below the best one."""

    best: str
    other: str
    paired: Paired
    p: float | None
    """Of the paired t-test, corrected for the number of tests."""
    metric: str = "accuracy"

    @property
    def shown(self) -> bool:
        """Whether the seeds show a difference."""
        return self.p is not None and self.p < LEVEL

    @property
    def words(self) -> str:
        """The difference as a sentence."""
        count = len(self.paired.values)
        if self.paired.mean is None:
            return f"{self.best} and {self.other} have no seed in common"
        unit, below = (100, "points below") if self.metric == "accuracy" else (1, "worse")
        points = f"{unit * self.paired.mean:.2g}"
        if self.paired.error is None or self.p is None:
            return f"{self.other}: {points} {below}, one seed; no difference shown"
        points = f"{points} ± {unit * self.paired.error:.2g} {below}, {count} seeds"
        verdict = "" if self.shown else "; no difference shown"
        return f"{self.other}: {points}, p = {self.p:.2g}{verdict}"


def differences(table: Results) -> list[Difference]:
    """Every row against the one with the best last score; runs that diverged are left out."""
    sign = 1 if table.rises else -1
    measured = [(row.group.label, _by_seed(row.group, table.main, sign)) for row in table.rows]
    known = [(label, values) for label, values in measured if values]
    if len(known) < 2:
        return []
    best, top = max(known, key=lambda each: sum(each[1].values()) / len(each[1]))
    pairs = [(label, paired(top, values)) for label, values in known if label != best]
    tested = [pair.p for _, pair in pairs if pair.p is not None]
    corrected = iter(holm(tested))
    return [
        Difference(best, label, pair, None if pair.p is None else next(corrected), table.metric)
        for label, pair in pairs
    ]


def text(found: Sequence[Difference]) -> Iterator[str]:
    """Lines for a terminal; none if there is nothing to compare, or one seed only."""
    if not any(each.paired.error is not None for each in found):
        return
    metric, best = titled(found[0].metric), found[0].best
    yield paragraph(
        f"Differences of last {metric} from {best}, the best: means ± one standard "
        "error over seeds, which are paired; two-sided t-tests, corrected by Holm's method:"
    )
    for each in found:
        yield paragraph(each.words, "- ")


def plain(found: Sequence[Difference]) -> list[dict[str, Any]]:
    """The differences for programs."""
    return [
        {
            "best": each.best,
            "other": each.other,
            "seeds": len(each.paired.values),
            "mean": each.paired.mean,
            "se": each.paired.error,
            "p": each.p,
            "shown": each.shown,
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
