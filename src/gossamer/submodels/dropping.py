"""Random sub-models: the units to drop from each layer, drawn identically on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gossamer.fields import option
from gossamer.submodels.cut import INPUTS, Cut
from gossamer.submodels.structure import Structure, trace
from gossamer.task import Task
from gossamer.task.layout import did_you_mean
from gossamer.wire import Drawn
from gossamer.wire.kinds import Shapes

WEIGHT = ".weight"


@dataclass(frozen=True)
class Dropping:
    """The fraction of units that is dropped, layer by layer."""

    axes: str = option(
        "inputs",
        "what is dropped: inputs of all layers, their units, or a list: conv1.out=0.2,fc1.in",
    )
    conv_rate: float = option(0.1, "fraction of filters to drop", least=0, below=1)
    linear_rate: float = option(
        0.5, "fraction of neurons, or of inputs of linear layers, to drop", least=0, below=1
    )
    edge_rate: float = option(
        0.01, "fraction of inputs of the first and the last layer to drop", least=0, below=1
    )

    def cut(self, task: Task, seed: int) -> Cut:
        """The sub-model of a seed."""
        structure = trace(task)
        plan = self.plan(structure)
        sizes: Shapes = {name: (_size(structure, name),) for name in plan}
        return structure.cut(Drawn(seed, plan, sizes).masks())

    def plan(self, structure: Structure) -> dict[str, int]:
        """The number of units or inputs that each layer keeps; layers not listed keep all."""
        match self.axes.strip():
            case "inputs":
                rates = self._inputs(structure)
            case "units":
                rates = {name: self._rate(structure, name) for name in _apart(structure)}
            case _:
                rates = self._list(structure)
        counts = {name: _size(structure, name) for name in rates}
        dropped = {name: int(Fraction(repr(rate)) * counts[name]) for name, rate in rates.items()}
        return {name: counts[name] - drop for name, drop in dropped.items() if drop}

    def _inputs(self, structure: Structure) -> dict[str, float]:
        """Rates by the layer that reads an input: for units if possible, else for single inputs.

        Units that several layers read are dropped at the lowest of their rates.
        """
        wiring, rates = structure.wiring, dict[str, float]()
        order = [name for name in wiring.layers if name in wiring.columns]
        for name in order:
            edge = name in (order[0], order[-1])
            rate = self.edge_rate if edge else self._rate(structure, name)
            columns = wiring.columns[name]
            feeding = [
                each for each in _apart(structure) if np.isin(wiring.rows[each], columns).any()
            ]
            linear = structure.layout[name].kind == "linear"
            single = linear and len(np.unique(columns)) == len(columns)
            if linear and not (feeding and single):
                rates[f"{name}{INPUTS}"] = rate
                continue
            for each in feeding:
                rates[each] = min(rate, rates.get(each, rate))
        return rates

    def _rate(self, structure: Structure, name: str) -> float:
        linear = structure.layout[name].kind == "linear"
        return self.linear_rate if linear else self.conv_rate

    def _list(self, structure: Structure) -> dict[str, float]:
        listed = list(self._entries(structure))
        rates = dict(listed)
        if not listed:
            raise ValueError("--axes is empty; use inputs, units, or a list such as conv1.out")
        if len(rates) < len(listed):
            raise ValueError(f"--axes {self.axes}: every layer has at most one .in and one .out")
        return rates

    def _entries(self, structure: Structure) -> Iterator[tuple[str, float]]:
        """The entries of a list such as `conv1.out, fc1.in=0.5`."""
        for entry in filter(None, (part.strip() for part in self.axes.split(","))):
            place, _, text = entry.partition("=")
            layer, _, side = place.strip().rpartition(".")
            if side not in ("in", "out"):
                raise ValueError(
                    f"--axes is inputs, units, or a list with entries such as conv1.out or "
                    f"fc1.in=0.5, not {entry!r}"
                )
            name = f"{layer}{WEIGHT}" if layer else WEIGHT[1:]
            _check(structure, name, entry, side)
            yield (
                f"{name}{INPUTS}" if side == "in" else name,
                _number(entry, text) if text else self._rate(structure, name),
            )


def _apart(structure: Structure) -> list[str]:
    """Layers whose units are not added to those of others: residual streams are not dropped."""
    return [name for name in structure.units if not structure.tied[name]]


def _size(structure: Structure, name: str) -> int:
    if name.endswith(INPUTS):
        return len(structure.wiring.columns[name.removesuffix(INPUTS)])
    return structure.units[name]


def _number(entry: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < 1:
        raise ValueError(f"--axes: {entry!r} needs a rate of at least 0 and below 1")
    return rate


def _check(structure: Structure, name: str, entry: str, side: str) -> None:
    """Raises an error with the reason if an entry cannot be dropped."""
    layout = structure.layout
    layers = [n for n, leaf in layout.leaves.items() if leaf.kind in ("conv", "linear")]
    if name not in layers:
        known = [each.removesuffix(WEIGHT) for each in layers]
        near = did_you_mean(name.removesuffix(WEIGHT), known)
        raise ValueError(
            f"--axes: no layer of this model is called {name.removesuffix(WEIGHT)!r}{near} "
            f"it has {', '.join(known)}"
        )
    if side == "in" and (layout[name].kind != "linear" or name not in structure.wiring.columns):
        raise ValueError(
            f"--axes {entry}: single inputs can be dropped in linear layers only; name the layer "
            f"before it, with .out"
        )
    if side == "out" and name in structure.fixed:
        raise ValueError(f"--axes {entry}: its units stay, because {structure.fixed[name]}")
    if side == "out" and structure.tied[name]:
        raise ValueError(
            f"--axes {entry}: its units are added to those of {structure.tied[name][0]}, and units "
            f"of such sums cannot be dropped; name layers inside blocks"
        )
