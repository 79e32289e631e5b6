"""Arrays out of what programs have: tensors, torch data sets, clients with parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from torch import Tensor

from gossamer.core import Data, Key
from gossamer.data.arrays import Arrays, Index, Labels
from gossamer.data.inputs import AsGiven, Inputs, Ints
from gossamer.data.sources.classes import note_unseen, numbered
from gossamer.data.sources.files import arrays_of, held_out
from gossamer.data.sources.targets import OTHER, targets
from gossamer.data.tensors import Tensors

ArrayLike: TypeAlias = "np.ndarray | Tensor | Sequence[Any]"
Pair: TypeAlias = "tuple[ArrayLike, ArrayLike]"
"""Inputs and labels."""


@runtime_checkable
class Dataset(Protocol):
    """What is used of `torch.utils.data.Dataset`: pairs of an input and a label, by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


ClientLike: TypeAlias = "Pair | Dataset | Data | Mapping[str, Pair | Dataset]"
"""A client's training data, or its data by part: train, valid, test."""


def images_or_given(
    name: str, train: np.ndarray, test: np.ndarray, labels: Labels, inputs: Inputs
) -> Arrays:
    """Images if the rows are bytes, otherwise rows that stay as they are."""
    if train.dtype == np.uint8 and train.ndim in (3, 4):
        return arrays_of(name, train, test, labels, inputs)
    if labels.task == "classification":
        note_unseen(name, labels.train, labels.test)
    elif labels.task == "language":
        return arrays_of(name, train, test, labels, inputs)
    return Arrays(name, AsGiven(train.shape[1:], str(train.dtype)), train, test, labels)


def seen(dataset: Dataset, inputs: Inputs) -> Inputs:
    """Pictures of Pillow have their channels last."""
    picture = len(dataset) and hasattr(dataset[0][0], "getbands")
    return replace(inputs, layout="nhwc") if picture else inputs


def array_of(values: ArrayLike) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype.itemsize == 2 else values).numpy()
    return np.asarray(values)


def read(source: Pair | Dataset, task: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of a pair of arrays or of a torch data set."""
    if isinstance(source, tuple):
        x, y = array_of(source[0]), array_of(source[1])
    elif (tensors := getattr(source, "tensors", None)) is not None and len(tensors) == 2:
        x, y = array_of(tensors[0]), array_of(tensors[1])
    else:
        assert isinstance(source, Dataset)
        pairs = [source[at] for at in range(len(source))]
        rows = [array_of(pair[0]) for pair in pairs]
        odd = next((row.shape for row in rows if row.shape != rows[0].shape), None)
        if odd is not None:
            raise ValueError(
                f"examples have shapes {rows[0].shape} and {odd}; add a transform to one size"
            )
        x = np.stack(rows)
        if task in OTHER:
            y = np.stack([array_of(pair[1]) for pair in pairs])
        else:
            y = np.asarray([int(pair[1]) for pair in pairs], np.int64)
    as_many(type(source).__name__, x, y)
    return x, y


def parts_of(client: ClientLike, task: str = "") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The data of a client by part; those that have no examples are left out."""
    if isinstance(client, Data):
        given: Mapping[str, Any] = {
            part: (examples.x, examples.y)
            for part in ("train", "valid", "test")
            if len(examples := getattr(client, part))
        }
    else:
        given = client if isinstance(client, Mapping) else {"train": client}
    if "train" not in given or not given.keys() <= {"train", "valid", "test"}:
        raise ValueError(f"a client has train, and may have valid and test; not {', '.join(given)}")
    return {part: read(given[part], task) for part in given}


def hold_out(
    client: dict[str, tuple[np.ndarray, np.ndarray]], key: Key
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    x, y = client["train"]
    train, held = held_out(len(y), key)
    return {**client, "train": (x[train], y[train]), "test": (x[held], y[held])}


def joined(
    name: str, parts: Sequence[tuple[np.ndarray, np.ndarray] | None]
) -> tuple[np.ndarray, np.ndarray]:
    known = [part for part in parts if part is not None]
    shapes = list({part[0].shape[1:] for part in known})
    if len(shapes) > 1:
        raise ValueError(f"examples of {name} have shapes {shapes[0]} and {shapes[1]}; give one")
    return np.concatenate([x for x, _ in known]), np.concatenate([y for _, y in known])


def ends(parts: Sequence[tuple[np.ndarray, np.ndarray] | None]) -> Ints:
    """Where the rows of every client end, when they follow one another."""
    return np.cumsum([0 if part is None else len(part[1]) for part in parts])


def index_of(ends: Ints, first: int = 0) -> Index:
    return Index(np.arange(first, first + int(ends[-1])), np.concatenate([[0], ends]))


def with_validation(made: Tensors, valid: Index) -> Tensors:
    return Tensors(
        made.arrays,
        made.train,
        valid,
        made.own_test,
        made.budgets,
        made.partition,
        made.scale,
        made.augment,
    )


def groups_of(
    groups: ArrayLike | tuple[ArrayLike, ArrayLike] | None, tested: bool
) -> tuple[Ints, Ints] | None:
    if groups is None:
        return None
    if tested != isinstance(groups, tuple):
        raise ValueError("`groups=` is one array, or two if there are test data: (train, test)")
    pair = groups if isinstance(groups, tuple) else (groups, groups)
    return array_of(pair[0]).astype(np.int64), array_of(pair[1]).astype(np.int64)


def labels_of(
    name: str, task: str, train: np.ndarray, test: np.ndarray, groups: tuple[Ints, Ints] | None
) -> Labels:
    """Classes from 0, or what another task needs."""
    if task in OTHER:
        (train, test), outputs = targets(name, task, (train, test))
        return Labels(train, test, outputs, groups, task=task)
    numbers, classes = numbered(name, whole(name, train), whole(name, test))
    return Labels(numbers[0], numbers[1], classes, groups)


def whole(name: str, y: np.ndarray) -> np.ndarray:
    if y.ndim != 1 or y.dtype.kind not in "iub":
        raise ValueError(
            f"labels of {name} are {y.dtype} of shape {y.shape}; give whole numbers, one an "
            f"example, or say `task='regression'`, 'multilabel' or 'language'"
        )
    return y


def as_many(name: str, x: np.ndarray, y: np.ndarray) -> None:
    if not x.ndim or not y.ndim:
        raise ValueError(f"{name} has a single value; give arrays with one row per example")
    if len(x) != len(y):
        raise ValueError(f"{name} has {len(x)} rows of inputs and {len(y)} of labels or groups")
