"""Events as lines of the log: one JSON object each, with numbers that JSON can represent."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any


def kind(event: object) -> str:
    """The name of an event in the log: `ClientFinished` is `client-finished`."""
    return _kind(type(event).__name__)


@cache
def _kind(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def line(event: object, clock: object) -> str:
    """An event as a line of the log."""
    entry = {"event": kind(event), **vars(event), "clock": clock}
    try:
        return _FINITE.encode(entry) + "\n"
    except ValueError:  # a number is not finite, which is rare and costs more
        return _FINITE.encode(plain(entry)) + "\n"


def plain_line(entry: Mapping[str, Any]) -> str:
    """A line that was read from the log, as it is written."""
    return _FINITE.encode(entry) + "\n"


_FINITE = json.JSONEncoder(separators=(",", ":"), default=vars, allow_nan=False)
"""Writes records as objects of their fields."""


def plain(value: Any) -> Any:
    """A value as JSON has it: numbers that are not finite become null."""
    kind: Any = type(value)
    match value:
        case None | str() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _ if (names := _names(kind)) is not None:
            return {name: plain(getattr(value, name)) for name in names}
        case _:
            return value


@cache
def _names(kind: Any) -> tuple[str, ...] | None:
    """The fields of a type of records; None if it is none."""
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else None
