"""Traces units through a module: the rows, channels and columns that belong to each.

A unit is one output of a convolution or a linear layer. It passes through every operation that maps
zero to zero; where tensors are added, units at the same position become one. An operation that
cannot be traced fixes the units that reach it: they are never removed, and the reason is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from gossamer.submodels.flow import Attended, Call, Flow, Stuck, Traced, Units, Wiring
from gossamer.submodels.graph import watch_parts
from gossamer.submodels.recorder import Calls
from gossamer.task.layout import Layout

LAYERS = ("conv", "linear", "attention", "embedding")
"""Kinds of tensors whose rows or columns may be units."""
Rule = Callable[["Books", Call], Traced]


@dataclass
class Books:
    """The state of a trace."""

    module: nn.Module
    layout: Layout
    rows: dict[str, Units] = field(default_factory=dict)
    columns: dict[str, Units] = field(default_factory=dict)
    tables: dict[str, Units] = field(default_factory=dict)
    quiet: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    widths: dict[str, Units] = field(default_factory=dict)
    norms: dict[str, int] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)
    stuck: list[tuple[Units, str]] = field(default_factory=list)
    closed: dict[str, str] = field(default_factory=dict)
    """Modules that could not be traced into, with the reason."""
    direct: list[str] = field(default_factory=list)
    """Tensors that the forward pass reads without calling their module."""
    repeated: set[str] = field(default_factory=set)
    """Weights of layers that are called more than once."""
    parents: list[int] = field(default_factory=list)

    def fresh(self, count: int) -> Units:
        """New units."""
        first = len(self.parents)
        self.parents.extend(range(first, first + count))
        return np.arange(first, first + count)

    def given(self, count: int) -> Units:
        """Units that are never removed, for inputs without units."""
        units = self.fresh(count)
        self.stuck.append((units, "they are one with inputs that stay"))
        return units

    def has(self, name: str) -> bool:
        """Whether a tensor is a parameter or buffer of its own."""
        return name in self.layout.leaves or name in self.layout.constants

    def fix(self, units: Units, names: Iterable[str]) -> None:
        """Keeps units that a frozen tensor belongs to: nothing can set it to zero."""
        for name in names:
            if name in self.layout.constants:
                self.stuck.append((units, f"{name!r} is frozen"))

    def root(self, unit: int) -> int:
        """The representative of a set of united units."""
        while self.parents[unit] != unit:
            self.parents[unit] = self.parents[self.parents[unit]]
            unit = self.parents[unit]
        return unit

    def unite(self, left: Units, right: Units) -> None:
        """Unites units at the same position: both are kept or both are removed."""
        for a, b in zip(left.tolist(), right.tolist(), strict=True):
            self.parents[self.root(a)] = self.root(b)

    def bind(self, store: dict[str, Units], name: str, units: Units) -> Units:
        """Records the units of rows or columns; those of a module called twice are united."""
        if name in store:
            self.unite(store[name], units)
        return store.setdefault(name, units)

    def follow(self, call: Call, rule: Rule) -> Traced:
        """Applies a rule; if it fails, all input units are fixed."""
        inputs = [
            source
            for node in call.node.all_input_nodes
            if (source := call.flows.get(node)) is not None
        ]
        try:
            # Without input units only a layer, which creates some, needs its rule.
            return rule(self, call) if inputs or call.part is not None else None
        except Stuck as reason:
            if call.part is not None:
                self.closed.setdefault(call.path, str(reason))
            for source in inputs:
                flow = source if isinstance(source, Flow) else source.flow
                self.stuck.append((flow.units, str(reason)))
                if isinstance(source, Attended):
                    self.stuck.append((source.heads, str(reason)))
            return None

    def close(self) -> Wiring:
        """Renumbers united units, and determines which of them are removable."""
        for name in self.direct:
            for store in (self.rows, self.columns, self.tables):
                if name in store:
                    reason = f"the forward pass takes {name!r} without its module"
                    self.stuck.append((store[name], reason))
        roots = [self.root(unit) for unit in range(len(self.parents))]
        names, places = np.unique(np.array(roots, dtype=np.int64), return_inverse=True)
        reasons: dict[int, str] = {}
        for units, reason in self.stuck:
            for unit in set(places[units].tolist()):
                reasons.setdefault(unit, reason)
        rows = {name: places[units] for name, units in self.rows.items()}
        tables = {name: places[units] for name, units in self.tables.items()}
        outputs = {name: rows[name] if name in rows else tables[name] for name in self.layers}
        fixed = self._fixed(outputs, reasons)
        removable = np.zeros(len(names), dtype=np.bool_)
        for units in outputs.values():
            removable[units] = True
        removable[list(reasons)] = False
        return Wiring(
            rows,
            {name: places[units] for name, units in self.columns.items()},
            tables,
            self.quiet,
            {name: places[units] for name, units in self.widths.items()},
            self.norms,
            tuple(self.layers),
            removable,
            fixed,
        )

    def _fixed(self, layers: dict[str, Units], reasons: dict[int, str]) -> dict[str, str]:
        """Fixes whole layers if one of their units is fixed, and the layers tied to them."""
        fixed: dict[str, str] = {}
        while True:
            news = {
                name: next(reasons[unit] for unit in units.tolist() if unit in reasons)
                for name, units in layers.items()
                if name not in fixed and not reasons.keys().isdisjoint(units.tolist())
            }
            if not news:
                break
            for name, reason in news.items():
                reasons.update(dict.fromkeys(set(layers[name].tolist()) - reasons.keys(), reason))
            fixed.update(news)
        for leaf in self.layout.leaves.values():
            if leaf.kind in LAYERS and len(leaf.shape) > 1 and leaf.name not in layers:
                fixed[leaf.name] = self._why(leaf.name)
        return fixed

    def _why(self, name: str) -> str:
        path = name
        while path:
            path = path.rpartition(".")[0]
            if path in self.closed:
                return self.closed[path]
        return "it is no layer that the forward pass calls"


def follow(
    module: nn.Module,
    layout: Layout,
    modules: dict[type[nn.Module], Rule],
    functions: dict[object, Rule],
) -> Wiring:
    """The wiring of a module, by rules for its layers and for functions on tensors.

    Where its calls can be watched in two ways, it is the one in which more units are removable.
    """
    ways = watch_parts(module, layout.input.blank(2), lambda part: type(part) in modules)
    wirings = [_wiring(Books(module, layout), calls, modules, functions) for calls in ways]
    return max(wirings, key=lambda wiring: int(wiring.removable.sum()))


def _wiring(
    books: Books,
    calls: Calls,
    modules: dict[type[nn.Module], Rule],
    functions: dict[object, Rule],
) -> Wiring:
    samples = dict(calls)
    flows: dict[fx.Node, Traced] = {}
    for node, value in calls:
        path = str(node.target) if node.op == "call_module" else ""
        part = books.module.get_submodule(path) if node.op == "call_module" else None
        call = Call(node, _label(node, part), path, part, value, samples, flows)
        if node.op == "get_attr":
            books.direct.append(str(node.target))
        if node.op == "output":
            rule: Rule = _output
        elif part is not None:
            rule = modules.get(type(part), _unknown)
        else:
            rule = functions.get(node.target, _unknown)
        flow = books.follow(call, rule)
        if isinstance(flow, Flow):
            assert isinstance(value, Tensor) and value.shape[flow.axis] == len(flow.units)
        flows[node] = flow
    return books.close()


def _label(node: fx.Node, part: nn.Module | None) -> str:
    if part is not None:
        return f"{type(part).__name__} {str(node.target)!r}"
    return f"{getattr(node.target, '__name__', node.target)}()"


def _output(books: Books, call: Call) -> Traced:
    raise Stuck("they are the model's output")


def _unknown(books: Books, call: Call) -> Traced:
    raise Stuck(f"they feed {call.label}, which cannot be cut")


def names_of(path: str, leaves: Iterable[str]) -> list[str]:
    """The full names of a module's own tensors."""
    return [f"{path}.{leaf}" if path else leaf for leaf in leaves]
