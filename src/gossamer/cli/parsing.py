"""Command-line options derived from dataclass fields, and one-sentence refusals."""

from __future__ import annotations

import argparse
import logging
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from gossamer import fields
from gossamer.cli.wording import flags
from gossamer.config import nearest, variants_with
from gossamer.core import AnyMethod
from gossamer.engine.files import Damaged, notices
from gossamer.methods import ALGORITHMS, METHODS, PUBLISHED

REFUSED, FAILED = 2, 1
"""Exit codes: the input was refused before any work; what was asked for could not be done."""
MOST_NAMES = 8
"""Methods that are named as having an option."""


class Refusal(Exception):
    """Unusable input; the text is the sentence to print."""

    def __init__(self, text: str, code: int = REFUSED) -> None:
        super().__init__(flags(text))
        self.code = code


@contextmanager
def refusing() -> Iterator[None]:
    """Turns errors about the input into refusals."""
    try:
        yield
    except KeyError as problem:
        raise Refusal(str(problem.args[0])) from problem
    except Damaged as problem:
        raise Refusal(str(problem), FAILED) from problem
    except (ValueError, OSError, ImportError) as problem:
        raise Refusal(str(problem)) from problem


class Parser(argparse.ArgumentParser):
    """An argument parser that answers a mistake with one sentence and the nearest known name."""

    def __init__(self, prog: str, description: str | None = None) -> None:
        told = re.sub(r"^`gossamer[^`]*`: ", "", description or "")  # the usage is printed anyway
        super().__init__(prog=prog, description=told[:1].upper() + told[1:], allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise Refusal(message)

    def read(
        self,
        arguments: Sequence[str],
        explain: Callable[[Sequence[str]], str | None] = lambda words: None,
    ) -> argparse.Namespace:
        """Parses all arguments.

        Args:
            arguments: the words after the command.
            explain: called with the unknown option and the words after it; says what is wrong if
                it knows better than the nearest known option.

        Raises:
            Refusal: an option is unknown or its value unusable.
        """
        options, unknown = self.parse_known_args(list(arguments))
        if unknown:
            word = unknown[0].partition("=")[0]
            if not word.startswith("-"):
                raise Refusal(explain(unknown) or f"`{self.prog}` takes no further {word!r}")
            hint = nearest(word, self._option_string_actions)
            raise Refusal(
                explain(unknown)
                or f"no option {word!r} of `{self.prog}`{hint} `{self.prog} --help` lists them all"
            )
        return options


def option_of_variants(method: str, command: str) -> Callable[[Sequence[str]], str | None]:
    """Explains an option that a method lacks, but one of its variants or another method has."""

    def explain(unknown: Sequence[str]) -> str | None:
        flag = unknown[0].partition("=")[0]
        if not flag.startswith("--"):
            return None
        names = [flag[2:].replace("-", "_"), flag[2:].removeprefix("no-").replace("-", "_")]
        entry = next((entry for name in names if (entry := variants_with(method, name))), None)
        if entry is None:
            return _of_others(method, flag, names)
        value = [word for word in unknown[1:2] if not word.startswith("--")]
        preset = _preset(METHODS[method], PUBLISHED[entry])
        use = shlex.join(["gossamer", command, entry, *preset, unknown[0], *value])
        return f"{flag} is an option of {entry}; use {use}"

    return explain


def _of_others(method: str, flag: str, names: Sequence[str]) -> str | None:
    """Which other methods have an option that a method lacks."""
    others = [
        other
        for other, value in ALGORITHMS.items()
        if any(item.name in names for item in fields.settings(value))
    ]
    if not others:
        return None
    known = ", ".join(others[:MOST_NAMES])
    more = f" and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
    return f"{method} has no {flag}; methods that have it: {known}{more}"


def _preset(method: AnyMethod, entry: AnyMethod) -> Iterator[str]:
    """The options of an entry that repeat the settings of a preset."""
    usual = {item.name: item.default for item in fields.settings(type(method)())}
    known = {item.name for item in fields.settings(entry)}
    for item in fields.settings(method):
        if item.name not in known or usual[item.name] == item.default:
            continue
        name = fields.flag(item.name)
        if isinstance(item.default, bool):
            yield f"--{name}" if item.default else f"--no-{name}"
        else:
            yield from (f"--{name}", f"{item.default}")


def add_settings(
    parser: argparse.ArgumentParser, title: str, record: object, known: bool = False
) -> None:
    """Adds an option for every field of a record, including those of nested records.

    Args:
        parser: Of the command.
        title: Of the options in `--help`.
        record: The record.
        known: Whether options that there are already may stand for fields of the same name.
    """
    group = parser.add_argument_group(title)
    for item in fields.settings(record):
        name = f"--{fields.flag(item.name)}"
        if name in parser._option_string_actions:
            if known:
                continue
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
            metavar="|".join(item.choices) or _placeholder(item.default),
            help=f"{item.help} {default}".replace("%", "%%"),
        )


def given(record: object, options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a record that the command line sets, converted to their types."""
    values = vars(options)
    try:
        return {
            item.name: fields.convert(item, values[item.name])
            for item in fields.settings(record)
            if item.name in values
        }
    except ValueError as problem:
        raise Refusal(str(problem)) from None


def say(text: str) -> None:
    """Prints a line for the user."""
    print(text, flush=True)


def warn(text: str) -> None:
    """Prints a line about a problem to standard error."""
    print(f"gossamer: {flags(text)}", file=sys.stderr, flush=True)


class _Notices(logging.Handler):
    """Prints sentences of the engine."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


def show_notices() -> None:
    """From now on, what the engine has to say is printed to standard error."""
    if not any(isinstance(handler, _Notices) for handler in notices.handlers):
        notices.addHandler(_Notices())


def _placeholder(default: object) -> str:
    return {int: "N", float: "X"}.get(type(default), "TEXT")
