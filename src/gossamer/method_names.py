"""Methods by their names: entries of `METHODS`, and classes of a user's files."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from gossamer import fields, models
from gossamer.core import AnyMethod
from gossamer.methods import METHODS, PUBLISHED
from gossamer.references import gone, only_in_python


def has_global_model(name: str) -> bool:
    """Whether the server of a method has a model to use; clients of the others have their own."""
    return bool(getattr(METHODS.get(name), "global_model", True))


def find_method(name: str) -> AnyMethod:
    """A method by its name, or from a file such as `my.py:Mine`.

    Raises:
        KeyError: there is no such method; the message suggests the nearest name.
        ValueError: what the name refers to is no method.
    """
    if name in METHODS:
        return METHODS[name]
    if only_in_python(name):
        raise gone("method", name, "method")
    place, colon, member = name.rpartition(":")
    if not colon:
        if name.endswith(".py"):
            raise KeyError(f"name a class of {name} too, such as {name}:Mine")
        hint = nearest(name, METHODS)
        raise KeyError(f"no method {name!r}{hint} `gossamer ls --all` lists them all")
    loaded = models.load(f"{place}:{member}")
    method = loaded() if isinstance(loaded, type) else loaded
    if not dataclasses.is_dataclass(method) or not hasattr(method, "merge"):
        raise ValueError(
            f"{name} is not a method; a method is a frozen dataclass with eight functions"
        )
    return method  # type: ignore[return-value]


def variants_with(method: str, setting: str) -> str | None:
    """The published entry of a method's family that has a setting which the method lacks.

    The family of a method are the published entries that begin with its name, and those whose class
    is defined in a module of the same name. An entry NAME-variants is preferred.
    """
    if method not in METHODS or setting in _names(METHODS[method]):
        return None
    family = {method, _module_name(METHODS[method])}
    related = [
        name
        for name, entry in PUBLISHED.items()
        if setting in _names(entry)
        and (_module_name(entry) in family or any(name.startswith(f"{word}-") for word in family))
    ]
    return min(related, key=lambda name: not name.endswith("-variants"), default=None)


def _names(method: AnyMethod) -> set[str]:
    return {item.name for item in fields.settings(method)}


def _module_name(method: AnyMethod) -> str:
    return type(method).__module__.rpartition(".")[2]


def nearest(name: str, known: Any) -> str:
    """`; did you mean 'this'?`, or a semicolon if no known name is similar."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ";"
