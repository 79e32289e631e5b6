"""Which rows of a comparison differ: each against the most accurate one, paired by seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.report.columns import paragraph
from gossamer.report.figures import Row, figures
from gossamer.report.groups import Group
from gossamer.report.paired import LEVEL, Paired, holm, paired


@dataclass(frozen=True)
class Difference:
    """How far a row is below the most accurate one."""

    best: str
    other: str
    paired: Paired
    p: float | None
    """Of the paired t-test, corrected for the number of tests."""

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
        points = f"{100 * self.paired.mean:.2g}"
        if self.paired.error is None or self.p is None:
            return f"{self.other}: {points} points below, one seed; no difference shown"
        points = f"{points} ± {100 * self.paired.error:.2g} points below, {count} seeds"
        verdict = "" if self.shown else "; no difference shown"
        return f"{self.other}: {points}, p = {self.p:.2g}{verdict}"


def differences(rows: Sequence[Row], accuracy: str) -> list[Difference]:
    """Every row against the one with the highest last accuracy; runs that diverged are left out."""
    measured = [(row.group.label, _by_seed(row.group, accuracy)) for row in rows]
    known = [(label, values) for label, values in measured if values]
    if len(known) < 2:
        return []
    best, top = max(known, key=lambda each: sum(each[1].values()) / len(each[1]))
    pairs = [(label, paired(top, values)) for label, values in known if label != best]
    tested = [pair.p for _, pair in pairs if pair.p is not None]
    corrected = iter(holm(tested))
    return [
        Difference(best, label, pair, None if pair.p is None else next(corrected))
        for label, pair in pairs
    ]


def text(found: Sequence[Difference]) -> Iterator[str]:
    """Lines for a terminal; none if there is nothing to compare, or one seed only."""
    if not any(each.paired.error is not None for each in found):
        return
    yield paragraph(
        f"Differences of last accuracy from {found[0].best}, the highest: means ± one standard "
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


def _by_seed(group: Group, accuracy: str) -> Mapping[int, float]:
    """The last accuracy of each sound run by its seed."""
    found = {run.seed: figures(run, accuracy)["accuracy"] for run in group.sound}
    return {seed: value for seed, value in found.items() if seed is not None and value is not None}
