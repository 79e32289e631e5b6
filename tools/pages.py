"""Parts of the site that are generated from the code: help of commands, options, methods.

MkDocs calls this file while it builds. A comment such as `<!-- options -->` in a page is replaced
by the function of that name in `GENERATED`, so that these parts are always up to date.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from gossamer import fields
from gossamer.cli import COMMANDS, main
from gossamer.config import Experiment
from gossamer.engine import Options
from gossamer.methods import ALGORITHMS, METHODS, as_published
from gossamer.methods import parts as shared

COLUMNS = 88
"""Width of a code block on the page."""
NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_steps.ipynb"
PARTS = {"flower": ("flower init", "flower certs"), "run": ("run METHOD",)}
"""Commands with several helps, each under its own words."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the comments of a page by what they stand for."""
    for word, make in GENERATED.items():
        mark = f"<!-- {word} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    return markdown


def commands() -> str:
    """Every command with its help, in the order of `gossamer --help`."""
    return "\n".join(_commands())


def _commands() -> Iterator[str]:
    yield f"```text\n{said()}```\n"
    for name, (_, text) in COMMANDS.items():
        yield f"## gossamer {name}\n\n{text[0].upper()}{text[1:]}.\n"
        for words in PARTS.get(name, (name,)):
            yield f"```text\n{said(*(word for word in words.split() if word.islower()))}```\n"


def said(*words: str) -> str:
    """The help that a command prints."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(COLUMNS)
    stream = io.StringIO()
    try:
        with redirect_stdout(stream):
            main([*words, "--help"])
    except SystemExit:  # argparse exits after printing help
        pass
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return stream.getvalue()


def options() -> str:
    """A table of options for every method, after those that all runs have."""
    return "\n".join(_options())


def _options() -> Iterator[str]:
    yield f"## Every run: the experiment\n\n{_table(Experiment())}"
    yield f"## Every run: execution\n\n{_table(Options())}"
    shown: set[type] = set()
    for name, method in METHODS.items():
        if type(method) not in shown:
            shown.add(type(method))
            yield f"## {name}\n\n{_first_line(type(method))}\n\n{_table(method)}"


def presets() -> str:
    """A row for every name that stands for another method with other settings."""
    rows: list[str] = []
    first: dict[type, str] = {}
    for name, method in METHODS.items():
        base = first.setdefault(type(method), name)
        if base == name:
            continue
        usual = {item.name: item.default for item in fields.settings(METHODS[base])}
        own = [
            f"`--{fields.flag(item.name)} {_text(item.default)}`"
            for item in fields.settings(method)
            if item.default != usual[item.name]
        ]
        rows.append(f"| `{name}` | [`{base}`](#{base}) | {', '.join(own) or 'the same settings'} |")
    return "\n".join(["| preset | method | settings |", "|---|---|---|", *rows, ""])


def _table(record: object) -> str:
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for item in fields.settings(record):
        kinds = f" ({', '.join(f'`{kind}`' for kind in item.choices)})" if item.choices else ""
        text = item.help.replace("|", "\\|")
        rows.append(f"| `--{fields.flag(item.name)}` | {_default(item.default)} | {text}{kinds} |")
    return "\n".join([*rows, ""])


def _default(value: object) -> str:
    return "" if value in ("", None) else f"`{_text(value)}`"


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _first_line(kind: type) -> str:
    """The first sentence about a method, from its module."""
    return (import_module(kind.__module__).__doc__ or "").splitlines()[0]


def notebook() -> str:
    """The notebook of first steps: texts, code, and what it showed."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _cell(cell))


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield text
        return
    yield f"```python\n{text}\n```"
    for output in cell["outputs"]:
        kinds = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in kinds:
            yield f"![](data:image/png;base64,{''.join(kinds['image/png']).strip()})"
        else:
            yield f"```text\n{''.join(kinds['text/plain']).rstrip()}\n```"


def methods() -> str:
    """The module of every algorithm: its records and its class."""
    names = dict.fromkeys(type(method).__module__ for method in ALGORITHMS.values())
    return "\n".join(map(_records, names))


def published() -> str:
    """The modules with authors' codes and variants."""
    return "\n".join(map(_records, _modules(as_published)))


def parts() -> str:
    """The modules that several methods share."""
    return "\n".join(f"::: {name}\n" for name in _modules(shared))


def _modules(package: Any) -> list[str]:
    return [f"{package.__name__}.{each.name}" for each in iter_modules(package.__path__)]


def _records(module: str) -> str:
    """A directive that shows the dataclasses of a module, also those it shares with others."""
    members = [
        name
        for name, each in vars(import_module(module)).items()
        if isinstance(each, type)
        and is_dataclass(each)
        and each.__module__.startswith("gossamer.methods")
        and not name.startswith("_")
    ]
    return (
        f"::: {module}\n    options:\n      members: [{', '.join(members)}]\n"
        '      filters: ["!^[a-z_]"]\n      show_if_no_docstring: true\n'
        "      show_source: false\n      summary: false\n"
    )


GENERATED: dict[str, Callable[[], str]] = {
    "commands": commands,
    "notebook": notebook,
    "options": options,
    "presets": presets,
    "methods": methods,
    "as_published": published,
    "parts": parts,
}
