"""Source code of method modules: imports, statements, and edits by position."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from gossamer import methods

Imports = dict[str, tuple[str, str | None]]
"""Local names, each with the module and the name imported from it (None: the module itself)."""


@cache
def _imported() -> Mapping[str, frozenset[str]]:
    """The modules of gossamer.methods that each of them imports."""
    root = Path(inspect.getfile(methods)).parent
    texts = {}
    for path in sorted(root.rglob("*.py")):
        if path.name != "__init__.py":
            parts = path.relative_to(root.parents[1]).with_suffix("").parts
            texts[".".join(parts)] = path.read_text(encoding="utf-8")
    imports = {}
    for name, text in texts.items():
        targets = [t for node in ast.walk(ast.parse(text)) for t in _targets(node)]
        imports[name] = (
            frozenset(inner_module(target, texts) or "" for target in targets) & texts.keys()
        )
    return imports


def _targets(node: ast.AST) -> Iterator[tuple[str, str, str | None]]:
    """The local name, the module, and the name in it, of each import of a statement."""
    if isinstance(node, ast.Import):
        for each in node.names:
            yield each.asname or each.name, each.name, None
    elif isinstance(node, ast.ImportFrom):
        for each in node.names:
            yield each.asname or each.name, node.module or "", each.name


def inner_module(target: tuple[str, str, str | None], known: Iterable[str]) -> str | None:
    """The known module that an import refers to, either the module or a name in it."""
    _, module, name = target
    whole = f"{module}.{name}" if name else module
    return next((each for each in (whole, module) if each in known), None)


def only_used_by(module: str, excluded: set[str]) -> list[str]:
    """Modules without methods that only this module imports, directly or through each other."""
    imported = _imported()
    own = {type(method).__module__ for method in methods.METHODS.values()}
    private: list[str] = []
    waiting = True
    while waiting:
        inside = {module, *private}
        reached = {name for each in inside for name in imported.get(each, ())}
        waiting = False
        for name in sorted(reached - inside - own - excluded):
            users = {each for each, names in imported.items() if name in names}
            if users <= inside:
                private.append(name)
                waiting = True
    return sorted(private, key=lambda name: len(_below(name)))  # dependencies come first


def _below(module: str) -> set[str]:
    """All modules that a module imports, directly or indirectly."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        new = _imported().get(waiting.pop(), frozenset()) - reached
        reached |= new
        waiting += new
    return reached


@dataclass(frozen=True)
class Statement:
    """A definition or other statement of a module, with the comments above it."""

    text: str
    defines: frozenset[str]
    uses: frozenset[str]


@dataclass
class Source:
    """A parsed module."""

    name: str
    docstring: str = ""
    imports: Imports = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    local: frozenset[str] = frozenset()
    """Names bound inside functions and classes."""

    @property
    def defines(self) -> set[str]:
        return {name for each in self.statements for name in each.defines}


def parsed(name: str, text: str) -> Source:
    source = Source(name)
    lines = text.splitlines()
    before = 0
    for place, node in enumerate(ast.parse(text).body):
        end = node.end_lineno or node.lineno
        here, before = "\n".join(lines[before:end]), end
        if isinstance(node, ast.Import | ast.ImportFrom):
            source.imports |= {local: (module, name) for local, module, name in _targets(node)}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if place == 0:
                source.docstring = here
            elif source.statements:  # the docstring of an assignment
                last = source.statements[-1]
                source.statements[-1] = dataclasses.replace(last, text=f"{last.text}\n{here}")
        else:
            uses = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            source.statements.append(Statement(here, _defined(node), frozenset(uses)))
            source.local |= _bound(node) - _defined(node)
    return source


def _defined(node: ast.stmt) -> frozenset[str]:
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            return frozenset({node.name})
        case ast.Assign():
            names = [
                each.id for t in node.targets for each in ast.walk(t) if isinstance(each, ast.Name)
            ]
            return frozenset(names)
        case ast.AnnAssign(target=ast.Name(id=name)):
            return frozenset({name})
        case _:
            return frozenset()


def _bound(node: ast.stmt) -> frozenset[str]:
    names = set()
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
    return frozenset(names)


def edited(source: str, edits: Iterable[tuple[ast.expr, str]]) -> str:
    """The source with expressions replaced; offsets in a syntax tree count UTF-8 bytes."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    text = b"".join(lines)
    for node, new in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset))[::-1]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        text = text[:start] + new.encode() + text[end:]
    return text.decode()
