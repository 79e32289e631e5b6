"""Data sets of the Hugging Face `datasets` library, without importing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Inputs, Ints, Tokens
from gossamer.data.sources.classes import numbered
from gossamer.data.sources.files import arrays_of, held_out
from gossamer.data.sources.sst2 import encode, vocabulary


class Table(Protocol):
    """What is used of `datasets.Dataset`: its columns by name."""

    @property
    def column_names(self) -> Sequence[str]: ...
    def __getitem__(self, column: str, /) -> Iterable[object]: ...


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
    if isinstance(dataset, Mapping):
        missing = [split for split in (train, test) if split not in dataset]
        if missing:
            raise KeyError(
                f"no split {missing[0]!r}; this DatasetDict has {', '.join(dataset)}, name them "
                f"with train= and test="
            )
        tables = [dataset[train], dataset[test]]
    else:
        tables = [dataset]
    columns = [column for column in tables[0].column_names if column not in (y, group)]
    for column in (y, *([x] if x else []), *([group] if group else [])):
        if column not in tables[0].column_names:
            raise KeyError(f"no column {column!r}; there are {', '.join(tables[0].column_names)}")
    inputs = [list(table[x or columns[0]]) for table in tables]
    labels, classes = _number(name, [list(table[y]) for table in tables])
    groups = _grouped([list(table[group]) for table in tables]) if group else None
    if len(tables) == 1:
        rows = held_out(len(labels[0]), key or Key(0).fold("data"))
        inputs = [[inputs[0][row] for row in part] for part in rows]
        labels = [labels[0][part] for part in rows]
        groups = [groups[0][part] for part in rows] if groups else None
    facts = Labels(labels[0], labels[1], classes, (groups[0], groups[1]) if groups else None)
    if isinstance(inputs[0][0], str):
        texts = [[str(text) for text in part] for part in inputs]
        known = vocabulary(texts[0])
        rows_of = [encode(part, known) for part in texts]
        return Arrays(
            name, Tokens(rows_of[0].shape[1], tuple(known)), rows_of[0], rows_of[1], facts
        )
    picture = hasattr(inputs[0][0], "getbands")  # of Pillow, whose channels are the last
    layout = Inputs(layout="nhwc" if picture else "auto")
    return arrays_of(name, _stack(inputs[0]), _stack(inputs[1]), facts, layout)


def _number(name: str, parts: list[list[object]]) -> tuple[list[Ints], int]:
    """Whole numbers are classes; names are numbered in alphabetical order."""
    if all(isinstance(value, int | np.integer) for part in parts for value in part):
        return numbered(name, *(np.asarray(part, np.int64) for part in parts))
    known = sorted({str(value) for part in parts for value in part})
    return _places(parts, known), len(known)


def _grouped(parts: list[list[object]]) -> list[Ints]:
    """Whole numbers stay as they are; names are numbered in alphabetical order."""
    if all(isinstance(value, int | np.integer) for part in parts for value in part):
        return [np.asarray(part, np.int64) for part in parts]
    return _places(parts, sorted({str(value) for part in parts for value in part}))


def _places(parts: list[list[object]], known: list[str]) -> list[Ints]:
    place = {value: number for number, value in enumerate(known)}
    return [np.asarray([place[str(v)] for v in part], np.int64) for part in parts]


def _stack(values: list[object]) -> np.ndarray:
    rows = [np.asarray(value) for value in values]
    odd = next((row.shape for row in rows if row.shape != rows[0].shape), None)
    if odd is not None:
        raise ValueError(
            f"examples have shapes {rows[0].shape} and {odd}; map them to one size first"
        )
    return np.stack(rows)
