"""`gossamer ls`: the names that other commands accept."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence

from gossamer import data as datasets
from gossamer import fields, models
from gossamer.cli.parsing import Parser, say
from gossamer.compression import Compressed
from gossamer.devices import PRESETS, Device
from gossamer.methods import ALGORITHMS, PUBLISHED, compressed
from gossamer.report.columns import paragraph, table

KINDS = ("methods", "models", "data", "partitions", "devices")
OWN = {
    "synthetic": "Synthetic(1, 1) of Li et al., generated; synthetic:ALPHA,BETA",
    "npz:FILE": "arrays x and y, or x_train, y_train, x_test, y_test",
    "csv:FILE": "numeric columns; the label is the column label or y, else the last",
    "folder:FOLDER": "images in one folder per class",
    "hf:NAME": "data sets of the Hugging Face hub, or a folder of save_to_disk; hf:NAME,CONFIG",
}
"""Data that are generated or the user's, which `gossamer data` does not list."""
SHOWN = 5
"""Settings of an entry that are listed, at most."""


def ls(arguments: Sequence[str]) -> int:
    """`gossamer ls [methods|models|data|partitions|devices] [--all]`: lists names for commands."""
    parser = Parser(prog="gossamer ls", description=ls.__doc__)
    parser.add_argument("kind", nargs="?", choices=KINDS, help="what to list (default: everything)")
    parser.add_argument(
        "--all",
        action="store_true",
        help="also list the authors' published codes and the variants of methods",
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.read(arguments)
    groups: dict[str, Mapping[str, str]] = {}
    if options.kind in (None, "methods"):
        groups["methods"] = {name: summary(method) for name, method in ALGORITHMS.items()}
        if options.all:
            groups |= _published()
    if options.kind in (None, "models"):
        groups["models"] = {name: _first_line(build) for name, build in models.MODELS.items()}
    if options.kind in (None, "data"):
        groups["data sets"] = {entry.name: entry.title for entry in datasets.ls()} | OWN
    if options.kind in (None, "partitions"):
        known = datasets.PARTITIONS.items()
        groups["partitions"] = {name: _first_line(divide) for name, divide in known}
    if options.kind in (None, "devices"):
        groups["devices"] = {name: _figures(device) for name, device in PRESETS.items()}
    if options.json:
        print(json.dumps(groups))
        return 0
    for title, names in groups.items():
        say(f"{title}\n{table([(f'  {name}', text) for name, text in names.items()])}\n")
    if "methods" in groups:
        more = "" if options.all else "`gossamer ls --all` adds published codes and variants; "
        say(paragraph(f"{more}`gossamer run METHOD --help` lists a method's options."))
    return 0


def summary(method: object) -> str:
    """One line about a method: what it is; of a preset, its purpose or how it differs."""
    kind, module = type(method), inspect.getmodule(type(method))
    usual = {item.name: item.default for item in fields.settings(kind())}
    changed = [
        f"{fields.flag(item.name)} {item.default}"
        for item in fields.settings(method)
        if item.default != usual.get(item.name)
    ]
    if not changed:
        return _first_line(module or kind)
    presets = inspect.getmembers(module, inspect.isfunction)
    if isinstance(method, Compressed):
        presets = inspect.getmembers(compressed, inspect.isfunction)
    for _, preset in presets:
        places = (kind.__module__, compressed.__name__)
        made = not inspect.signature(preset).parameters and preset.__module__ in places
        if made and preset.__doc__ and preset() == method:
            return _first_line(preset)
    return f"{kind.__name__} with {_listed(changed)}"


def readings(name: str, method: object) -> str:
    """The options of a variants entry that its method lacks."""
    family = name.removesuffix("-variants")
    pure = ALGORITHMS.get(family, getattr(method, "pure", None))
    known = {item.name for item in fields.settings(pure)} if pure else set()
    flags = [f"--{fields.flag(item.name)}" for item in fields.settings(method)]
    return _listed([flag for flag in flags if flag[2:].replace("-", "_") not in known])


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + more


def _published() -> dict[str, dict[str, str]]:
    """Published entries: released codes, then one entry per family with all of its readings."""
    titles = {False: "published codes", True: "variants: alternative readings as options"}
    return {
        title: {
            name: readings(name, method) if variants else summary(method)
            for name, method in PUBLISHED.items()
            if name.endswith("-variants") == variants
        }
        for variants, title in titles.items()
        if any(name.endswith("-variants") == variants for name in PUBLISHED)
    }


def _figures(device: Device) -> str:
    return (
        f"{device.flops / 1e9:g} GFLOP/s in training, {device.up / 1e6:g} Mbit/s up, "
        f"{device.down / 1e6:g} down, {device.memory / 1e6:g} MB"
    )


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]
