"""The units of a model, which of them are tied together, and the sub-models without some."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gossamer.submodels.cut import INPUTS, REMEMBERED, Cut, Keep
from gossamer.submodels.flow import Wiring
from gossamer.submodels.follow import follow
from gossamer.submodels.rules import FUNCTIONS, MODULES
from gossamer.task import Task
from gossamer.task.layout import Layout, did_you_mean

_lock = threading.Lock()
_structures: WeakKeyDictionary[nn.Module, list[Structure]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Structure:
    """The data flow of a model, unit by unit."""

    layout: Layout
    wiring: Wiring

    @cached_property
    def units(self) -> dict[str, int]:
        """Number of units of every layer that may lose some, by the name of its weight."""
        wiring = self.wiring
        return {
            name: len(wiring.distinct(name)) for name in wiring.layers if name not in wiring.fixed
        }

    @property
    def fixed(self) -> Mapping[str, str]:
        """Why other layers cannot lose units: the end of the sentence "its units stay, because"."""
        return self.wiring.fixed

    @cached_property
    def spaces(self) -> tuple[tuple[str, ...], ...]:
        """The removable layers, grouped by whose outputs are added to each other."""
        spaces: list[tuple[set[int], list[str]]] = []
        for name in self.units:
            mine = set(self.wiring.outputs(name).tolist())
            touching = [space for space in spaces if not mine.isdisjoint(space[0])]
            spaces = [space for space in spaces if space not in touching]
            names = [each for space in touching for each in space[1]]
            spaces.append((mine.union(*(space[0] for space in touching)), [*names, name]))
        order = list(self.units)
        groups = [tuple(sorted(names, key=order.index)) for _, names in spaces]
        return tuple(sorted(groups, key=lambda names: order.index(names[0])))

    @cached_property
    def tied(self) -> dict[str, tuple[str, ...]]:
        """The layers that share units with a layer; none for the inner layers of a block."""
        return {
            name: tuple(other for other in space if other != name)
            for space in self.spaces
            for name in space
        }

    def cut(self, keep: Keep) -> Cut:
        """The sub-model of the units in `keep`; a layer that is not named keeps all of its units.

        Layers whose outputs are added share their units. A shared unit is removed only if all of
        them drop it: while one of them writes to it, it is not zero.
        """
        wiring = self.wiring
        asked = {name: self._flags(name, flags) for name, flags in keep.items()}
        gone = wiring.removable.copy()
        for name in wiring.layers:
            stays = wiring.distinct(name)[asked[name]] if name in asked else wiring.outputs(name)
            gone[np.intersect1d(stays, wiring.writing(name))] = False
        for name in self.units:
            if gone[wiring.outputs(name)].all():
                raise ValueError(
                    f"{name} would keep none of its {self.units[name]} units, and nothing would "
                    f"pass; keep at least one"
                )
        chosen = {
            name.removesuffix(INPUTS): flags
            for name, flags in asked.items()
            if name.endswith(INPUTS) and not flags.all()
        }
        for name, flags in chosen.items():
            if not (flags & ~gone[wiring.columns[name]]).any():
                raise ValueError(f"{name} would keep none of its inputs; keep at least one")
        return Cut(self, gone, chosen)

    def by_unit(self, name: str, outputs: Tensor) -> Tensor:
        """Flags of a layer's units from those of its outputs: true if one of them is."""
        place = {unit: at for at, unit in enumerate(self.wiring.distinct(name).tolist())}
        flags = torch.zeros(len(place), dtype=torch.bool)
        for unit, flag in zip(self.wiring.outputs(name).tolist(), outputs.tolist(), strict=True):
            flags[place[unit]] |= flag
        return flags

    def _flags(self, name: str, flags: Tensor) -> NDArray[np.bool_]:
        """The request for one layer, checked."""
        layer = name.removesuffix(INPUTS)
        if name != layer:
            count = len(self.wiring.columns.get(layer, ()))
            if layer in self.layout.constants:
                raise ValueError(f"{layer} is frozen and keeps its inputs; leave it out")
            if not count or self.layout[layer].kind != "linear":
                raise ValueError(
                    f"{layer} cannot leave out single inputs; only linear layers can that units "
                    f"were followed into"
                )
        elif name not in self.wiring.layers and name not in self.fixed:
            raise ValueError(
                f"{name!r} has no units to remove{did_you_mean(name, self.units)} "
                f"of this model {', '.join(self.units) or 'no layer'} may lose some"
            )
        elif name in self.wiring.layers:
            count = len(self.wiring.distinct(name))
        else:
            count = self.layout[name].rows
        if flags.dtype != torch.bool or flags.shape != (count,):
            raise ValueError(
                f"{name} takes {count} truth values, one for each unit, not "
                f"{flags.dtype} of shape {tuple(flags.shape)}"
            )
        if name == layer and name in self.fixed and not flags.all():
            raise ValueError(
                f"the units of {name} cannot be removed, because {self.fixed[name]}; leave it out"
            )
        return flags.cpu().numpy()


def trace(task: Task) -> Structure:
    """The structure of a task's model; traced once for each module.

    Raises:
        ValueError: the forward pass cannot be traced; the message names the module.
    """
    with _lock:
        for known in _structures.get(task.module, []):
            if known.layout is task.layout:
                return known
    wiring = follow(task.module, task.layout, MODULES, FUNCTIONS)
    structure = Structure(task.layout, wiring)
    with _lock:
        known_here = _structures.setdefault(task.module, [])
        known_here.append(structure)
        del known_here[:-REMEMBERED]
    return structure
