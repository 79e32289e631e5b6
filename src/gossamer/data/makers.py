"""Federations from objects of a program: arrays, torch data sets, clients, Hugging Face."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, TypedDict, Unpack, runtime_checkable

import numpy as np
from torch import Tensor

from gossamer.core import Data, Key
from gossamer.data.arrays import Arrays, Index, Labels, Split
from gossamer.data.inputs import AsGiven, Inputs, Ints
from gossamer.data.opening import federation
from gossamer.data.sources.classes import note_unseen, numbered
from gossamer.data.sources.files import arrays_of, held_out
from gossamer.data.sources.hugging_face import Table, hugging_face
from gossamer.data.tensors import Tensors, federate

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


class Division(TypedDict, total=False):
    """How data are divided among clients; see `gossamer.data.federation`."""

    partition: str
    pool: int
    seed: int
    least: int
    valid: float
    inputs: Inputs
    budgets: str | Sequence[float]


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    test: Pair | None = None,
    groups: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    name: str = "arrays",
    **division: Unpack[Division],
) -> Tensors:
    """A federation of arrays: bytes are images, other numbers are features, as in an `npz:`.

    Args:
        x: The inputs, one row per example.
        y: The labels: whole numbers.
        test: Inputs and labels of the test data; by default a fifth of the examples.
        groups: The client of every example, for `partition="natural"`; two arrays if there are
            test data.
        name: Of the data, in logs and reports.
        division: How `gossamer.data.federation` divides them: `partition`, `pool`, `seed`,
            `least`, `valid`, `inputs`, `budgets`.

    >>> made = from_arrays(np.zeros((40, 3)), np.arange(40) % 2, pool=4)
    >>> made
    Tensors(arrays, iid: 4 clients, 32 training and 8 test examples of shape (3,), 2 classes)
    """
    key = Key(division.get("seed", 0)).fold("data")
    rows, labels = _array(x), _array(y)
    _as_many(name, rows, labels)
    clients = _groups(groups, test is not None)
    if test is None:
        train, held = held_out(len(rows), key)
        parts = [(rows[train], labels[train]), (rows[held], labels[held])]
        if clients is not None:
            _as_many(name, rows, clients[0])
            clients = (clients[0][train], clients[0][held])
    else:
        parts = [(rows, labels), (_array(test[0]), _array(test[1]))]
        _as_many(f"test data of {name}", *parts[1])
    numbers, classes = numbered(name, *(_whole(name, part[1]) for part in parts))
    facts = Labels(numbers[0], numbers[1], classes, clients)
    inputs = division.get("inputs", Inputs())
    return _divided(arrays_of(name, parts[0][0], parts[1][0], facts, inputs), division)


def from_torch(
    dataset: Dataset, *, test: Dataset | None = None, name: str = "", **division: Unpack[Division]
) -> Tensors:
    """A federation of a torch data set, whose pairs of input and label are read once.

    Bytes, such as pictures without a transform, become images as in `from_arrays`. Everything else
    is given to the model as the data set gives it; a random transform is drawn once.

    Args:
        dataset: The training data.
        test: The test data; by default a fifth of the training data.
        name: Of the data; by default that of the class.
        division: See `from_arrays`.
    """
    name = name or type(dataset).__name__.lower()
    x, y = _read(dataset)
    if test is None:
        train, held = held_out(len(x), Key(division.get("seed", 0)).fold("data"))
        parts = [(x[train], y[train]), (x[held], y[held])]
    else:
        parts = [(x, y), _read(test)]
    numbers, classes = numbered(name, *(_whole(name, part[1]) for part in parts))
    facts = Labels(numbers[0], numbers[1], classes)
    inputs = _seen(dataset, division.get("inputs", Inputs()))
    return _divided(_arrays(name, parts[0][0], parts[1][0], facts, inputs), division)


def from_clients(
    clients: Iterable[ClientLike],
    *,
    test: Pair | Dataset | None = None,
    name: str = "clients",
    seed: int = 0,
    valid: float = 0.0,
    inputs: Inputs = Inputs(),
    budgets: str | Sequence[float] | None = None,
) -> Tensors:
    """A federation whose clients have their data already.

    Args:
        clients: For every client a pair of inputs and labels, a torch data set, or a dictionary of
            these with `train`, and optionally `valid` and `test`.
        test: Test data of the server. Without it, these are the clients' own test data together;
            and without these, a fifth of everyone's examples is held out.
        name: Of the data, in logs and reports.
        seed: Of what is held out, and of the budgets.
        valid: The fraction of training examples that becomes validation data.
        inputs: How examples become inputs.
        budgets: Densities that clients can afford.

    >>> alone = (np.zeros((10, 3)), np.arange(10) % 2)
    >>> made = from_clients([alone, alone, alone])
    >>> len(made.pool), made.client(2).train.x.shape
    (3, torch.Size([8, 3]))
    """
    key = Key(seed).fold("data")
    own = [_parts(client) for client in clients]
    if not own:
        raise ValueError("there are no clients; give at least one")
    with_test = sum("test" in each for each in own)
    if test is not None and with_test:
        raise ValueError("give test data of the server or of the clients, not both")
    if with_test not in (0, len(own)):
        raise ValueError(
            f"{with_test} of {len(own)} clients have test data; give it to all or none"
        )
    if any("valid" in each for each in own) and valid:
        raise ValueError("clients have validation data of their own; leave out `valid=`")
    if test is None and not with_test:
        own = [_hold_out(each, key.fold("client", at)) for at, each in enumerate(own)]
    train, kept, tests = ([each.get(part) for each in own] for part in ("train", "valid", "test"))
    server = [_read(test)] if test is not None else tests
    x, y = _joined(name, [*train, *kept])
    test_x, test_y = _joined(name, server)
    numbers, classes = numbered(name, _whole(name, y), _whole(name, test_y))
    arrays = _arrays(name, x, test_x, Labels(numbers[0], numbers[1], classes), inputs)
    ends = _ends(train)
    split = Split(_index(ends), _index(_ends(tests if test is None else [None] * len(own))))
    if not any(kept):
        return federate(arrays, split, "natural", key, valid, _prepared(arrays, inputs), budgets)
    made = federate(arrays, split, "natural", key, 0.0, _prepared(arrays, inputs), budgets)
    return _with_validation(made, _index(_ends(kept), int(ends[-1])))


def from_hugging_face(
    dataset: Table | Mapping[str, Table],
    x: str | None = None,
    y: str = "label",
    *,
    group: str | None = None,
    splits: tuple[str, str] = ("train", "test"),
    name: str = "hugging-face",
    **division: Unpack[Division],
) -> Tensors:
    """A federation of a data set of Hugging Face's `datasets`; see `data.hugging_face`.

    Args:
        dataset: A Dataset, of which a fifth is held out, or a DatasetDict.
        x: The column of inputs; by default the first that is neither label nor group.
        y: The column of labels.
        group: The column whose values are the clients.
        splits: Training and test data of a DatasetDict.
        name: Of the data, in logs and reports.
        division: See `from_arrays`.
    """
    key = Key(division.get("seed", 0)).fold("data")
    train, test = splits
    return _divided(hugging_face(dataset, x, y, group, train, test, name, key), division)


# helpers ------------------------------------------------------------------------------------------


def _divided(arrays: Arrays, division: Division) -> Tensors:
    settings: dict[str, Any] = {**division, "inputs": division.get("inputs", Inputs())}
    settings["inputs"] = _prepared(arrays, settings["inputs"])
    made = federation(arrays, **settings)
    assert isinstance(made, Tensors)
    return made


def _prepared(arrays: Arrays, inputs: Inputs) -> Inputs:
    """Examples that are given as they are have no other scale."""
    if not isinstance(arrays.kind, AsGiven):
        return inputs
    if inputs.scale not in ("normalised", "raw") or inputs.augment:
        raise ValueError(
            f"examples of {arrays.name} are {arrays.kind.dtype} and reach the model as they are; "
            f"scale and augment them in the data set"
        )
    return Inputs("raw")


def _arrays(
    name: str, train: np.ndarray, test: np.ndarray, labels: Labels, inputs: Inputs
) -> Arrays:
    """Images if the rows are bytes, otherwise rows that stay as they are."""
    if train.dtype == np.uint8 and train.ndim in (3, 4):
        return arrays_of(name, train, test, labels, inputs)
    note_unseen(name, labels.train, labels.test)
    return Arrays(name, AsGiven(train.shape[1:], str(train.dtype)), train, test, labels)


def _seen(dataset: Dataset, inputs: Inputs) -> Inputs:
    """Pictures of Pillow have their channels last."""
    picture = len(dataset) and hasattr(dataset[0][0], "getbands")
    return replace(inputs, layout="nhwc") if picture else inputs


def _array(values: ArrayLike) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype.itemsize == 2 else values).numpy()
    return np.asarray(values)


def _read(source: Pair | Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of a pair of arrays or of a torch data set."""
    if isinstance(source, tuple):
        x, y = _array(source[0]), _array(source[1])
    elif (tensors := getattr(source, "tensors", None)) is not None and len(tensors) == 2:
        x, y = _array(tensors[0]), _array(tensors[1])
    else:
        assert isinstance(source, Dataset)
        pairs = [source[at] for at in range(len(source))]
        rows = [_array(pair[0]) for pair in pairs]
        odd = next((row.shape for row in rows if row.shape != rows[0].shape), None)
        if odd is not None:
            raise ValueError(
                f"examples have shapes {rows[0].shape} and {odd}; add a transform to one size"
            )
        x, y = np.stack(rows), np.asarray([int(pair[1]) for pair in pairs], np.int64)
    _as_many(type(source).__name__, x, y)
    return x, y


def _parts(client: ClientLike) -> dict[str, tuple[np.ndarray, np.ndarray]]:
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
    return {part: _read(given[part]) for part in given}


def _hold_out(
    client: dict[str, tuple[np.ndarray, np.ndarray]], key: Key
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    x, y = client["train"]
    train, held = held_out(len(y), key)
    return {**client, "train": (x[train], y[train]), "test": (x[held], y[held])}


def _joined(
    name: str, parts: Sequence[tuple[np.ndarray, np.ndarray] | None]
) -> tuple[np.ndarray, np.ndarray]:
    known = [part for part in parts if part is not None]
    shapes = list({part[0].shape[1:] for part in known})
    if len(shapes) > 1:
        raise ValueError(f"examples of {name} have shapes {shapes[0]} and {shapes[1]}; give one")
    return np.concatenate([x for x, _ in known]), np.concatenate([y for _, y in known])


def _ends(parts: Sequence[tuple[np.ndarray, np.ndarray] | None]) -> Ints:
    """Where the rows of every client end, when they follow one another."""
    return np.cumsum([0 if part is None else len(part[1]) for part in parts])


def _index(ends: Ints, first: int = 0) -> Index:
    return Index(np.arange(first, first + int(ends[-1])), np.concatenate([[0], ends]))


def _with_validation(made: Tensors, valid: Index) -> Tensors:
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


def _groups(
    groups: ArrayLike | tuple[ArrayLike, ArrayLike] | None, tested: bool
) -> tuple[Ints, Ints] | None:
    if groups is None:
        return None
    if tested != isinstance(groups, tuple):
        raise ValueError("`groups=` is one array, or two if there are test data: (train, test)")
    pair = groups if isinstance(groups, tuple) else (groups, groups)
    return _array(pair[0]).astype(np.int64), _array(pair[1]).astype(np.int64)


def _whole(name: str, y: np.ndarray) -> np.ndarray:
    if y.ndim != 1 or y.dtype.kind not in "iub":
        raise ValueError(
            f"labels of {name} are {y.dtype} of shape {y.shape}; give whole numbers, one an example"
        )
    return y


def _as_many(name: str, x: np.ndarray, y: np.ndarray) -> None:
    if not x.ndim or not y.ndim:
        raise ValueError(f"{name} has a single value; give arrays with one row per example")
    if len(x) != len(y):
        raise ValueError(f"{name} has {len(x)} rows of inputs and {len(y)} of labels or groups")
