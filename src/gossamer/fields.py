"""Dataclass fields with help and bounds, from which the command line is derived."""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def option(
    default: T,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> T:
    """A dataclass field that is an option on the command line.

    Args:
        default: the default value.
        help: one line for `--help`.
        least: inclusive lower bound.
        most: inclusive upper bound.
        above: exclusive lower bound.
        below: exclusive upper bound.
    """
    bounds = {"least": least, "most": most, "above": above, "below": below}
    return dataclasses.field(default=default, metadata={"help": help, "bounds": bounds})


@dataclass(frozen=True)
class Setting:
    """One scalar field of a settings record, possibly of a nested one."""

    name: str
    path: tuple[str, ...]
    type: Any
    default: Any
    help: str
    field: Field[Any]

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a Literal; empty for other types."""
        return tuple(map(str, get_args(self.type))) if _is_literal(self.type) else ()


def _is_literal(hint: Any) -> bool:
    return str(get_origin(hint)) == "typing.Literal"


@lru_cache(maxsize=512)
def _hints(record: type) -> dict[str, Any]:
    return get_type_hints(record)


def settings(record: Any, path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """All scalar fields of a dataclass value; nested records are flattened."""
    hints = _hints(record.__class__)
    for field in dataclasses.fields(record):
        if not field.init:
            continue
        value = getattr(record, field.name)
        here = (*path, field.name)
        if dataclasses.is_dataclass(value):
            yield from settings(value, here)
        else:
            text = str(field.metadata.get("help", ""))
            yield Setting(field.name, here, hints[field.name], value, text, field)


def value(record: object, name: str, default: Any = None) -> Any:
    """A setting by its flat name, however deeply it is nested."""
    known = settings(record) if dataclasses.is_dataclass(record) else ()
    nested = (setting.default for setting in known if setting.name == name)
    return next(nested, getattr(record, name, default))


def replace(record: T, values: dict[str, Any]) -> T:
    """The record with some of its (possibly nested) fields replaced, by their flat names.

    Raises:
        KeyError: the record has no such field.
    """
    paths = {setting.name: setting.path for setting in settings(record)}
    for name, value in values.items():
        record = _replace_at(record, paths[name], value)
    return record


def _replace_at(record: Any, path: tuple[str, ...], value: Any) -> Any:
    head, *rest = path
    inner = _replace_at(getattr(record, head), tuple(rest), value) if rest else value
    return dataclasses.replace(record, **{head: inner})


def convert(setting: Setting, value: Any) -> Any:
    """A value from a command line or a file, converted to the field's type.

    Raises:
        ValueError: the value does not fit the type.
    """
    kinds = [kind for kind in (get_args(setting.type) or (setting.type,)) if kind is not type(None)]
    if setting.choices:
        if str(value) not in setting.choices:
            close = difflib.get_close_matches(str(value), setting.choices, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"`{setting.name}=` is one of {', '.join(setting.choices)}, not {value!r}{hint}"
            )
        return value
    wanted = kinds[0]
    if type(value) is wanted or (wanted is float and type(value) is int):
        return wanted(value)
    try:
        if not isinstance(value, str):
            raise TypeError
        return {"true": True, "false": False}[value.lower()] if wanted is bool else wanted(value)
    except (KeyError, TypeError, ValueError):
        word = _KINDS.get(wanted, wanted.__name__)
        raise ValueError(f"`{setting.name}=` is {word}, not {value!r}") from None


def plain(setting: Setting) -> Any:
    """A value as it comes back from a file: an integer in a float field becomes a float."""
    value = setting.default
    return float(value) if type(value) is int and _takes(setting, float) else value


def check(record: Any) -> None:
    """Raises ValueError if a value has the wrong type or is out of bounds."""
    for setting in settings(record):
        value = setting.default
        if isinstance(value, str) and not setting.choices and _takes(setting, str):
            continue
        if value is None and _takes(setting, type(None)):
            continue
        if isinstance(value, str) and not setting.choices:
            raise ValueError(f"`{setting.name}=` is {_kind(setting)}, not {value!r}")
        convert(setting, value)
        bounds = setting.field.metadata.get("bounds", {})
        if isinstance(value, str):
            continue
        for word, bound in bounds.items():
            if bound is not None and not _COMPARE[word](value, bound):
                raise ValueError(
                    f"`{setting.name}=` must be {_WORDS[word]} {bound:g}, not {value:g}"
                )
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"`{setting.name}=` must be finite, not {value}")


def _takes(setting: Setting, kind: type) -> bool:
    return kind in (get_args(setting.type) or (setting.type,))


def _kind(setting: Setting) -> str:
    kinds = get_args(setting.type) or (setting.type,)
    return _KINDS.get(kinds[0], getattr(kinds[0], "__name__", str(kinds[0])))


_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
_WORDS = {"least": "at least", "most": "at most", "above": "above", "below": "below"}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "least": operator.ge,
    "most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}


def spans_rounds(record: object) -> str:
    """The settings of a record whose effect is spread over all rounds of a run; empty if none is.

    A record with such settings names them in a property `spans_rounds`, which speaks for its own
    records too. A run that depends on none can be made longer afterwards.
    """
    own = getattr(record, "spans_rounds", None)
    if isinstance(own, str):
        return own
    if not dataclasses.is_dataclass(record):
        return ""
    names = [each.name for each in dataclasses.fields(record)]
    parts = (spans_rounds(getattr(record, name)) for name in names)
    return listed(*parts)


def listed(*parts: str) -> str:
    """Those of some texts that are not empty, as a list in a sentence."""
    return " and ".join(dict.fromkeys(part for part in parts if part))


def flag(name: str) -> str:
    """A field's name on the command line."""
    return name.replace("_", "-")
