"""What a paper claims, printed beside measured, and whether the runs support it.

A claim is about rows of a table: that one is above another, that two are level, or that a figure
is what was printed. Differences are paired by seed. A claim is `reproduced` or `not reproduced`
only if the runs show it; otherwise it is `undecided`, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gossamer.report.kept import Shelf
from gossamer.report.paired import LEVEL, Paired, paired
from gossamer.reproduce.published import Cell, Measured, measured_table
from gossamer.reproduce.tables import COSTS, SUMS, Claim, Column, Table, find, names

REPRODUCED, REFUTED, UNDECIDED = "reproduced", "not reproduced", "undecided"
SETTLED = ("full", "here")
"""Scales whose runs can support a claim; the others only check that everything runs."""

MOST_SEEDS = 20
"""Seeds of a row that are looked for among kept runs."""
HARMLESS = ("rounds", "eval_every", "workers", "device")
"""Settings of a scale that do not change what a run is about; rounds are judged by themselves."""


@dataclass(frozen=True)
class Judged:
    """A claim with what was printed, what was measured, and a verdict."""

    table: Table
    claim: Claim
    printed: float | None
    measured: Paired
    verdict: str
    reason: str
    scale: str = ""
    """The scale of the runs; empty if there are none."""

    @property
    def unit(self) -> str:
        """The unit of the figures."""
        unit = self.table.columns[self.claim.column].unit
        return "points" if unit == "%" and self.claim.than else unit

    @property
    def found(self) -> str:
        """What was measured, with its error and the number of seeds."""
        if self.measured.mean is None:
            return "–"
        count = len(self.measured.values)
        value = f"{self.measured.mean:{'+' if self.claim.than else ''}.4g}"
        error = self.measured.error
        seeds = "1 seed" if count == 1 else f"{count} seeds"
        return f"{value if error is None else f'{value} ± {error:.2g}'} ({seeds})"

    @property
    def expected(self) -> str:
        """What was printed."""
        if self.claim.below:
            return f"below {self.claim.below:g}"
        if self.printed is None:
            return "–"
        return f"{self.printed:{'+' if self.claim.than else ''}.4g}"


def judge(measured: Measured, scale: str = "") -> list[Judged]:
    """All claims of a table, judged by its runs."""
    return [_judge(measured, claim, scale) for claim in measured.table.claims.values()]


def judge_kept(shelf: Shelf, tables: Iterable[Table] | None = None) -> list[Judged]:
    """All claims of tables, by default all of them, judged by the runs that are kept.

    A claim is judged by the largest scale that has any runs for it.
    """
    some = map(find, names()) if tables is None else tables
    return [judged for table in some if table.claims for judged in _best(table, shelf)]


def kept_table(table: Table, shelf: Shelf, scales: Iterable[str]) -> tuple[Measured, str]:
    """The table as the results that are kept make it, and the scale that has most of them.

    Scales whose runs can support a claim come before the others.
    """
    choices = [
        (measured_table(table, table.plans(table.scales[name], Path(), MOST_SEEDS), shelf), name)
        for name in scales
    ]

    def place(each: tuple[Measured, str]) -> tuple[bool, int]:
        count = len(each[0].folders)
        return each[1] in SETTLED and count > 0, count

    return max(choices, key=place)


def _best(table: Table, shelf: Shelf) -> list[Judged]:
    """Each claim by the largest scale that has any runs for it."""
    about = {name for claim in table.claims.values() for name in _about(table, claim)}
    rows = {name: row for name, row in table.rows.items() if name in about}
    part = replace(table, rows=rows)
    choices = [
        judge(measured_table(part, part.plans(scale, Path(), MOST_SEEDS), shelf), name)
        for name in (*SETTLED, COSTS)
        if (scale := table.scales.get(name))
    ]
    by_claim = (list(map(_runs, each)) for each in zip(*choices, strict=True))
    return [next((one for one in each if one.measured.values), each[0]) for each in by_claim]


def _runs(judged: Judged) -> Judged:
    """The claim without runs of few rounds, unless it is about what is sent or computed."""
    if judged.scale != COSTS or _exact(judged.table, judged.claim):
        return judged
    return replace(judged, measured=Paired(()), verdict=UNDECIDED, reason="not run yet", scale="")


def _judge(measured: Measured, claim: Claim, scale: str) -> Judged:
    column = measured.table.columns[claim.column]
    printed, values = _figures(*_cells(measured, claim))
    lost = [name for name in (claim.row, claim.than) if measured.diverged.get(name)]
    verdict, reason = _verdict(values, printed, claim, column)
    if verdict == UNDECIDED and lost and not values.values:
        reason = (
            f"runs of {' and '.join(measured.table.rows[name].title for name in lost)} diverged"
        )
    if column.reaching and not values.values and _common(measured, claim):
        reason = f"not every row reached {column.reaching} %"
    short = _smaller(measured, claim, scale)
    if short and values.values:
        so_far = "" if verdict == UNDECIDED else f"so far it would be {verdict}: "
        verdict, reason = UNDECIDED, f"{short}; {so_far}{reason}"
    ran = scale if values.values else ""
    return Judged(measured.table, claim, printed, values, verdict, reason, ran)


def _about(table: Table, claim: Claim) -> list[str]:
    """The rows whose runs a claim is judged by."""
    rows = [claim.row, claim.than] if claim.than else [claim.row]
    if table.columns[claim.column].relative:
        rows += [reference for name in rows if (reference := table.rows[name].reference)]
    return list(dict.fromkeys(rows))


def _common(measured: Measured, claim: Claim) -> int:
    """How many seeds all rows of a claim have run."""
    rows = _about(measured.table, claim)
    seeds = [{run.seed for run in measured.runs.get(name, ())} for name in rows]
    return len(set.intersection(*seeds))


def _cells(measured: Measured, claim: Claim) -> tuple[Cell, Cell | None]:
    """The figures of a claim's row, and of the one that it is compared with."""
    other = measured.cells[claim.than, claim.column] if claim.than else None
    return measured.cells[claim.row, claim.column], other


def _figures(mine: Cell, other: Cell | None) -> tuple[float | None, Paired]:
    """What was printed, and what was measured by seed: a figure, or a difference."""
    printed = mine.published.value if mine.published else None
    if other is None:
        return printed, Paired(tuple(mine.values))
    if printed is not None:
        printed = printed - other.published.value if other.published else None
    return printed, paired(mine.by_seed, other.by_seed)


def _smaller(measured: Measured, claim: Claim, scale: str) -> str:
    """How runs are less than the paper's, so that they cannot settle a claim; empty if not."""
    table, column, reasons = measured.table, measured.table.columns[claim.column], []
    for name in _about(table, claim):
        row = table.rows[name]
        if of := table.scales.get(scale):
            settings = {**of.settings, **of.row.get(name, {})}
            reasons += [f"{key} {value}" for key, value in settings.items() if key not in HARMLESS]
        if lost := measured.lost(name):
            reasons.append(f"{lost} replies of {row.title} lost")
        if diverged := measured.diverged.get(name):
            reasons.append(f"{diverged} runs of {row.title} diverged")
        done, pool = measured.rounds.get(name, 0), measured.pool(name)
        if 0 < done < row.training and not _exact(table, claim):
            reasons.append(f"{done} of {row.training} rounds")
        if 0 < pool < row.pool and not column.whole:
            reasons.append(f"{pool} of {row.pool} clients")
    if column.reaching:
        seeds, reached = _common(measured, claim), len(_figures(*_cells(measured, claim))[1].values)
        if reached < seeds:
            reasons.append(f"{reached} of {seeds} seeds reached {column.reaching} %")
    return ", ".join(dict.fromkeys(reasons))


def _exact(table: Table, claim: Claim) -> bool:
    """Whether fewer rounds than the paper's settle a claim."""
    return table.columns[claim.column].whole if claim.early is None else claim.early


def _verdict(
    values: Paired, printed: float | None, claim: Claim, column: Column
) -> tuple[str, str]:
    mean = values.mean
    if mean is None:
        return UNDECIDED, "not run yet"
    region = _claimed(claim, printed)
    if region is None:
        return UNDECIDED, "nothing is printed"
    low, high, wanted = region
    depends = column.figure not in SUMS or column.reaching or claim.early is False
    if not depends and not values.error:
        # A cost that depends neither on chance nor on what is learned: one run is enough.
        return (REPRODUCED if low < mean < high else REFUTED), wanted
    ends = values.interval()
    if ends is None or values.p is None:
        return UNDECIDED, "one seed"
    if claim.than and not claim.within:
        wanted = f"p = {values.p:.2g}"
        if values.p >= LEVEL:
            return UNDECIDED, f"no difference shown, {wanted}"
    else:
        wanted = f"95 % interval {ends[0]:.3g} to {ends[1]:.3g}, {wanted}"
    if low < ends[0] and ends[1] < high:
        return REPRODUCED, wanted
    return (REFUTED if ends[1] <= low or ends[0] >= high else UNDECIDED), wanted


def _claimed(claim: Claim, printed: float | None) -> tuple[float, float, str] | None:
    """The open interval in which a claim has its figure, in words too; None if it names none."""
    if claim.below:
        return -math.inf, claim.below, f"wanted less than {claim.below:g}"
    if claim.than and not claim.within:
        return 0.0, math.inf, "the difference does not depend on chance"
    centre = 0.0 if claim.than else printed
    if centre is None:
        return None
    wanted = f"wanted {centre:.4g} ± {claim.within:g}"
    return centre - claim.within, centre + claim.within, wanted


def text(judged: Sequence[Judged]) -> list[str]:
    """A line for each claim."""
    lines = []
    for each in judged:
        measured = f", measured {each.found}" if each.measured.values else ""
        printed = f"printed {each.expected} {each.unit}".rstrip()
        lines.append(
            f"claim: {each.claim.text}: {printed}{measured}: {each.verdict} ({each.reason})"
        )
    return lines


def plain(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """The claims for programs."""
    return [
        {
            "table": each.table.name,
            "claim": each.claim.name,
            "text": each.claim.text,
            "printed": each.printed,
            "measured": each.measured.mean,
            "se": each.measured.error,
            "seeds": len(each.measured.values),
            "verdict": each.verdict,
            "reason": each.reason,
        }
        for each in judged
    ]
