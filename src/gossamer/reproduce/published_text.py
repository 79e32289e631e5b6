"""A measured table as text, CSV, LaTeX and plain values, and as a part of a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from gossamer.report import Block, PaperTable, columns
from gossamer.reproduce.published import Cell, Measured
from gossamer.reproduce.results import escaped, tabular
from gossamer.reproduce.tables import Column

NOTHING = "–"
HEADS = ("published", "measured", "seeds", "difference")
CSV_HEADER = (
    *("table", "row", "column", "unit", "published", "published_std"),
    *("measured", "mean", "measured_std", "measured_se"),
    *("seeds", "diverged", "rounds", "difference"),
)


def text(measured: Measured) -> str:
    """The table for a terminal, one block per column."""
    parts = []
    for column, body in _blocks(measured):
        header, *lines = _to_the_right([[titled(column), *HEADS], *body])
        parts.append(columns.table(lines, header))
    return "\n\n".join(parts)


def _blocks(measured: Measured) -> Iterator[tuple[Column, list[list[str]]]]:
    """The columns, each with the rows that have a figure in it."""
    for column in measured.table.columns.values():
        body = [
            [row.title, *_words(cell, column, measured.diverged.get(row.name, 0))]
            for row in measured.table.rows.values()
            if (cell := measured.line(row, column)).published or cell.values
        ]
        if body:
            yield column, body


def _to_the_right(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """The lines with all cells but the first aligned to the right."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return [
        [line[0], *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        for line in lines
    ]


def legend(measured: Measured) -> Iterator[str]:
    """Notes on how to read the figures."""
    if any(len(cell.values) > 1 for cell in measured.cells.values()):
        yield (
            "measured: mean over seeds ± one standard error, unless a note says otherwise; "
            "published ± as the paper states it"
        )
    yield from best_seeds(measured)
    if measured.diverged:
        yield "runs that diverged are in no mean"
    yield from lost_replies(measured)
    yield "difference: percentage points for percentages, otherwise percent of the published figure"
    if measured.short:
        yield (
            "bits and FLOPs are extrapolated from the rounds that were run to the paper's: exact "
            "if all rounds that train cost the same, a rough estimate if models shrink"
        )
    yield from held_out(measured)
    yield from fewer_clients(measured)
    yield from measured.table.notes


def best_seeds(measured: Measured) -> Iterator[str]:
    """How to read figures of the best seed, if there are any."""
    found = {
        (len(cell.values), measured.table.rows[row].seeds)
        for (row, _), cell in measured.cells.items()
        if _has_best(cell)
    }
    if found:
        counts = " or ".join(f"{had} (the paper: {wanted})" for had, wanted in sorted(found))
        yield f"accuracy: the best of seeds as in the paper, of {counts}; in brackets, their mean"


def lost_replies(measured: Measured) -> Iterator[str]:
    """Rows in whose runs replies were refused or never came."""
    for name, runs in measured.runs.items():
        if lost := measured.lost(name):
            title, some = measured.table.rows[name].title, sum(run.failed > 0 for run in runs)
            which = "its run" if len(runs) == 1 else f"{some} of {len(runs)} runs"
            yield f"{title}: {lost} {'reply' if lost == 1 else 'replies'} lost in {which}"


def held_out(measured: Measured) -> Iterator[str]:
    """Which rows train on less, because clients hold out a part of their training data."""
    rows = {name: measured.held_out[name] for name in measured.runs}
    for share in sorted(set(rows.values()) - {0.0}):
        titles = [measured.table.rows[name].title for name, own in rows.items() if own == share]
        which = "all rows" if len(titles) == len(rows) else "; ".join(titles)
        yield f"clients hold out {100 * share:g} % of their training data in: {which}"


def fewer_clients(measured: Measured) -> Iterator[str]:
    """Which rows have fewer clients than their data set."""
    pools = {name: (measured.pool(name), measured.table.rows[name].pool) for name in measured.runs}
    for pool, whole in sorted({each for each in pools.values() if 0 < each[0] < each[1]}):
        titles = [measured.table.rows[name].title for name in pools if pools[name] == (pool, whole)]
        yield f"{pool} of the data set's {whole} clients in: {'; '.join(titles)}"


def page_table(measured: Measured) -> PaperTable:
    """The table for the page of its runs."""
    blocks = [
        Block((titled(column), *HEADS), tuple(map(tuple, body)))
        for column, body in _blocks(measured)
    ]
    return PaperTable(tuple(blocks), tuple(legend(measured)))


def comma_separated(measured: Measured) -> str:
    """CSV with one line per figure, in the column's unit."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for line in plain(measured):
        writer.writerow(["" if line[name] is None else line[name] for name in CSV_HEADER])
    return stream.getvalue()


def latex(measured: Measured) -> str:
    """One LaTeX `tabular` per column; needs the package booktabs."""
    parts = [
        tabular(
            [titled(column), *HEADS],
            [escaped(name) for name, *_ in body],
            [words for _, *words in body],
            [measured.table.source],
        )
        for column, body in _blocks(measured)
    ]
    return "\n".join([*parts, *(f"% {note}" for note in legend(measured)), ""])


def plain(measured: Measured) -> list[dict[str, Any]]:
    """The table for programs."""
    lines = []
    for row in measured.table.rows.values():
        for column in measured.table.columns.values():
            cell = measured.line(row, column)
            if not cell.published and not cell.values:
                continue
            printed = cell.published
            lines.append(
                {
                    "table": measured.table.name,
                    "row": row.name,
                    "column": column.name,
                    "unit": column.unit,
                    "published": printed.value if printed else None,
                    "published_std": printed.std if printed else None,
                    "measured": cell.measured,
                    "mean": cell.mean,
                    "measured_std": cell.std,
                    "measured_se": cell.error,
                    "seeds": len(cell.values),
                    "diverged": measured.diverged.get(row.name, 0),
                    "rounds": measured.rounds.get(row.name),
                    "difference": cell.difference,
                }
            )
    return lines


def titled(column: Column) -> str:
    """The heading of a column, with its unit."""
    return f"{column.title}, {column.unit}" if column.unit else column.title


def _words(cell: Cell, column: Column, diverged: int) -> list[str]:
    """Published, measured, seeds and difference as text."""
    digits = ".2f" if column.unit == "%" else ".5g"
    printed = NOTHING
    if cell.published:
        printed = _with_error(f"{cell.published.value:.10g}", cell.published.std)
    measured = NOTHING if cell.measured is None else measured_words(cell, digits)
    difference = NOTHING
    if cell.difference is not None and cell.published:
        if column.unit == "%":
            difference = f"{cell.difference:+.2f}"
        elif cell.published.value:
            difference = f"{100 * cell.difference / cell.published.value:+.1f} %"
    seeds = str(len(cell.values)) if cell.values else NOTHING
    if diverged:
        measured = measured if cell.values else "diverged"
        seeds = f"{len(cell.values)}, {diverged} diverged"
    return [printed, measured, seeds, difference]


def measured_words(cell: Cell, digits: str) -> str:
    """A measured figure with its error; the best of several seeds with their mean."""
    if not _has_best(cell):
        return _with_error(f"{cell.measured:{digits}}", cell.error)
    mean = _with_error(f"{cell.mean:{digits}}", cell.error)
    return f"{cell.measured:{digits}} ({mean})"


def _has_best(cell: Cell) -> bool:
    return cell.over == "max" and len(cell.values) > 1


def _with_error(value: str, error: float | None) -> str:
    return value if error is None else f"{value} ± {error:.2g}"
