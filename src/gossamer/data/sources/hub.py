"""`hf:`: data sets of the Hugging Face hub, or saved on disk, read by the `datasets` library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import Arrays
from gossamer.data.inputs import Inputs
from gossamer.data.notes import note
from gossamer.data.sources.hugging_face import Columns, Table, arrays_of_tables
from gossamer.data.sources.tables import LABELS

OPTIONS = ("config", "train", "test", "x", "group")
TESTS = ("test", "validation", "dev", "eval")
"""Splits to test on, the first one that has labels."""
SAVED = ("dataset_dict.json", "state.json")
"""Files of a folder that `save_to_disk` wrote."""


@dataclass(frozen=True)
class _Request:
    """What stands behind `hf:`: a name or folder, and which part of it is meant."""

    name: str
    config: str = ""
    train: str = "train"
    test: str = ""
    x: str = ""
    group: str = ""


def read_hub(path: Path, key: Key, inputs: Inputs = Inputs()) -> Arrays:
    """A data set by its name on the hub, or a folder that `save_to_disk` wrote.

    `NAME,CONFIG` names a configuration. `x=`, `group=`, `train=` and `test=` after further commas
    name the column of inputs, that of clients, and splits. Labels are in the column
    `inputs.label`, else in one called `label`, `target` or the like.

    Raises:
        ImportError: the package `datasets` is missing.
        ValueError: the name cannot be loaded, or its columns and splits do not fit.
    """
    request = _request(str(path))
    name = f"hf:{path}"
    tables = _tables(name, _loaded(request), request, inputs)
    found = tables[0].column_names
    y = tuple(inputs.label.split(",")) if inputs.label else (_label(name, found),)
    wanted = Columns(request.x or None, y, request.group or None)
    return arrays_of_tables(name, tables, wanted, key, inputs)


def on_disk(text: str) -> Path | None:
    """The folder that stands behind `hf:`, or None for a name on the hub."""
    for place in (text, _request(text).name):
        folder = Path(place).expanduser()
        if folder.exists():
            return folder
    return None


def _request(text: str) -> _Request:
    """`NAME,CONFIG,x=COLUMN`; a folder with commas in its name is taken whole."""
    if Path(text).expanduser().exists():
        return _Request(text)
    name, *parts = text.split(",")
    named = [part.partition("=") for part in parts]
    bare = [word for word, equals, _ in named if not equals]
    options = {word: value for word, equals, value in named if equals}
    unknown = next((word for word in options if word not in OPTIONS), None)
    if len(bare) > 1 or unknown or (bare and "config" in options):
        odd = unknown or bare[-1]
        raise ValueError(
            f"hf:{text} has {odd!r}; write hf:NAME,CONFIG and options of {', '.join(OPTIONS)}, "
            f"such as hf:NAME,x=text"
        )
    return _Request(name, **{**({"config": bare[0]} if bare else {}), **options})


def _library() -> ModuleType:
    try:
        import datasets
    except ImportError:
        raise ImportError("hf: needs the package datasets; pip install 'gossamer[hf]'") from None
    module: ModuleType = datasets
    return module


def _loaded(request: _Request) -> Table | Mapping[str, Table]:
    datasets = _library()
    folder = Path(request.name).expanduser()
    try:
        if any((folder / file).is_file() for file in SAVED):
            saved: Table | Mapping[str, Table] = datasets.load_from_disk(str(folder))
            return saved
        if request.name.startswith((os.sep, ".", "~")) and not folder.exists():
            raise FileNotFoundError(f"{folder} does not exist")
        loaded: Table | Mapping[str, Table] = datasets.load_dataset(
            str(folder) if folder.exists() else request.name, request.config or None
        )
    except Exception as error:  # of any type: the library's own, and those of its network code
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(
            f"hf:{request.name} cannot be loaded ({reason}); check the name, or load it where the "
            f"hub can be reached, `save_to_disk` there, and give that folder as hf:FOLDER"
        ) from error
    return loaded


def _tables(
    name: str, loaded: Table | Mapping[str, Table], request: _Request, inputs: Inputs
) -> list[Table]:
    """The training data, and the test data if there are any with labels."""
    if not isinstance(loaded, Mapping):
        return [loaded]
    for split in filter(None, (request.train, request.test)):
        if split not in loaded:
            raise ValueError(
                f"{name} has no split {split!r}; it has {', '.join(loaded)}, name one with "
                f"{'train' if split == request.train else 'test'}="
            )
    train = loaded[request.train]
    if request.test:
        return [train, loaded[request.test]]
    label = (inputs.label or _label(name, train.column_names)).split(",")[0]
    tests = [split for split in TESTS if split in loaded and split != request.train]
    labelled = [split for split in tests if _has_labels(loaded[split], label)]
    if not labelled:
        note(f"{name} has no split with labels to test on; a fifth of {request.train!r} is used")
        return [train]
    if labelled[0] != tests[0]:
        note(f"{name} has a split {tests[0]!r} without labels; {labelled[0]!r} is used to test")
    return [train, loaded[labelled[0]]]


def _label(name: str, found: Sequence[str]) -> str:
    """The column of labels, by its name."""
    by_name = {column.lower(): column for column in found}
    for usual in LABELS:
        if usual in by_name:
            return by_name[usual]
    raise ValueError(f"{name} has columns {', '.join(found)}; name that of labels with `label=`")


def _has_labels(table: Table, label: str) -> bool:
    """Benchmarks hide the labels of their tests: all are -1, or there is no such column."""
    return label in table.column_names and not _hidden(table[label])


def _hidden(values: Iterable[object]) -> bool:
    found = list(values)
    whole = all(isinstance(value, int | np.integer) for value in found)
    return all(value is None for value in found) or (whole and set(found) == {-1})
