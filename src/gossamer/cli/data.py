"""`gossamer data` and `partition`: data sets, and how they are divided among clients."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gossamer import data as datasets
from gossamer import fields
from gossamer.cli.parsing import Parser, Refusal, add_settings, given, refusing, say
from gossamer.config import Config, Experiment
from gossamer.data.statistics import statistics
from gossamer.report.columns import table

HEADER = ("name", "train", "test", "classes", "licence", "location")


def data(arguments: Sequence[str]) -> int:
    """`gossamer data ls` lists data sets; `gossamer data get NAME` downloads one."""
    if not arguments or arguments[0] not in ("ls", "get", "-h", "--help"):
        raise Refusal("use `gossamer data ls` or `gossamer data get NAME`")
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
    rows_of_text = [
        (e.name, e.train, e.test, e.classes, e.licence, e.found or "not here") for e in entries
    ]
    say(table(rows_of_text, HEADER))
    for entry in entries:
        if entry.advice:
            say(f"{entry.name}: {entry.advice}")
    return 0


def partition(arguments: Sequence[str]) -> int:
    """`gossamer partition`: shows how data is divided among clients, in figures and a picture."""
    parser = Parser(prog="gossamer partition", description=partition.__doc__)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument(
        "--picture", default="", metavar="FILE", help="draw a picture: .png, .svg or .pdf"
    )
    add_settings(parser, "experiment", Experiment())
    options = parser.read(arguments)
    with refusing():
        experiment = fields.replace(Experiment(), given(Experiment(), options))
        fields.check(experiment)
        federation = Config("fedavg", {}, experiment).build_federation()
        known = statistics(federation)
        if options.picture:
            datasets.picture(federation, Path(options.picture))
    say(table([(name, value) for name, value in known.items() if name != "sizes"]))
    if options.picture:
        say(f"picture: {options.picture}")
    if options.json:
        print(json.dumps(known))
    return 0


def _get(arguments: Sequence[str]) -> int:
    parser = Parser(prog="gossamer data get", description="Downloads a data set and verifies it.")
    parser.add_argument("name", help="a data set of `gossamer data ls`")
    options = parser.read(arguments)
    with refusing():
        folder = datasets.get(options.name)
    say(f"{options.name} is in {folder}")
    return 0
