"""A preset's values as the defaults of its class, in the text of its module."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gossamer.core import Method
from gossamer.standalone.sources import Imports, edited

AnyMethod = Method[Any, Any, Any, Any, Any]
WIDTH = 100
"""The maximum length of a line."""


def with_defaults(source: str, method: AnyMethod, module: ModuleType) -> tuple[str, Imports]:
    """The source with the method's values as defaults, and the imports that these values need."""
    imports: Imports = {}
    known = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    edits = []
    fields = {each.name: each for each in dataclasses.fields(method)}  # type: ignore[arg-type]
    for node in _class(source, type(method).__name__).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        each = fields.get(node.target.id)
        if each is None or not each.init:
            continue
        value = getattr(method, each.name)
        if _same(value, _default(each)):
            continue
        assert node.value is not None
        written = _Writer(known, imports).write(value)
        place = _place_of_default(node.value)
        if place is node.value and each.metadata:  # from a helper without a default argument
            imports["option"] = ("gossamer.fields", "option")
            edits.append((place, _option(written[0], each.metadata)))
        elif place is node.value:
            edits.append((place, _fitted(written, place, source)))
        else:
            edits.append(_with_argument(node.value, place, written[0], source))
    return edited(source, edits), imports


def _class(source: str, name: str) -> ast.ClassDef:
    tree = ast.parse(source)
    return next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)


def _default(each: dataclasses.Field[Any]) -> Any:
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return each.default


def _same(one: object, two: object) -> bool:
    return one == two and repr(one) == repr(two)


def _place_of_default(call: ast.expr) -> ast.expr:
    """The expression to replace: the default in a call of `option` or `field`, else all of it."""
    if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in _FIELDS:
        if call.args:
            return call.args[0]
        return next((word.value for word in call.keywords if word.arg == "default"), call)
    return call


_FIELDS = ("option", "field")


@dataclass(frozen=True)
class _Writer:
    """Values as Python expressions."""

    known: Mapping[str, type]
    imports: Imports

    def write(self, value: object) -> list[str]:
        """The value on one line; for dataclasses also its opening, arguments and closing."""
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return [self._plain(value)]
        parts = []
        for each in dataclasses.fields(value):
            inner = getattr(value, each.name)
            if each.init and not _same(inner, _default(each)):
                parts.append(f"{each.name}={self.write(inner)[0]}")
        name = self._name(type(value))
        return [f"{name}({', '.join(parts)})", f"{name}(", *parts, ")"]

    def _name(self, kind: type) -> str:
        """The name of a class in the file; imports the class if needed."""
        for name, each in self.known.items():
            if each is kind:
                return name
        self.imports[kind.__name__] = (kind.__module__, kind.__name__)
        return kind.__name__

    def _plain(self, value: object) -> str:
        match value:
            case tuple():
                inner = ", ".join(self.write(each)[0] for each in value)
                return f"({inner},)" if len(value) == 1 else f"({inner})"
            case float() if repr(value) in ("inf", "-inf", "nan"):
                return f'float("{value}")'
            case str() if value.isprintable() and not set(value) & set('"\\'):
                return f'"{value}"'
            case None | bool() | int() | float() | str():
                return repr(value)
            case _:
                raise ValueError(f"a setting of {value!r} cannot be written as Python source")


def _option(default: str, metadata: Mapping[str, Any]) -> str:
    bounds = {name: bound for name, bound in metadata["bounds"].items() if bound is not None}
    more = "".join(f", {name}={bound!r}" for name, bound in bounds.items())
    return f"option({default}, {metadata['help']!r}{more})"


def _with_argument(call: ast.expr, place: ast.expr, new: str, source: str) -> tuple[ast.expr, str]:
    """The expression to replace and its replacement, for a new argument; wraps long lines."""
    line = source.splitlines()[call.lineno - 1].encode()
    start, end = place.col_offset, place.end_col_offset
    text = (line[call.col_offset : start] + new.encode() + line[end : call.end_col_offset]).decode()
    if call.lineno != call.end_lineno or call.col_offset + len(text) <= WIDTH:
        return place, new
    head, _, rest = text.partition("(")
    return call, f"{head}(\n        {rest.removesuffix(')')}\n    )"


def _fitted(written: list[str], place: ast.expr, source: str) -> str:
    """The value on one line if it fits, otherwise with one argument per line."""
    line, *parts = written
    rest = source.splitlines()[place.end_lineno - 1][place.end_col_offset :]  # type: ignore[operator]
    if not parts or place.col_offset + len(line) + len(rest) <= WIDTH:
        return line
    head, *arguments, tail = parts
    return "\n".join([head, *(f"        {each}," for each in arguments), f"    {tail}"])
