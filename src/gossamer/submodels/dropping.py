"""Random sub-models: the units to drop from each layer, drawn identically on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from gossamer.fields import option
from gossamer.submodels.cut import INPUTS, Cut
from gossamer.submodels.structure import Structure, trace
from gossamer.task import Task
from gossamer.wire import Drawn
from gossamer.wire.drawn import Shapes


class DropRates(Protocol):
    """The fraction that is dropped, by the name of a layer's units or inputs."""

    def rates(self, structure: Structure) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Dropping:
    """The fraction of the inputs of every layer that is dropped."""

    conv_rate: float = option(0.1, "fraction of filters to drop", least=0, below=1)
    linear_rate: float = option(
        0.5, "fraction of neurons, or of inputs of linear layers, to drop", least=0, below=1
    )
    edge_rate: float = option(
        0.01, "fraction of inputs of the first and the last layer to drop", least=0, below=1
    )

    def rates(self, structure: Structure) -> dict[str, float]:
        """Rates by the layer that reads an input: for units if possible, else for single inputs.

        Units that several layers read are dropped at the lowest of their rates.
        """
        wiring, rates = structure.wiring, dict[str, float]()
        kinds = {name: structure.layout[name].kind for name in wiring.columns}
        order = [name for name in wiring.layers if kinds.get(name) in ("conv", "linear")]
        for name in order:
            edge = name in (order[0], order[-1])
            rate = self.edge_rate if edge else self.rate(structure, name)
            columns = wiring.columns[name]
            feeding = [
                each for each in separate(structure) if np.isin(wiring.rows[each], columns).any()
            ]
            linear = structure.layout[name].kind == "linear"
            single = linear and len(np.unique(columns)) == len(columns)
            if linear and not (feeding and single):
                if name in structure.layout.leaves:  # frozen weights stay whole
                    rates[f"{name}{INPUTS}"] = rate
                continue
            for each in feeding:
                rates[each] = min(rate, rates.get(each, rate))
        return rates

    def rate(self, structure: Structure, name: str) -> float:
        """The rate of a layer that is not at the edge, by its kind."""
        linear = structure.layout[name].kind == "linear"
        return self.linear_rate if linear else self.conv_rate


def plan(dropping: DropRates, structure: Structure) -> dict[str, int]:
    """The number of units or inputs that each layer keeps; layers not listed keep all."""
    rates = dropping.rates(structure)
    counts = {name: _size(structure, name) for name in rates}
    dropped = {name: int(Fraction(repr(rate)) * counts[name]) for name, rate in rates.items()}
    return {name: counts[name] - drop for name, drop in dropped.items() if drop}


def cut(dropping: DropRates, task: Task, seed: int) -> Cut:
    """The sub-model of a seed."""
    structure = trace(task)
    kept = plan(dropping, structure)
    sizes: Shapes = {name: (_size(structure, name),) for name in kept}
    return structure.cut(Drawn(seed, kept, sizes).masks())


def separate(structure: Structure) -> list[str]:
    """Convolutions and linear layers whose units are not added to those of others.

    Residual streams are not dropped, and neither are heads and embeddings.
    """
    rows, layout = structure.wiring.rows, structure.layout
    return [
        name
        for name in structure.units
        if not structure.tied[name] and name in rows and layout[name].kind in ("conv", "linear")
    ]


def _size(structure: Structure, name: str) -> int:
    if name.endswith(INPUTS):
        return len(structure.wiring.columns[name.removesuffix(INPUTS)])
    return structure.units[name]
