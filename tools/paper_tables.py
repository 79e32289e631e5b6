"""Tables of the pages from results that are kept: tables of papers, claims, and small studies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from textwrap import wrap

from gossamer.report.kept import Shelf
from gossamer.report.paired import LEVEL, holm
from gossamer.reproduce import claims as judging
from gossamer.reproduce.published import Cell, Measured
from gossamer.reproduce.published_text import (
    best_seeds,
    fewer_clients,
    held_out,
    lost_replies,
    measured_words,
    titled,
)
from gossamer.reproduce.tables import Column, Row, Table, find, load, names

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
NOTHING = "–"
WIDTH = 120
ORDER = ("spafl", "flash", "fedsparse", "pffdst")


@cache
def shelf() -> Shelf:
    """The results that are kept."""
    return Shelf(RESULTS)


def paper(name: str) -> str:
    """The rows of a paper's table of which runs are kept, printed beside measured."""
    return _written(find(name), name, lambda row: True, about=True)


def study(name: str, *starts: str, without: str = " ") -> str:
    """Rows of a study of our own whose names begin with some words."""
    table = load(RESULTS / "studies" / f"{name}.toml")

    def wanted(row: Row) -> bool:
        return row.name.startswith(starts or "") and not row.name.startswith(without)

    return _written(table, f"results/studies/{name}.toml", wanted)


@cache
def judged() -> tuple[judging.Judged, ...]:
    """Every claim of the papers with its verdict."""
    tables = [find(name) for start in ORDER for name in names() if name.startswith(start)]
    return tuple(judging.judge_kept(shelf(), tables))


def claims() -> str:
    """Every claim of the papers: printed, measured, and whether runs support it."""
    lines = ["| claim | printed | measured | |", "|---|---|---|---|"]
    for each in judged():
        unit = f" {each.unit}" if each.unit else ""
        found = each.found if each.found == NOTHING else each.found.replace(" (", f"{unit} (")
        lines.append(
            f"| {each.claim.text} ([{each.table.name}](papers.md)) | {each.expected}{unit} | "
            f"{found} | **{each.verdict}**: {each.reason} |"
        )
    return "\n".join([*lines, "", _wrapped(_together())])


def _together() -> str:
    """How many differences are shown if they are tested together."""
    tested = [
        p
        for each in judged()
        if each.claim.than and not each.claim.within
        if (p := each.measured.p) is not None
    ]
    alone, remain = sum(p < LEVEL for p in tested), sum(p < LEVEL for p in holm(tested))
    return (
        f"Each claim is judged by itself. Of {len(tested)} differences that were tested, {alone} "
        f"are shown alone and {remain} after Holm's correction for all of these tests."
    )


def progress() -> str:
    """How many runs of each table are kept, at the scales whose runs can support a claim."""
    lines = ["| table | kept at `full` | kept at `here` |", "|---|---|---|"]
    for name in (name for start in ORDER for name in names() if name.startswith(start)):
        table = find(name)
        cells = []
        for scale in judging.SETTLED:
            plans = table.plans(table.scales[scale], Path())
            kept = sum(shelf().find(plan.config) is not None for plan in plans)
            cells.append(f"{kept} of {len(plans)} runs")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _written(table: Table, name: str, wanted: Callable[[Row], bool], about: bool = False) -> str:
    measured, scale = judging.kept_table(table, shelf(), table.scales)
    rows = [row for row in table.rows.values() if wanted(row) and _known(measured, row)]
    if not rows:
        command = f"gossamer paper {name} --scale here --results results"
        return _wrapped(f"No run is kept yet: `{command}` makes them, and this table.")
    columns = [
        column
        for column in table.columns.values()
        if any(measured.line(row, column).values for row in rows)
    ]
    lines = list(_lines(measured, rows, columns))
    rounds = sorted({measured.rounds[row.name] for row in rows if row.name in measured.rounds})
    several = any(len(cell.values) > 1 for cell in measured.cells.values())
    error = "means ± one standard error over seeds, " if several else "one seed, "
    some = ", ".join(map(str, rounds))
    lines += ["", f"(`gossamer paper {name} --kept`: {error}{some} rounds.)"]
    mine = {row.name: measured.runs[row.name] for row in rows if row.name in measured.runs}
    shown = replace(measured, runs=mine)
    smaller = [table.scales[scale].about] if about and scale != "full" else []
    notes = [
        *smaller,
        *best_seeds(shown),
        *lost_replies(shown),
        *held_out(shown),
        *fewer_clients(shown),
    ]
    if any(measured.diverged.get(row.name) for row in rows):
        notes.append("runs that diverged are in no mean")
    for note in notes:
        lines[-1] = f"{lines[-1][:-1]} {note[0].upper()}{note[1:]}.)"
    lines.append(_wrapped(lines.pop()))
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return "\n".join(wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))


def _lines(measured: Measured, rows: list[Row], columns: list[Column]) -> Iterator[str]:
    printed = {c.name: any(c.name in row.published for row in rows) for c in columns}
    heads = [
        head
        for column in columns
        for head in (
            [f"{titled(column)}: printed", "measured"] if printed[column.name] else [titled(column)]
        )
    ]
    yield f"| | {' | '.join(heads)} | seeds |"
    yield "|---" * (len(heads) + 2) + "|"
    for row in rows:
        cells = []
        most = max((len(measured.line(row, column).values) for column in columns), default=0)
        for column in columns:
            cell = measured.line(row, column)
            if printed[column.name]:
                cells.append(f"{cell.published.value:.6g}" if cell.published else "")
            cells.append(_value(cell, column, most))
        seeds = str(most)
        lost = measured.diverged.get(row.name)
        seeds += f", {lost} diverged" if lost else ""
        yield f"| {row.title} | {' | '.join(cells)} | {seeds} |"


def _value(cell: Cell, column: Column, seeds: int) -> str:
    if cell.measured is None:
        return ""
    fewer = f" (n = {len(cell.values)})" if len(cell.values) < seeds else ""
    words = measured_words(cell, ".2f" if column.unit == "%" else ".4g")
    return words.removesuffix(" ± 0") + fewer


def _known(measured: Measured, row: Row) -> bool:
    return row.name in measured.rounds or row.name in measured.diverged
