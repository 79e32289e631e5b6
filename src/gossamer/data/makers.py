"""Federations from objects of a program: arrays, torch data sets, clients, Hugging Face."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from gossamer.core import Key
from gossamer.data.arrays import Arrays, Split
from gossamer.data.gathering import (
    ArrayLike,
    ClientLike,
    Dataset,
    Pair,
    array_of,
    as_many,
    ends,
    groups_of,
    hold_out,
    images_or_given,
    index_of,
    joined,
    labels_of,
    parts_of,
    read,
    seen,
    with_validation,
)
from gossamer.data.inputs import AsGiven, Inputs
from gossamer.data.opening import federation
from gossamer.data.sources.files import arrays_of, held_out
from gossamer.data.sources.hugging_face import Columns, Table, arrays_of_tables, splits_of
from gossamer.data.tensors import Tensors, federate


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
    task: str = "",
    **division: Unpack[Division],
) -> Tensors:
    """A federation of arrays: bytes are images, other numbers are features, as in an `npz:`.

    Args:
        x: The inputs, one row per example.
        y: The labels: whole numbers, or what `task` needs.
        test: Inputs and labels of the test data; by default a fifth of the examples.
        groups: The client of every example, for `partition="natural"`; two arrays if there are
            test data.
        name: Of the data, in logs and reports.
        task: What labels are, if they are no classes: `regression`, `multilabel`, `language`.
        division: How `gossamer.data.federation` divides them: `partition`, `pool`, `seed`,
            `least`, `valid`, `inputs`, `budgets`.

    >>> made = from_arrays(np.zeros((40, 3)), np.arange(40) % 2, pool=4)
    >>> made
    Tensors(arrays, iid: 4 clients, 32 training and 8 test examples of shape (3,), 2 classes)
    """
    key = Key(division.get("seed", 0)).fold("data")
    rows, labels = array_of(x), array_of(y)
    as_many(name, rows, labels)
    clients = groups_of(groups, test is not None)
    if test is None:
        train, held = held_out(len(rows), key)
        parts = [(rows[train], labels[train]), (rows[held], labels[held])]
        if clients is not None:
            as_many(name, rows, clients[0])
            clients = (clients[0][train], clients[0][held])
    else:
        parts = [(rows, labels), (array_of(test[0]), array_of(test[1]))]
        as_many(f"test data of {name}", *parts[1])
    inputs = _for_task(division.get("inputs", Inputs()), task)
    facts = labels_of(name, inputs.task, parts[0][1], parts[1][1], clients)
    return _divided(arrays_of(name, parts[0][0], parts[1][0], facts, inputs), division)


def from_torch(
    dataset: Dataset,
    *,
    test: Dataset | None = None,
    name: str = "",
    task: str = "",
    **division: Unpack[Division],
) -> Tensors:
    """A federation of a torch data set, whose pairs of input and label are read once.

    Bytes, such as pictures without a transform, become images as in `from_arrays`. Everything else
    is given to the model as the data set gives it; a random transform is drawn once.

    Args:
        dataset: The training data.
        test: The test data; by default a fifth of the training data.
        name: Of the data; by default that of the class.
        task: See `from_arrays`.
        division: See `from_arrays`.
    """
    name = name or type(dataset).__name__.lower()
    inputs = _for_task(division.get("inputs", Inputs()), task)
    x, y = read(dataset, inputs.task)
    if test is None:
        train, held = held_out(len(x), Key(division.get("seed", 0)).fold("data"))
        parts = [(x[train], y[train]), (x[held], y[held])]
    else:
        parts = [(x, y), read(test, inputs.task)]
    facts = labels_of(name, inputs.task, parts[0][1], parts[1][1], None)
    inputs = seen(dataset, inputs)
    return _divided(images_or_given(name, parts[0][0], parts[1][0], facts, inputs), division)


def from_clients(
    clients: Iterable[ClientLike],
    *,
    test: Pair | Dataset | None = None,
    name: str = "clients",
    seed: int = 0,
    valid: float = 0.0,
    inputs: Inputs = Inputs(),
    budgets: str | Sequence[float] | None = None,
    task: str = "",
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
        task: See `from_arrays`.

    >>> alone = (np.zeros((10, 3)), np.arange(10) % 2)
    >>> made = from_clients([alone, alone, alone])
    >>> len(made.pool), made.client(2).train.x.shape
    (3, torch.Size([8, 3]))
    """
    key = Key(seed).fold("data")
    inputs = _for_task(inputs, task)
    own = [parts_of(client, inputs.task) for client in clients]
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
        own = [hold_out(each, key.fold("client", at)) for at, each in enumerate(own)]
    train, kept, tests = ([each.get(part) for each in own] for part in ("train", "valid", "test"))
    server = [read(test, inputs.task)] if test is not None else tests
    x, y = joined(name, [*train, *kept])
    test_x, test_y = joined(name, server)
    labels = labels_of(name, inputs.task, y, test_y, None)
    arrays = images_or_given(name, x, test_x, labels, inputs)
    last = ends(train)
    split = Split(index_of(last), index_of(ends(tests if test is None else [None] * len(own))))
    if not any(kept):
        return federate(arrays, split, "natural", key, valid, _prepared(arrays, inputs), budgets)
    made = federate(arrays, split, "natural", key, 0.0, _prepared(arrays, inputs), budgets)
    return with_validation(made, index_of(ends(kept), int(last[-1])))


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
        y: The column of labels, or several, separated by commas, for other tasks.
        group: The column whose values are the clients.
        splits: Training and test data of a DatasetDict.
        name: Of the data, in logs and reports.
        division: See `from_arrays`.
    """
    key = Key(division.get("seed", 0)).fold("data")
    tables, wanted = splits_of(dataset, *splits), Columns(x, tuple(y.split(",")), group)
    inputs = division.get("inputs", Inputs())
    return _divided(arrays_of_tables(name, tables, wanted, key, inputs), division)


def _for_task(inputs: Inputs, task: str) -> Inputs:
    return replace(inputs, task=task) if task else inputs


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
    return Inputs(inputs.scale if inputs.task == "regression" else "raw", task=inputs.task)
