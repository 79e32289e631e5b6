"""Command-line options made from dataclass fields, and refusals in one sentence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from gossamer import fields
from gossamer.config import nearest

REFUSED = 2
"""Exit code of a command whose input was refused before any work."""


class Refusal(Exception):
    """Input that cannot be used; its text is the sentence to print."""


class Parser(argparse.ArgumentParser):
    """An argument parser that answers mistakes with one sentence and the nearest name."""

    def __init__(self, prog: str, description: str | None = None) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise Refusal(message)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses everything; an unknown option is answered with the nearest known one."""
        found, unknown = self.parse_known_args(list(arguments))
        if unknown:
            word = unknown[0].partition("=")[0]
            raise Refusal(
                f"no option {word!r} of `{self.prog}`{nearest(word, self._option_string_actions)} "
                f"`{self.prog} --help` lists them all"
            )
        return found


def add_settings(parser: argparse.ArgumentParser, title: str, record: object) -> None:
    """An option for every field of a record, however nested."""
    group = parser.add_argument_group(title)
    for item in fields.settings(record):
        name = f"--{fields.flag(item.name)}"
        if name in parser._option_string_actions:
            raise Refusal(f"{title}: {name} already means something else; rename the field")
        if isinstance(item.default, bool):
            group.add_argument(
                name,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=f"{item.help} (default: {'yes' if item.default else 'no'})",
            )
            continue
        default = f"(default: {item.default})" if item.default not in ("", None) else ""
        group.add_argument(
            name,
            default=argparse.SUPPRESS,
            metavar="|".join(item.choices) or _kind(item.default),
            help=f"{item.help} {default}".replace("%", "%%"),
        )


def given(record: object, options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a record that the command line names, converted and checked one by one."""
    values = vars(options)
    try:
        return {
            item.name: fields.convert(item, values[item.name])
            for item in fields.settings(record)
            if item.name in values
        }
    except ValueError as problem:
        raise Refusal(str(problem)) from None


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Rows as aligned columns; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in ([header] if header else [])]
    cells += [[_text(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if _number(cell) else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    if header:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def say(text: str) -> None:
    """A line for the person who looks on."""
    print(text, flush=True)


def warn(text: str) -> None:
    """A line about something that went wrong."""
    print(f"gossamer: {text}", file=sys.stderr, flush=True)


def _kind(default: object) -> str:
    return {int: "N", float: "X"}.get(type(default), "TEXT")


def _text(cell: object) -> str:
    return f"{cell:.4f}" if isinstance(cell, float) else "-" if cell is None else str(cell)


def _number(cell: str) -> bool:
    return cell.replace(".", "").replace(",", "").replace("-", "").isdecimal()
