"""A method as a standalone file: its source, with its settings as the defaults of its class.

A preset such as `jmwst` is an instance with other values; in the copy they become the defaults.
Modules that no other method imports are inlined, definitions that the class does not need are
omitted, and everything else is imported from gossamer.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from dataclasses import dataclass

from gossamer.standalone.defaults import WIDTH, AnyMethod, with_defaults
from gossamer.standalone.sources import Imports, Source, edited, inner_module, only_used_by, parsed


@dataclass(frozen=True)
class Standalone:
    """The text of the file, and the name of the method's class in it."""

    source: str
    member: str


def standalone(method: AnyMethod) -> Standalone:
    """The method as one file; its class, called without arguments, equals the method.

    Args:
        method: an entry of METHODS, or any frozen dataclass with the functions of a method.

    Raises:
        ValueError: a setting has a value that cannot be written as Python.
    """
    kind = type(method)
    module = importlib.import_module(kind.__module__)
    text, extra = with_defaults(inspect.getsource(module), method, module)
    excluded: set[str] = set()
    while True:
        inner = only_used_by(module.__name__, excluded)
        try:
            return Standalone(
                _joined(module.__name__, text, inner, kind.__name__, extra), kind.__name__
            )
        except _Collision as collision:
            excluded.add(collision.module)


class _Collision(Exception):
    """A module cannot be inlined, because one of its names has another meaning in the file."""

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.module = module


def _joined(name: str, text: str, inner: list[str], member: str, extra: Imports) -> str:
    """The text of the file: docstring, imports, inlined modules, and the method."""
    texts = {each: inspect.getsource(importlib.import_module(each)) for each in inner}
    sources = [
        parsed(each, _renamed(each, source, inner))
        for each, source in {**texts, name: text}.items()
    ]
    _check(sources, inner)
    imports: Imports = {}
    for source in sources:
        imports |= {
            local: target
            for local, target in source.imports.items()
            if inner_module((local, *target), inner) is None
        }
    imports |= extra
    needed = _needed(sources, member)
    body = []
    for source in sources:
        kept = [each for each in source.statements if not each.defines or each.defines & needed]
        if kept and source.name != name:
            body.append(f"\n# {source.name} ".ljust(WIDTH + 1, "-"))
        body += [each.text for each in kept]
    used = {
        word
        for source in sources
        for each in source.statements
        if not each.defines or each.defines & needed
        for word in each.uses
    }
    imports = {
        local: target
        for local, target in imports.items()
        if local in used or local in extra or target[0] == "__future__"
    }
    return "\n".join([sources[-1].docstring, "", _import_block(imports), *body]) + "\n"


def _renamed(name: str, text: str, inner: list[str]) -> str:
    """The source with unqualified names in place of references to inlined modules.

    Raises:
        _Collision: such a name has another meaning in a function of this source.
    """
    source = parsed(name, text)
    aliases, names = {}, {}
    for local, (module, member) in source.imports.items():
        if (target := inner_module((local, module, member), inner)) is None:
            continue
        if target == module and member:
            names[local] = (target, member)
        else:
            aliases[local] = target
    tree = ast.parse(text)
    edits: list[tuple[ast.expr, str]] = []
    prefixes = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=local)) if local in aliases:
                prefixes.add(id(node.value))
                edits.append((node, _free(node.attr, source, aliases[local])))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or id(node) in prefixes:
            continue
        if node.id in aliases:
            raise _Collision(aliases[node.id])
        if node.id in names and names[node.id][1] != node.id:
            target, member = names[node.id]
            edits.append((node, _free(member, source, target)))
    if sys.version_info < (3, 12):  # positions inside f-strings are inexact there
        strings = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        inside = {id(node) for each in strings for node in ast.walk(each)}
        if any(id(node) in inside for node, _ in edits):
            raise _Collision((*aliases.values(), *(target for target, _ in names.values()))[0])
    return edited(text, edits)


def _free(name: str, source: Source, target: str) -> str:
    """The name, if it has no other meaning in the source; otherwise raises a collision."""
    other = source.imports.get(name)
    if name in source.local | source.defines or (other and other != (target, name)):
        raise _Collision(target)
    return name


def _check(sources: list[Source], inner: list[str]) -> None:
    """Raises a collision if two modules use one name with different meanings."""
    meaning: dict[str, object] = {}
    for source in sources[::-1]:
        own: dict[str, object] = dict.fromkeys(source.defines, source.name)
        for local, target in source.imports.items():
            origin = inner_module((local, *target), inner)
            own.setdefault(local, origin if origin and target[1] == local else target)
        for name, what in own.items():
            if meaning.setdefault(name, what) != what:
                raise _Collision(source.name)


def _needed(sources: list[Source], member: str) -> set[str]:
    """The names that the class needs, directly or indirectly."""
    uses: dict[str, set[str]] = {}
    waiting = [member]
    for source in sources:
        for each in source.statements:
            if not each.defines:
                waiting += each.uses
            for name in each.defines:
                uses.setdefault(name, set()).update(each.uses)
    names: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in uses and name not in names:
            names.add(name)
            waiting += uses[name]
    return names


def _import_block(imports: Imports) -> str:
    """The imports, sorted as ruff does: standard library, third party, gossamer."""
    whole = {local: module for local, (module, name) in imports.items() if name is None}
    parts: dict[str, list[str]] = {}
    for local, (module, name) in imports.items():
        if name is not None:
            parts.setdefault(module, []).append(name if name == local else f"{name} as {local}")
    groups: list[list[str]] = [[], [], [], []]
    for local, module in sorted(whole.items(), key=lambda each: each[1]):
        line = f"import {module}" if local == module else f"import {module} as {local}"
        groups[_group(module)].append(line)
    for module, names in sorted(parts.items()):
        together = sorted((each for each in names if " as " not in each), key=_by_kind)
        renamed = [[each] for each in names if " as " in each]
        for some in sorted([*renamed, *([together] if together else [])], key=_by_first):
            line = f"from {module} import {', '.join(some)}"
            if len(line) > WIDTH:
                inner = "".join(f"    {each},\n" for each in some)
                line = f"from {module} import (\n{inner})"
            groups[_group(module)].append(line)
    return "\n\n".join("\n".join(group) for group in groups if group)


def _group(module: str) -> int:
    head = module.partition(".")[0]
    if head == "__future__":
        return 0
    return 1 if head in sys.stdlib_module_names else 3 if head == "gossamer" else 2


def _by_first(names: list[str]) -> tuple[int, str]:
    return _by_kind(names[0])


def _by_kind(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2), name
