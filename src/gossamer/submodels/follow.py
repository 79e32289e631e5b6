"""Follows units through a module: every row, channel and column of a tensor that belongs to one.

A unit is one output of a convolution or a linear layer. It passes through whatever leaves zero at
zero; where tensors are added, the units at one place become one. What cannot be followed fixes the
units that reach it: they stay, and the reason is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from gossamer.submodels.graph import watch
from gossamer.task.layout import Layout

Units = NDArray[np.int64]


@dataclass(frozen=True)
class Flow:
    """A tensor with units: the one that each place along `axis` belongs to."""

    units: Units
    axis: int


@dataclass(frozen=True)
class Sizes:
    """The shape of a tensor with units, which the forward pass has asked for."""

    flow: Flow
    rank: int


Found = Flow | Sizes | None


class Stuck(Exception):
    """A call that units cannot be followed through; its text is the reason."""


@dataclass(frozen=True)
class Call:
    """One call in the forward pass, as rules see it."""

    node: fx.Node
    label: str
    path: str
    part: nn.Module | None
    value: Any
    """What it returned for an example."""
    samples: dict[fx.Node, Any]
    flows: dict[fx.Node, Found]

    def sample(self, argument: object) -> Any:
        """What an argument was for an example."""
        return self.samples[argument] if isinstance(argument, fx.Node) else argument

    @property
    def source(self) -> Any:
        """The first argument for an example."""
        return self.sample(self.node.args[0])

    def found(self, argument: object) -> Found:
        """The units of an argument, if it has any."""
        return self.flows.get(argument) if isinstance(argument, fx.Node) else None

    @property
    def flow(self) -> Flow:
        """The units of the first argument, which has to be a tensor with some."""
        found = self.found(self.node.args[0]) if self.node.args else None
        if not isinstance(found, Flow):
            raise Stuck(f"they feed {self.label}, which cannot be cut")
        return found

    def option(self, place: int, name: str, default: Any) -> Any:
        """An argument by its place or its name."""
        if len(self.node.args) > place:
            return self.node.args[place]
        return self.node.kwargs.get(name, default)


Rule = Callable[["Books", Call], Found]


@dataclass(frozen=True)
class Wiring:
    """Which unit every row and column of every tensor belongs to."""

    rows: dict[str, Units]
    columns: dict[str, Units]
    widths: dict[str, Units]
    """What comes out of modules that have no tensor but a number of channels, by their path."""
    norms: dict[str, int]
    """How many groups the group norms have, by their path."""
    layers: tuple[str, ...]
    """The weights whose rows are units."""
    removable: NDArray[np.bool_]
    fixed: dict[str, str]
    """Why the units of a layer cannot be removed, by the name of its weight."""


@dataclass
class Books:
    """What has been found out on the way."""

    module: nn.Module
    layout: Layout
    rows: dict[str, Units] = field(default_factory=dict)
    columns: dict[str, Units] = field(default_factory=dict)
    widths: dict[str, Units] = field(default_factory=dict)
    norms: dict[str, int] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)
    stuck: list[tuple[Units, str]] = field(default_factory=list)
    closed: dict[str, str] = field(default_factory=dict)
    """Modules that nothing could be followed into."""
    direct: list[str] = field(default_factory=list)
    """Tensors that the forward pass takes without their module."""
    parents: list[int] = field(default_factory=list)

    def fresh(self, count: int) -> Units:
        """New units."""
        first = len(self.parents)
        self.parents.extend(range(first, first + count))
        return np.arange(first, first + count)

    def given(self, count: int) -> Units:
        """Units that nothing can remove, for what comes without any."""
        units = self.fresh(count)
        self.stuck.append((units, "they are one with inputs that stay"))
        return units

    def root(self, unit: int) -> int:
        """The unit that stands for all that are one with it."""
        while self.parents[unit] != unit:
            self.parents[unit] = self.parents[self.parents[unit]]
            unit = self.parents[unit]
        return unit

    def unite(self, left: Units, right: Units) -> None:
        """Makes units at one place one: both are kept or both go."""
        for a, b in zip(left.tolist(), right.tolist(), strict=True):
            self.parents[self.root(a)] = self.root(b)

    def bind(self, store: dict[str, Units], name: str, units: Units) -> Units:
        """Notes what a row or column is; a module that is called again must be given the same."""
        if name in store:
            self.unite(store[name], units)
        return store.setdefault(name, units)

    def follow(self, call: Call, rule: Rule) -> Found:
        """Applies a rule; where that fails, all that went in is fixed."""
        inputs = [
            found
            for node in call.node.all_input_nodes
            if (found := call.flows.get(node)) is not None
        ]
        try:
            # Without units only a layer, which makes some, has something to say.
            return rule(self, call) if inputs or call.part is not None else None
        except Stuck as reason:
            if call.part is not None:
                self.closed.setdefault(call.path, str(reason))
            for found in inputs:
                flow = found.flow if isinstance(found, Sizes) else found
                self.stuck.append((flow.units, str(reason)))
            return None

    def close(self) -> Wiring:
        """Numbers the units anew, ties resolved, and says which may go."""
        for name in self.direct:
            for store in (self.rows, self.columns):
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
        fixed = self._fixed({name: rows[name] for name in self.layers}, reasons)
        removable = np.zeros(len(names), dtype=np.bool_)
        for name in self.layers:
            removable[rows[name]] = True
        removable[list(reasons)] = False
        return Wiring(
            rows,
            {name: places[units] for name, units in self.columns.items()},
            {name: places[units] for name, units in self.widths.items()},
            self.norms,
            tuple(self.layers),
            removable,
            fixed,
        )

    def _fixed(self, layers: dict[str, Units], reasons: dict[int, str]) -> dict[str, str]:
        """Fixes a layer as a whole if a unit of it is fixed, and with it the layers tied to it."""
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
            if leaf.kind in ("conv", "linear") and leaf.name not in layers:
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
    """The wiring of a module, by rules for its parts and for functions and methods of tensors."""
    books = Books(module, layout)
    calls = watch(module, layout.input.blank(2), lambda part: type(part) in modules)
    samples = dict(calls)
    flows: dict[fx.Node, Found] = {}
    for node, value in calls:
        path = str(node.target) if node.op == "call_module" else ""
        part = module.get_submodule(path) if node.op == "call_module" else None
        call = Call(node, _label(node, part), path, part, value, samples, flows)
        if node.op == "get_attr":
            books.direct.append(str(node.target))
        if node.op == "output":
            rule: Rule = _output
        elif part is not None:
            rule = modules.get(type(part), _unknown)
        else:
            rule = functions.get(node.target, _unknown)
        found = books.follow(call, rule)
        if isinstance(found, Flow):
            assert isinstance(value, Tensor) and value.shape[found.axis] == len(found.units)
        flows[node] = found
    return books.close()


def _label(node: fx.Node, part: nn.Module | None) -> str:
    if part is not None:
        return f"{type(part).__name__} {str(node.target)!r}"
    return f"{getattr(node.target, '__name__', node.target)}()"


def _output(books: Books, call: Call) -> Found:
    raise Stuck("they are the model's output")


def _unknown(books: Books, call: Call) -> Found:
    raise Stuck(f"they feed {call.label}, which cannot be cut")


def names_of(path: str, leaves: Iterable[str]) -> list[str]:
    """The full names of a module's own tensors."""
    return [f"{path}.{leaf}" if path else leaf for leaf in leaves]
