"""Messages of the library, worded for the command line."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from gossamer import fields
from gossamer.data.notes import DataWarning

ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)=([^`]*)`")
"""How the library writes an argument: `clients=8`, `select='valid'`, `personal=False`, `pool=`."""


def flags(text: str) -> str:
    """A message in which arguments of Python are options of the command line.

    >>> flags("use `clients=8` or fewer, a larger `pool=`, or `no_such=False`")
    'use --clients 8 or fewer, a larger --pool, or --no-no-such'
    """
    return ARGUMENT.sub(_flag, text)


def _flag(argument: re.Match[str]) -> str:
    name, value = fields.flag(argument[1]), argument[2].strip("'\"")
    if value in ("True", "False"):
        return f"--{name}" if value == "True" else f"--no-{name}"
    return f"--{name} {shlex.quote(value)}" if value else f"--{name}"


@contextmanager
def notes(stream: TextIO) -> Iterator[None]:
    """Prints remarks about data as lines of the command line, each once."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", DataWarning)
        show, said = warnings.showwarning, set[str]()

        def showing(message: Warning | str, category: type[Warning], *rest: object) -> None:
            text = flags(str(message))
            if not issubclass(category, DataWarning):
                show(message, category, *rest)  # type: ignore[arg-type]
            elif text not in said:
                said.add(text)
                print(f"gossamer: note: {text}", file=stream, flush=True)

        warnings.showwarning = showing  # type: ignore[assignment]
        yield
