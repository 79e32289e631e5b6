"""Data sets of the Hugging Face `datasets` library, without importing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Inputs, Ints, Tokens
from gossamer.data.sources.classes import classes_or_raise, numbered
from gossamer.data.sources.files import arrays_of, held_out
from gossamer.data.sources.sst2 import encode, vocabulary
from gossamer.data.sources.targets import OTHER, targets


class Table(Protocol):
    """What is used of `datasets.Dataset`: its columns by name."""

    @property
    def column_names(self) -> Sequence[str]: ...
    def __getitem__(self, column: str, /) -> Iterable[object]: ...


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are inputs, labels, and numbers or names of clients."""

    x: str | None = None
    """By default the first column that is neither label nor group."""
    y: tuple[str, ...] = ("label",)
    """Several of them are targets of a regression, or labels that may be true together."""
    group: str | None = None


def hugging_face(
    dataset: Table | Mapping[str, Table],
    x: str | None = None,
    y: str = "label",
    group: str | None = None,
    train: str = "train",
    test: str = "test",
    name: str = "hugging-face",
    key: Key | None = None,
) -> Arrays:
    """The columns `x` and `y` of a Dataset, or of two splits of a DatasetDict, as arrays.

    `x` is the first column that is neither label nor group unless named: images (PIL or arrays of
    bytes), lists of numbers, or text, which becomes word numbers. `group` names the column whose
    values are the clients of `natural`. A lone Dataset gives a fifth of its rows to testing.
    """
    tables = splits_of(dataset, train, test)
    return arrays_of_tables(name, tables, Columns(x, (y,), group), key or Key(0).fold("data"))


def splits_of(dataset: Table | Mapping[str, Table], train: str, test: str) -> list[Table]:
    """A lone table, or training and test data."""
    if not isinstance(dataset, Mapping):
        return [dataset]
    missing = [split for split in (train, test) if split not in dataset]
    if missing:
        raise KeyError(
            f"no split {missing[0]!r}; this DatasetDict has {', '.join(dataset)}, name them "
            f"with train= and test="
        )
    return [dataset[train], dataset[test]]


def arrays_of_tables(
    name: str, tables: Sequence[Table], wanted: Columns, key: Key, inputs: Inputs = Inputs()
) -> Arrays:
    """Columns of one table, of which a fifth is held out, or of training and test data.

    Args:
        name: of the data, for messages and logs.
        tables: one or two.
        wanted: names of columns.
        key: chooses the rows to test on where there is one table.
        inputs: the task, and how examples become inputs.
    """
    there, group = tables[0].column_names, wanted.group
    for column in (*wanted.y, *([wanted.x] if wanted.x else []), *([group] if group else [])):
        if column not in there:
            raise KeyError(f"no column {column!r}; there are {', '.join(there)}")
    others = [column for column in there if column not in (*wanted.y, group)]
    if not wanted.x and not others:
        raise KeyError(f"no column of inputs; there are {', '.join(there)}")
    x = [list(table[wanted.x or others[0]]) for table in tables]
    labels, classes = _labels(name, tables, wanted.y, inputs.task)
    groups = _grouped([list(table[group]) for table in tables]) if group else None
    if len(tables) == 1:
        rows = held_out(len(labels[0]), key)
        x = [[x[0][row] for row in part] for part in rows]
        labels = [labels[0][part] for part in rows]
        groups = [groups[0][part] for part in rows] if groups else None
    facts = Labels(
        labels[0],
        labels[1],
        classes,
        (groups[0], groups[1]) if groups else None,
        task=inputs.task or "classification",
    )
    if not x[0]:
        raise ValueError(f"{name} has no training examples; check its files")
    if isinstance(x[0][0], str):
        texts = [[str(text) for text in part] for part in x]
        known = vocabulary(texts[0])
        rows_of = [encode(part, known) for part in texts]
        return Arrays(
            name, Tokens(rows_of[0].shape[1], tuple(known)), rows_of[0], rows_of[1], facts
        )
    picture = hasattr(x[0][0], "getbands")  # of Pillow, whose channels are the last
    layout = replace(inputs, layout="nhwc" if picture else inputs.layout)
    return arrays_of(name, _stack(x[0]), _stack(x[1]), facts, layout)


def _labels(
    name: str, tables: Sequence[Table], columns: Sequence[str], task: str
) -> tuple[list[np.ndarray], int]:
    """Classes, or what another task needs; several columns become one row per example."""
    parts = [[list(table[column]) for column in columns] for table in tables]
    if task in OTHER:
        alone = len(columns) == 1
        return targets(name, task, [_stack(part[0]) if alone else _stack(part).T for part in parts])
    if len(columns) > 1:
        raise ValueError(
            f"{name} has several columns of labels, {', '.join(columns)}; give one, or say "
            f"`task='regression'` or 'multilabel'"
        )
    whole, classes = _number(name, [part[0] for part in parts])
    return list(whole), classes


def _number(name: str, parts: list[list[object]]) -> tuple[list[Ints], int]:
    """Whole numbers are classes; names are numbered in alphabetical order."""
    if all(isinstance(value, int | np.integer) for part in parts for value in part):
        return numbered(name, *(np.asarray(part, np.int64) for part in parts))
    known = sorted({str(value) for part in parts for value in part})
    classes_or_raise(name, len(known), sum(map(len, parts)))
    return _places(parts, known), len(known)


def _grouped(parts: list[list[object]]) -> list[Ints]:
    """Whole numbers stay as they are; names are numbered in alphabetical order."""
    if all(isinstance(value, int | np.integer) for part in parts for value in part):
        return [np.asarray(part, np.int64) for part in parts]
    return _places(parts, sorted({str(value) for part in parts for value in part}))


def _places(parts: list[list[object]], known: list[str]) -> list[Ints]:
    place = {value: number for number, value in enumerate(known)}
    return [np.asarray([place[str(v)] for v in part], np.int64) for part in parts]


def _stack(values: Sequence[object]) -> np.ndarray:
    rows = [np.asarray(value) for value in values]
    odd = next((row.shape for row in rows if row.shape != rows[0].shape), None)
    if odd is not None:
        raise ValueError(
            f"examples have shapes {rows[0].shape} and {odd}; map them to one size first"
        )
    return np.stack(rows)
