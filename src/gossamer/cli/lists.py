"""`gossamer ls`, `data` and `partition`: what there is, and how data is divided."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gossamer import data as datasets
from gossamer import fields, models
from gossamer.cli.parsing import Parser, Refusal, add_settings, given, say, table
from gossamer.cli.run import refusing
from gossamer.config import Config, Experiment
from gossamer.methods import METHODS

OWN = {
    "synthetic": "Synthetic(1, 1) of Li et al., drawn when asked for; synthetic:ALPHA,BETA",
    "npz:FILE": "arrays x and y, or x_train, y_train, x_test, y_test",
    "csv:FILE": "numeric columns; the label is the column label or y, else the last",
    "folder:FOLDER": "images in one folder per class",
}
"""Data that are made or yours, and that `gossamer data` therefore does not list."""


def ls(arguments: Sequence[str]) -> int:
    """`gossamer ls`: every name that other commands take."""
    parser = Parser(prog="gossamer ls", description=ls.__doc__)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.read(arguments)
    found = {
        "methods": {name: summary(method) for name, method in METHODS.items()},
        "models": {name: _docline(build) for name, build in models.MODELS.items()},
        "data sets": {entry.name: entry.title for entry in datasets.ls()} | OWN,
        "partitions": {name: _docline(how) for name, how in datasets.PARTITIONS.items()},
    }
    if options.json:
        print(json.dumps(found))
        return 0
    for title, names in found.items():
        say(f"{title}\n{table([(f'  {name}', text) for name, text in names.items()])}\n")
    say("`gossamer run METHOD --help` lists a method's options.")
    return 0


def data(arguments: Sequence[str]) -> int:
    """`gossamer data ls` and `gossamer data get NAME`."""
    if not arguments or arguments[0] not in ("ls", "get", "-h", "--help"):
        raise Refusal("say `gossamer data ls` or `gossamer data get NAME`")
    if arguments[0] == "get":
        return _get(arguments[1:])
    parser = Parser(prog="gossamer data ls|get", description=data.__doc__)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.read(arguments[1:] if arguments[0] == "ls" else arguments)
    entries = datasets.ls()
    if options.json:
        rows = [
            {
                "name": entry.name,
                "train": entry.train,
                "test": entry.test,
                "classes": entry.classes,
                "licence": entry.licence,
                "found": str(entry.found) if entry.found else None,
            }
            for entry in entries
        ]
        print(json.dumps({"data": rows}))
        return 0
    header = ("name", "train", "test", "classes", "licence", "where")
    say(
        table(
            [
                (
                    entry.name,
                    entry.train,
                    entry.test,
                    entry.classes,
                    entry.licence,
                    entry.found or "not here",
                )
                for entry in entries
            ],
            header,
        )
    )
    for entry in entries:
        if entry.advice:
            say(f"{entry.name}: {entry.advice}")
    return 0


def partition(arguments: Sequence[str]) -> int:
    """`gossamer partition`: who holds what, as figures and as a picture."""
    parser = Parser(prog="gossamer partition", description=partition.__doc__)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--picture", default="", metavar="FILE", help="draw it: .png, .svg or .pdf")
    add_settings(parser, "experiment", Experiment())
    options = parser.read(arguments)
    with refusing():
        wish = fields.replace(Experiment(), given(Experiment(), options))
        fields.check(wish)
        federation = Config("fedavg", {}, wish).build_federation()
        figures = _figures(federation)
        if options.picture:
            datasets.picture(federation, Path(options.picture))
    say(table([(name, value) for name, value in figures.items() if name != "sizes"]))
    if options.picture:
        say(f"drawn to {options.picture}")
    if options.json:
        print(json.dumps(figures))
    return 0


def summary(method: object) -> str:
    """What a method is in a line; of a preset, what it sets otherwise."""
    kind = type(method)
    plain = {item.name: item.default for item in fields.settings(kind())}
    other = [
        f"{fields.flag(item.name)} {item.default}"
        for item in fields.settings(method)
        if item.default != plain[item.name]
    ]
    if other:
        return f"{kind.__name__} with {', '.join(other)}"
    return _docline(inspect.getmodule(kind) or kind)


def _docline(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _get(arguments: Sequence[str]) -> int:
    parser = Parser(prog="gossamer data get", description="Downloads a data set and verifies it.")
    parser.add_argument("name", help="a data set of `gossamer data ls`")
    options = parser.read(arguments)
    with refusing():
        folder = datasets.get(options.name)
    say(f"{options.name} is in {folder}")
    return 0


def _figures(federation: datasets.Tensors | datasets.Synthetic) -> Mapping[str, Any]:
    """Sizes and class counts of a division."""
    sizes = np.array([client.examples for client in federation.pool])
    found: dict[str, Any] = dict(federation.describe())
    if isinstance(federation, datasets.Tensors):
        counts = federation.counts()
        held = (counts > 0).sum(1)
        found["classes_held_fewest"] = int(held.min())
        found["classes_held_median"] = float(np.median(held))
        found["classes_held_most"] = int(held.max())
        tests = [len(federation.own_test[client.id]) for client in federation.pool]
        found["clients_without_test_data"] = int(sum(not count for count in tests))
    return {**found, "sizes": sizes.tolist()}
