"""Pages of the site that are made from the code: what commands say, and what methods can be told.

MkDocs calls this file while it builds; `<!-- commands -->`, `<!-- options -->` and
`<!-- presets -->` in a page are replaced. Nothing of it is kept, so nothing of it can be out of
date.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any

from gossamer import fields
from gossamer.cli import COMMANDS, main
from gossamer.config import Experiment
from gossamer.engine import Options
from gossamer.methods import METHODS

COLUMNS = 88
"""As wide as a code block is on the page."""
PARTS = {"flower": ("flower init", "flower certs"), "run": ("run METHOD",)}
"""Commands whose help stands under the words that come after their names."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fills in what a page asks for."""
    for word, make in MADE.items():
        mark = f"<!-- {word} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    return markdown


def commands() -> str:
    """Every command and its own help, in the order of `gossamer --help`."""
    return "\n".join(_commands())


def _commands() -> Iterator[str]:
    yield f"```text\n{said()}```\n"
    for name, (_, text) in COMMANDS.items():
        yield f"## gossamer {name}\n\n{text[0].upper()}{text[1:]}.\n"
        for words in PARTS.get(name, (name,)):
            yield f"```text\n{said(*(word for word in words.split() if word.islower()))}```\n"


def said(*words: str) -> str:
    """What a command prints when it is asked for help."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(COLUMNS)
    stream = io.StringIO()
    try:
        with redirect_stdout(stream):
            main([*words, "--help"])
    except SystemExit:  # argparse ends the program when it has told all
        pass
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return stream.getvalue()


def options() -> str:
    """A table of settings for each method, after those that all runs have."""
    return "\n".join(_options())


def _options() -> Iterator[str]:
    yield f"## Every run: the experiment\n\n{_table(Experiment())}"
    yield f"## Every run: execution\n\n{_table(Options())}"
    told: dict[type, str] = {}
    for name, method in METHODS.items():
        if type(method) not in told:
            told[type(method)] = name
            yield f"## {name}\n\n{_first_line(type(method))}\n\n{_table(method)}"


def presets() -> str:
    """A row for each name that is another method with some settings."""
    rows, told = [], {}
    for name, method in METHODS.items():
        base = told.setdefault(type(method), name)
        if base == name:
            continue
        usual = {item.name: item.default for item in fields.settings(METHODS[base])}
        own = [
            f"`--{fields.flag(item.name)} {_text(item.default)}`"
            for item in fields.settings(method)
            if item.default != usual[item.name]
        ]
        rows.append(f"| `{name}` | [`{base}`](#{base}) | {', '.join(own) or 'as it is'} |")
    return "\n".join(["| preset | is | with |", "|---|---|---|", *rows, ""])


def _table(record: object) -> str:
    rows = ["| option | default | what it is |", "|---|---|---|"]
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
    """Of the file that has the method: what it is, in a sentence."""
    import sys

    return (sys.modules[kind.__module__].__doc__ or "").splitlines()[0]


MADE: dict[str, Callable[[], str]] = {
    "commands": commands,
    "options": options,
    "presets": presets,
}
