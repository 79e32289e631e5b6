"""From a name to a federation: the one function most programs need."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gossamer.core import Key
from gossamer.data.arrays import Arrays
from gossamer.data.budgets import deal_budgets
from gossamer.data.download import Progress, bar, fetch
from gossamer.data.inputs import Inputs
from gossamer.data.origin import Origin
from gossamer.data.partitions import parse
from gossamer.data.sources import FORMATS, SOURCES
from gossamer.data.sources.search import advice, find, located
from gossamer.data.synthetic import Synthetic
from gossamer.data.tensors import Tensors, federate


def federation(
    name: str | Arrays,
    partition: str | None = None,
    pool: int | None = None,
    seed: int = 0,
    least: int | None = None,
    valid: float = 0.0,
    inputs: Inputs = Inputs(),
    budgets: str | Sequence[float] | None = None,
) -> Tensors | Synthetic:
    """Divides a data set among clients; the same arguments give the same federation anywhere.

    Args:
        name: One of `SOURCES`, `synthetic` or `synthetic:ALPHA,BETA`, a file such as
            `npz:mine.npz`, `csv:table.csv` or `folder:pictures`, a data set of the Hugging Face
            hub such as `hf:NAME`, or `Arrays` that you made.
        partition: How the data are divided, e.g. `dirichlet:0.2`; by default `natural` for sets
            with writers or speakers and `iid` for others.
        pool: The number of clients; by default 100, 500 under `pachinko`, everyone under `natural`.
        seed: Of the partition, the validation data and the budgets.
        least: The fewest training examples of a client.
        valid: The fraction of each client's training examples that is moved to validation.
        inputs: How files are read, and how stored examples become inputs of the model.
        budgets: Densities that clients can afford: shares such as `0.2:40%,0.1:60%`, a CSV file, or
            numbers that are dealt to the clients.
    """
    if pool is not None and pool < 1:
        raise ValueError(f"a pool of {pool} clients is empty; use `pool=1` or more")
    if least is not None and least < 0:
        raise ValueError(f"least is {least}, but is a number of examples; use 0 or more")
    key = Key(seed).fold("data")
    origin = None
    if isinstance(name, str) and (budgets is None or isinstance(budgets, str)):
        origin = Origin(name, partition, pool, seed, least, valid, inputs, budgets)
    if isinstance(name, str) and name.partition(":")[0] == "synthetic":
        if partition not in (None, "natural"):
            raise ValueError(
                f"every client of {name} draws its own examples, so {partition!r} cannot divide "
                f"them; leave out the partition"
            )
        if inputs.augment:
            raise ValueError(f"{name} has no pictures to crop and mirror; leave out augment")
        for setting in READ_BY:
            if getattr(inputs, setting) != getattr(Inputs(), setting):
                raise ValueError(f"{name} is drawn, not read from files; leave out `{setting}=`")
        if inputs.task not in ("", "classification"):
            raise ValueError(f"{name} has classes; leave out `task={inputs.task!r}`")
        alpha, beta = _numbers(name)
        clients = pool or 100
        if budgets is not None:  # dealt now, so that a wrong one is refused before any work
            budgets = tuple(deal_budgets(budgets, clients, key.fold("budgets")).tolist())
        return Synthetic(key, clients, alpha, beta, valid, budgets=budgets, origin=origin)
    arrays = load(name, key, inputs) if isinstance(name, str) else name
    if partition is None:
        source = SOURCES.get(arrays.name)
        partition = source.partition if source else "natural" if arrays.labels.groups else "iid"
    how = parse(partition)
    split = how(arrays.labels.strata, pool, key.fold("partition"), least)
    made = federate(arrays, split, str(how), key, valid, inputs, budgets)
    return replace(made, origin=origin)


READ_BY = {"label": ("csv", "hf"), "size": ("folder",), "layout": ("npz", "hf")}
"""Which formats each setting of reading belongs to."""


def load(name: str, key: Key | None = None, inputs: Inputs = Inputs()) -> Arrays:
    """The whole data set of a name, undivided.

    Args:
        name: One of `SOURCES`, or a file such as `csv:table.csv`.
        key: Chooses the test rows where files have none.
        inputs: How files are read: the label of a table, the size of pictures, the layout of
            arrays.
    """
    form, colon, path = name.partition(":")
    own = colon != "" and form in FORMATS
    for setting, readers in READ_BY.items():
        asked = getattr(inputs, setting) != getattr(Inputs(), setting)
        if asked and not (own and form in readers):
            raise ValueError(
                f"`{setting}=` is for data in {readers[0]}:, not for {name!r}; leave it out"
            )
    if own and form == "folder" and inputs.task not in ("", "classification"):
        raise ValueError(f"folders are classes; give {inputs.task} as an npz:")
    if own:
        return FORMATS[form](Path(path).expanduser(), key or Key(0).fold("data"), inputs)
    if name in SOURCES:
        source = SOURCES[name]
        if inputs.task in ("", "classification"):
            return source.read(located(source))
        if inputs.task == "language" and source.read_tokens is not None:
            return source.read_tokens(located(source))
        raise ValueError(f"{name} has one class per example; leave out `task={inputs.task!r}`")
    raise _unknown(name)


def get(name: str, folder: str | Path | None = None, progress: Progress | None = bar) -> Path:
    """Downloads a named data set unless it is here already; returns the folder that has it.

    It goes to `folder`, else to `$GOSSAMER_DATA/NAME`, else to the user's cache.
    """
    if name not in SOURCES:
        raise _unknown(name)
    return fetch(SOURCES[name], None if folder is None else Path(folder), progress)


def _unknown(name: str) -> KeyError:
    known = [*SOURCES, "synthetic", *(f"{form}:PATH" for form in FORMATS)]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return KeyError(f"no data set {name!r}; {hint}`gossamer ls` lists them all")


@dataclass(frozen=True)
class Entry:
    """One line of the list of data sets."""

    name: str
    title: str
    train: int
    test: int
    classes: int
    shape: tuple[int, ...]
    licence: str
    found: Path | None
    """The folder that has it, or None."""
    advice: str
    """How to get it where it is missing, else empty."""


def listing() -> list[Entry]:
    """Every named data set, and where it was found."""
    entries = []
    for source in SOURCES.values():
        folder = find(source)
        entries.append(
            Entry(
                source.name,
                source.title,
                source.train,
                source.test,
                source.classes,
                source.shape,
                source.licence,
                folder,
                "" if folder else advice(source),
            )
        )
    return entries


def _numbers(name: str) -> tuple[float, float]:
    """Alpha and beta of `synthetic:ALPHA,BETA`; 1 and 1 where they are left out."""
    _, colon, rest = name.partition(":")
    if not colon:
        return 1.0, 1.0
    try:
        alpha, beta = map(float, rest.split(","))
    except ValueError:
        raise ValueError(f"{name!r} needs two numbers, e.g. synthetic:0.5,0.5") from None
    return alpha, beta
