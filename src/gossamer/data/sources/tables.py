"""Tables of numbers: which character separates columns, and which column is the label."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import isnan
from pathlib import Path

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Inputs, Ints
from gossamer.data.notes import note
from gossamer.data.sources.classes import FEW, classes_or_raise
from gossamer.data.sources.files import arrays_of, held_out, must_be_file
from gossamer.data.sources.targets import OTHER, targets

LABELS = ("label", "labels", "target", "targets", "class", "classes", "y", "category", "outcome")
"""How a column of labels may be called, in any case."""
DELIMITERS = ",;\t|"
SAMPLE = 50
"""Lines by which the delimiter is recognised."""

Rows = list[list[str]]


@dataclass(frozen=True)
class _Table:
    """The cells of a file: names of columns if it has any, and all other rows."""

    path: Path
    names: list[str] | None
    rows: Rows
    columns: int
    decimal_comma: bool

    def title(self, column: int) -> str:
        """How messages call a column."""
        return repr(self.names[column]) if self.names else f"column {column + 1}"


def read_csv(path: Path, key: Key, inputs: Inputs = Inputs()) -> Arrays:
    """Numeric columns and a label, or several, with a header or without.

    Columns are separated by commas, semicolons, tabs or bars. The label is the column that
    `inputs.label` names, else the one called `label`, `target`, `class`, `y` or the like, else the
    only one that is not numbers, else the last. A regression may have several of them, and
    multilabel has: their names or patterns, separated by commas.
    """
    must_be_file(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 ({error}); save it as such") from None
    table = _table(path, text)
    name = f"csv:{path}"
    if inputs.task in OTHER:
        columns = _target_columns(table, inputs)
        found = _target_cells(table, columns)
        alone = inputs.task == "regression" and len(columns) == 1
        (y,), classes = targets(name, inputs.task, [found[:, 0] if alone else found])
    else:
        columns = [_label_column(table, inputs.label)]
        words = [row[columns[0]].strip() for row in table.rows]
        y, classes = _classes(table, columns[0], words)
    x = _numbers(table, columns)
    train, test = held_out(len(y), key)
    labels = Labels(y[train], y[test], classes, task=inputs.task or "classification")
    return arrays_of(name, x[train], x[test], labels, inputs)


def _target_columns(table: _Table, inputs: Inputs) -> list[int]:
    """The columns of a regression's targets, or of labels that may be true together."""
    asked, names = inputs.label, [name.lower() for name in table.names or ()]
    if inputs.task == "language":
        raise ValueError(f"{table.path} has no sequences of tokens; give language as an npz:")
    if not asked and inputs.task == "multilabel":
        raise ValueError(
            f"name the labels of {table.path}, such as `label='red,green'` or `label='is_*'`"
        )
    if not asked or asked.lower() in names:
        return [_label_column(table, asked)]
    found: list[int] = []
    for word in (part.strip() for part in asked.split(",")):
        matches = [at for at, name in enumerate(names) if fnmatchcase(name, word.lower())]
        found += matches or [_named(table, names, word)]
    return list(dict.fromkeys(found))


def _target_cells(table: _Table, columns: Sequence[int]) -> np.ndarray:
    """The numbers of some columns, a row per example."""
    point = {ord(","): "."} if table.decimal_comma else {}
    cells = [[row[column].strip().translate(point) for column in columns] for row in table.rows]
    for column, values in zip(columns, zip(*cells, strict=True), strict=True):
        odd = next((value for value in values if not _is_number(value)), None)
        if odd is not None:
            raise ValueError(
                f"{table.title(column)} of {table.path} has {odd!r}, which is no number; remove "
                f"such rows, or name other columns with `label=`"
            )
    return np.asarray(cells, np.float64)


def _table(path: Path, text: str) -> _Table:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty; give rows of numbers and a label")
    delimiter = _delimiter(lines[:SAMPLE])
    reader = csv.reader(text.splitlines(), delimiter=delimiter, skipinitialspace=True)
    rows: Rows = []
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        if rows and len(row) != len(rows[0]):
            raise ValueError(
                f"line {reader.line_num} of {path} has {len(row)} columns where the first has "
                f"{len(rows[0])}; give every line as many"
            )
        rows.append(row)
    if len(rows[0]) < 2:
        raise ValueError(
            f"{path} has one column; separate columns by commas, semicolons, tabs or bars"
        )
    comma = delimiter != ","
    names = [cell.strip() for cell in rows[0]] if _has_header(rows, comma) else None
    return _Table(path, names, rows[1:] if names else rows, len(rows[0]), comma)


def _delimiter(lines: Sequence[str]) -> str:
    """The character that divides every line into the same number of columns, the most of all."""
    best, most = DELIMITERS[0], 1
    for candidate in DELIMITERS:
        counts = {len(row) for row in csv.reader(lines, delimiter=candidate)}
        if len(counts) == 1 and max(counts) > most:
            best, most = candidate, max(counts)
    if most > 1:
        return best
    return max(DELIMITERS, key=lines[0].count)  # ragged: the error names the line


def _has_header(rows: Rows, comma: bool) -> bool:
    """Whether the first row names columns.

    It does if it has a usual name of labels, or no number at all, or words where numbers follow.
    """
    first = [cell.strip().lower() for cell in rows[0]]
    words = [not _is_number(cell, comma) for cell in first]
    if any(name in LABELS for name in first) or all(words):
        return True
    follows = rows[1] if len(rows) > 1 else first
    return any(word and _is_number(cell, comma) for word, cell in zip(words, follows, strict=True))


def _label_column(table: _Table, asked: str) -> int:
    names = [name.lower() for name in table.names or ()]
    if asked:
        return _named(table, names, asked)
    usual = [column for column, name in enumerate(names) if name in LABELS]
    if len(usual) > 1:
        found = ", ".join(table.title(column) for column in usual)
        raise ValueError(
            f"{table.path} has {len(usual)} columns that may be the label: {found}; say which "
            f"with `label={names[usual[0]]!r}`"
        )
    if usual:
        return usual[0]
    sample = table.rows[:SAMPLE]
    texts = [
        column
        for column in range(table.columns)
        if sample and not any(_is_number(row[column], table.decimal_comma) for row in sample)
    ]
    if len(texts) == 1:
        return texts[0]
    last = table.columns - 1
    if table.names and not texts:
        note(
            f"{table.path}: no column is called {', '.join(LABELS[:3])} or the like, so the last "
            f"one, {table.title(last)}, was taken as the label; `label=` names another"
        )
    return last


def _named(table: _Table, names: Sequence[str], asked: str) -> int:
    """The column of a name, or of a number from 1."""
    if asked.lower() in names:
        return names.index(asked.lower())
    if asked.isdecimal() and 1 <= int(asked) <= table.columns:
        return int(asked) - 1
    known = f"are {', '.join(table.names)}" if table.names else "have no names, only numbers from 1"
    raise ValueError(f"{table.path} has no column {asked!r}; its columns {known}")


def _classes(table: _Table, column: int, words: Sequence[str]) -> tuple[Ints, int]:
    """The class of every row, numbered in the order of the labels, and how many there are."""
    known = sorted(set(words), key=_rank)
    measured = [word for word in known if _is_number(word) and not float(word).is_integer()]
    what = f"{table.title(column)} of {table.path}"
    advice = "name the column of classes with `label=`"
    if "" in known:
        raise ValueError(f"{what} is empty in {words.count('')} rows; give every row a label")
    if len(measured) > FEW:
        raise ValueError(
            f"{what} was taken as the label, but has {len(known):,} different values such as "
            f"{measured[0]}, which are measurements and no classes; say `task='regression'` to "
            f"learn them, or {advice}"
        )
    try:
        classes_or_raise(what, len(known), len(words))
    except ValueError as problem:
        raise ValueError(f"{problem}, or {advice}") from None
    place = {word: number for number, word in enumerate(known)}
    return np.asarray([place[word] for word in words], np.int64), len(known)


def _numbers(table: _Table, labels: Sequence[int]) -> np.ndarray:
    """All features; a comma is a decimal point where it does not separate columns."""
    kept = [column for column in range(table.columns) if column not in labels]
    if not kept:
        raise ValueError(f"all columns of {table.path} are labels; leave some to learn from")
    rows = [[row[column] for column in kept] for row in table.rows]
    if table.decimal_comma:
        rows = [[cell.replace(",", ".") for cell in row] for row in rows]
    try:
        return np.asarray(rows, np.float32).reshape(len(rows), len(kept))
    except ValueError as error:
        raise ValueError(
            f"{table.path} has a feature that is no number ({error}); remove that column, or name "
            f"it with `label=` if it is the label"
        ) from None


def _rank(label: str) -> tuple[int, float, str]:
    """Labels in one order on every machine: numbers by size, before texts."""
    if _is_number(label) and not isnan(value := float(label)):
        return 0, value, label
    return 1, 0.0, label


def _is_number(text: str, comma: bool = False) -> bool:
    try:
        float(text.replace(",", ".") if comma else text)
    except ValueError:
        return False
    return True
