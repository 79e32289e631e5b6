"""What a paper printed beside what was measured: for a terminal, as CSV, as LaTeX, for programs."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.cli import parsing
from gossamer.cli.compare import run_of
from gossamer.engine import events
from gossamer.engine.events import CONFIG
from gossamer.report import Run
from gossamer.report.curves import last, spread
from gossamer.report.figures import figures
from gossamer.report.reading import number
from gossamer.reproduce.plans import Plan, changed
from gossamer.reproduce.results import escaped, tabular
from gossamer.reproduce.tables import ACCURACIES, UNITS, Column, Published, Row, Table, training

NOTHING = "–"
HEADS = ("published", "measured", "difference")
CSV_HEADER = (
    *("table", "row", "column", "unit", "published", "published_std"),
    *("measured", "measured_std", "seeds", "rounds", "difference"),
)


@dataclass(frozen=True)
class Cell:
    """A figure of a row, in the column's unit: as printed, and as each seed had it."""

    published: Published | None
    values: tuple[float, ...] = ()
    over: str = "mean"

    @property
    def counted(self) -> Sequence[float]:
        """The seeds that count: all, the best alone, or all but the best and the worst."""
        if self.over == "max":
            return sorted(self.values)[-1:]
        if self.over == "middle" and len(self.values) > 2:
            return sorted(self.values)[1:-1]
        return self.values

    @property
    def measured(self) -> float | None:
        """What the seeds come to."""
        return statistics.fmean(self.counted) if self.values else None

    @property
    def std(self) -> float | None:
        """Over the seeds that count."""
        return spread(self.counted)

    @property
    def difference(self) -> float | None:
        """Measured less published."""
        if self.measured is None or self.published is None:
            return None
        return self.measured - self.published.value


@dataclass(frozen=True)
class Beside:
    """A table with what was measured of it."""

    table: Table
    cells: Mapping[tuple[str, str], Cell]
    """By row and column."""
    rounds: Mapping[str, int]
    """Rounds that trained, of the rows that were run."""
    folders: tuple[Path, ...] = ()
    """Of the runs it is made of."""

    def line(self, row: Row, column: Column) -> Cell:
        return self.cells[row.name, column.name]

    @property
    def short(self) -> bool:
        """Whether anything was multiplied up to the paper's rounds."""
        rows = self.table.rows
        return any(count < rows[name].training for name, count in self.rounds.items()) and any(
            column.whole for column in self.table.columns.values()
        )


def _same(plan: Plan) -> bool:
    """Whether a run has just the settings it should have; one that cannot be read has not."""
    try:
        return not changed(plan.folder, plan.config)
    except (ValueError, KeyError, OSError):
        return False


def beside(table: Table, plans: Sequence[Plan]) -> Beside:
    """The table with the runs that have come to their end with just these settings."""
    done: dict[str, list[tuple[Plan, Run]]] = {}
    for plan in plans:
        if (plan.folder / CONFIG).exists() and _same(plan):
            run = run_of(plan)
            if run.finished:
                done.setdefault(plan.folder.parent.name, []).append((plan, run))
    values = {
        (row.name, column.name): {
            plan.config.experiment.seed: value
            for plan, run in done.get(row.name, ())
            if (value := _value(plan, run, row, column)) is not None
        }
        for row in table.rows.values()
        for column in table.columns.values()
    }
    cells = {}
    for row in table.rows.values():
        for column in table.columns.values():
            mine = values[row.name, column.name]
            if column.relative:
                mine = _related(mine, values.get((row.reference, column.name), {}), column)
            printed = row.published.get(column.name)
            over = (
                row.over if column.figure in ACCURACIES else "mean"
            )  # the best is not the dearest
            cells[row.name, column.name] = Cell(printed, tuple(mine.values()), over)
    rounds = {name: training(each[0][0].config) for name, each in done.items()}
    return Beside(table, cells, rounds, tuple(p.folder for each in done.values() for p, _ in each))


def measure(run: Run, log: Path, column: Column) -> float | None:
    """A figure of a finished run, in bits, operations and parts of one."""
    if column.figure == "zeros":
        return _zeros(log)
    accuracy = ACCURACIES.get(column.figure, "personal_mean")
    known = figures(run, accuracy)
    if column.figure in ACCURACIES:
        curve = run.curve(accuracy)
        if column.at == "last-10" and curve:
            return statistics.fmean(curve[at] for at in sorted(curve)[-10:])
        return known["best" if column.at == "best" else "accuracy"]
    if column.figure == "client_flops":
        pool = number(run.started.get("pool"))
        return known["flops"] / pool if known["flops"] is not None and pool else None
    return known[column.figure] if column.figure in known else last(run.curve(column.figure))


def _zeros(log: Path) -> float | None:
    """The part of all parameters that the server has pruned, where the method tells of it."""
    found = [event["metrics"] for event in events.read(log) if event["event"] == "measured"]
    return number(found[-1].get("zeros")) if found else None


def _value(plan: Plan, run: Run, row: Row, column: Column) -> float | None:
    found = measure(run, plan.folder / "events.jsonl", column)
    if found is None:
        return None
    times = row.training / training(plan.config) if column.whole else 1.0
    return found * times / (1.0 if column.relative else UNITS[column.unit])


def _related(
    mine: Mapping[int, float], theirs: Mapping[int, float], column: Column
) -> dict[int, float]:
    """Each seed by the same seed of the reference: as a share of it, or as a saving."""
    found = {}
    for seed in mine.keys() & theirs.keys():
        above, below = mine[seed], theirs[seed]
        if column.relative == "saving":
            above, below = below, above
        if below:
            found[seed] = above / below / UNITS[column.unit]
    return found


# forms --------------------------------------------------------------------------------------------


def text(found: Beside) -> str:
    """For a terminal: a block for each column."""
    parts = []
    for column, body in _blocks(found):
        header, *lines = _to_the_right([[_title(column), *HEADS], *body])
        parts.append(parsing.table(lines, header))
    return "\n\n".join(parts)


def _blocks(found: Beside) -> Iterator[tuple[Column, list[list[str]]]]:
    """The columns, each with the rows that have anything in it."""
    for column in found.table.columns.values():
        body = [
            [row.title, *_words(cell, column)]
            for row in found.table.rows.values()
            if (cell := found.line(row, column)).published or cell.values
        ]
        if body:
            yield column, body


def _to_the_right(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """All cells but the first of a line, as wide as their column."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return [
        [line[0], *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        for line in lines
    ]


def legend(found: Beside) -> Iterator[str]:
    """How the figures are to be read, and what the paper's are about."""
    if any(len(cell.values) > 1 for cell in found.cells.values()):
        yield "measured: mean over seeds ± one standard deviation, unless a note says otherwise"
    yield "difference: in points for percentages, otherwise in percent of the published figure"
    if found.short:
        yield (
            "bits and operations are multiplied up from the rounds that were run to the paper's: "
            "exact where all rounds are alike, a rough guess where models shrink"
        )
    yield from found.table.notes


def comma_separated(found: Beside) -> str:
    """A line for each figure that is published or measured, in the column's unit."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for line in plain(found):
        writer.writerow(["" if line[name] is None else line[name] for name in CSV_HEADER])
    return stream.getvalue()


def latex(found: Beside) -> str:
    """A `tabular` for each column; they need the package booktabs."""
    parts = [
        tabular(
            [_title(column), *HEADS],
            [escaped(name) for name, *_ in body],
            [words for _, *words in body],
            [found.table.source],
        )
        for column, body in _blocks(found)
    ]
    return "\n".join([*parts, *(f"% {note}" for note in legend(found)), ""])


def plain(found: Beside) -> list[dict[str, Any]]:
    """For programs."""
    lines = []
    for row in found.table.rows.values():
        for column in found.table.columns.values():
            cell = found.line(row, column)
            if not cell.published and not cell.values:
                continue
            printed = cell.published
            lines.append(
                {
                    "table": found.table.name,
                    "row": row.name,
                    "column": column.name,
                    "unit": column.unit,
                    "published": printed.value if printed else None,
                    "published_std": printed.std if printed else None,
                    "measured": cell.measured,
                    "measured_std": cell.std,
                    "seeds": len(cell.values),
                    "rounds": found.rounds.get(row.name),
                    "difference": cell.difference,
                }
            )
    return lines


def _title(column: Column) -> str:
    return f"{column.title}, {column.unit}" if column.unit else column.title


def _words(cell: Cell, column: Column) -> list[str]:
    """Published, measured and difference as they are shown."""
    digits = ".2f" if column.unit == "%" else ".5g"
    printed = NOTHING
    if cell.published:
        printed = _apart(f"{cell.published.value:.10g}", cell.published.std)
    measured = NOTHING if cell.measured is None else _apart(f"{cell.measured:{digits}}", cell.std)
    difference = NOTHING
    if cell.difference is not None and cell.published:
        if column.unit == "%":
            difference = f"{cell.difference:+.2f}"
        elif cell.published.value:
            difference = f"{100 * cell.difference / cell.published.value:+.1f} %"
    return [printed, measured, difference]


def _apart(value: str, std: float | None) -> str:
    return value if std is None else f"{value} ± {std:.2g}"
