"""Which units a model has, which of them go together, and the smaller models left without some."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gossamer.core import Masks, Params
from gossamer.submodels.follow import Units, Wiring, follow
from gossamer.submodels.rules import FUNCTIONS, MODULES
from gossamer.submodels.small import shrink
from gossamer.task import Task
from gossamer.task.layout import Layout, Leaf, did_you_mean

Keep = Mapping[str, Tensor]
"""Units that stay, by the name of a layer's weight; `fc.weight:in` for inputs of a linear layer."""

INPUTS = ":in"
REMEMBERED = 2
"""Small tasks that are kept at hand for each task, and structures for each module."""

_lock = threading.Lock()
_structures: WeakKeyDictionary[nn.Module, list[Structure]] = WeakKeyDictionary()
_tasks: WeakKeyDictionary[Task, OrderedDict[Hashable, Task]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Structure:
    """What feeds what in a model."""

    layout: Layout
    wiring: Wiring

    @cached_property
    def units(self) -> dict[str, int]:
        """Layers that may lose outputs, by the name of their weight, and how many they have."""
        wiring = self.wiring
        return {name: len(wiring.rows[name]) for name in wiring.layers if name not in wiring.fixed}

    @property
    def fixed(self) -> Mapping[str, str]:
        """Why the other convolutions and linear layers lose none: `its units stay, because ...`."""
        return self.wiring.fixed

    @cached_property
    def spaces(self) -> tuple[tuple[str, ...], ...]:
        """The removable layers, those together whose outputs are added to each other."""
        spaces: list[tuple[set[int], list[str]]] = []
        for name in self.units:
            mine = set(self.wiring.rows[name].tolist())
            touching = [space for space in spaces if not mine.isdisjoint(space[0])]
            spaces = [space for space in spaces if space not in touching]
            names = [each for space in touching for each in space[1]]
            spaces.append((mine.union(*(space[0] for space in touching)), [*names, name]))
        order = list(self.units)
        found = [tuple(sorted(names, key=order.index)) for _, names in spaces]
        return tuple(sorted(found, key=lambda names: order.index(names[0])))

    @cached_property
    def tied(self) -> dict[str, tuple[str, ...]]:
        """The layers that a layer shares units with; a block's inner layers have none."""
        return {
            name: tuple(other for other in space if other != name)
            for space in self.spaces
            for name in space
        }

    def cut(self, keep: Keep) -> Cut:
        """A smaller model, of the units in `keep`; a layer that is not named keeps all it can.

        Layers that are added to each other share their units, and a shared unit goes only if all
        of them drop it: while one still writes to it, it is not silent.
        """
        wiring = self.wiring
        asked = {name: self._flags(name, flags) for name, flags in keep.items()}
        gone = wiring.removable.copy()
        for name in wiring.layers:
            gone[wiring.rows[name][asked[name]] if name in asked else wiring.rows[name]] = False
        for name in self.units:
            if gone[wiring.rows[name]].all():
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

    def _flags(self, name: str, flags: Tensor) -> NDArray[np.bool_]:
        """What was asked of a layer, or an error that says why it cannot be."""
        layer = name.removesuffix(INPUTS)
        if name != layer:
            count = len(self.wiring.columns.get(layer, ()))
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


@dataclass(frozen=True, eq=False)
class Cut:
    """A smaller model: which part of every tensor is in it."""

    structure: Structure
    gone: NDArray[np.bool_]
    chosen: Mapping[str, NDArray[np.bool_]]
    """Inputs that linear layers take, where not all."""

    @cached_property
    def keep(self) -> Masks:
        """What each removable layer really keeps, and the inputs of those that leave some out."""
        rows = {
            name: self._stays(self.structure.wiring.rows[name]) for name in self.structure.units
        }
        inputs = {f"{name}{INPUTS}": torch.from_numpy(self._columns(name)) for name in self.chosen}
        return rows | inputs

    def take(self, params: Params) -> Params:
        """The small model's tensors, contiguous copies under the same names."""
        return {name: self._take(name, tensor) for name, tensor in params.items()}

    def give(self, small: Params, into: Params) -> Params:
        """The inverse of `take`: a copy of the full tensors `into` with the small ones in place."""
        found = {name: tensor.detach().clone() for name, tensor in into.items()}
        for name, tensor in small.items():
            if name not in found:
                raise ValueError(f"there is no full tensor {name!r} to put the small one into")
            rows, columns = self._indices.get(name, (None, None))
            full = found[name]
            if rows is None and columns is None:
                full.copy_(tensor)
                continue
            row = torch.arange(len(full)) if rows is None else rows
            place = (row,) if columns is None else (row[:, None], columns)
            full[tuple(each.to(full.device) for each in place)] = tensor.to(full)
        return found

    def silence(self, params: Params) -> Params:
        """Full tensors in which all that was removed computes nothing but zeros."""
        found = {name: tensor.detach().clone() for name, tensor in params.items()}
        for name, units in self.structure.wiring.rows.items():
            if name in found and self.structure.layout[name].kind != "buffer":
                found[name][~self._stays(units).to(found[name].device)] = 0
        for name, flags in self.chosen.items():
            if name in found:
                found[name][:, ~torch.from_numpy(flags).to(found[name].device)] = 0
        return found

    def masks(self) -> Masks:
        """What of each prunable tensor is in the small model, as masks of the full shape."""
        layout = self.structure.layout
        found = {
            name: torch.zeros(layout[name].shape, dtype=torch.bool) for name in layout.prunable
        }
        inside = {name: torch.ones(self.layout[name].shape, dtype=torch.bool) for name in found}
        return self.give(inside, found)

    @cached_property
    def layout(self) -> Layout:
        """The small model's layout, as tracing it would find it."""
        old = self.structure.layout
        return replace(old, leaves={name: self._leaf(leaf) for name, leaf in old.leaves.items()})

    def task(self, task: Task) -> Task:
        """The task of training the small model, with criterion, precision and device of `task`.

        Kept for the next cut of the same shapes; like any task, it is for one thread at a time.
        """
        with _lock:
            known = _tasks.setdefault(task, OrderedDict())
            found = known.get(self._form)
            if found is not None:
                known.move_to_end(self._form)
                return found
        small = Task(
            self._module(task.module), task.criterion, self.layout, task.precision, task.device
        )
        with _lock:
            known[self._form] = small
            while len(known) > REMEMBERED:
                known.popitem(last=False)
        return small

    def _module(self, module: nn.Module) -> nn.Module:
        state = dict(module.named_parameters()) | dict(module.named_buffers())
        wiring = self.structure.wiring
        return shrink(
            module,
            self.take({name: state[name].detach() for name in self._indices}),
            {path: int((~self.gone[units]).sum()) for path, units in wiring.widths.items()},
            self._norms,
            self._inputs,
        )

    @cached_property
    def _norms(self) -> dict[str, tuple[int, ...]]:
        """Channels left in each group of the group norms that lose some, by path."""
        wiring, found = self.structure.wiring, {}
        for path, groups in wiring.norms.items():
            stays = ~self.gone[wiring.rows[f"{path}.weight"]]
            if not stays.all():
                found[path] = tuple(stays.reshape(groups, -1).sum(1).tolist())
        return found

    @cached_property
    def _inputs(self) -> dict[str, Tensor]:
        """Places of the features that linear layers take among those that reach them, by path."""
        found = {}
        for name, flags in self.chosen.items():
            present = flags[~self.gone[self.structure.wiring.columns[name]]]
            if not present.all():
                found[name.rpartition(".")[0]] = torch.from_numpy(np.flatnonzero(present))
        return found

    @cached_property
    def _form(self) -> Hashable:
        """All that the small module depends on."""
        shapes = tuple(leaf.shape for leaf in self.layout.leaves.values())
        inputs = tuple((path, tuple(index.tolist())) for path, index in self._inputs.items())
        return shapes, inputs, tuple(self._norms.items())

    @cached_property
    def _indices(self) -> dict[str, tuple[Tensor | None, Tensor | None]]:
        """Rows and columns that stay of each tensor that loses some; None where all do."""
        wiring = self.structure.wiring
        names = dict.fromkeys([*wiring.rows, *wiring.columns])
        found = {
            name: (
                _places(~self.gone[wiring.rows[name]]) if name in wiring.rows else None,
                _places(self._columns(name)) if name in wiring.columns else None,
            )
            for name in names
        }
        return {name: pair for name, pair in found.items() if any(i is not None for i in pair)}

    def _columns(self, name: str) -> NDArray[np.bool_]:
        stays = ~self.gone[self.structure.wiring.columns[name]]
        return stays & self.chosen[name] if name in self.chosen else stays

    def _stays(self, units: Units) -> Tensor:
        return torch.from_numpy(~self.gone[units])

    def _take(self, name: str, tensor: Tensor) -> Tensor:
        rows, columns = self._indices.get(self.structure.layout[name].name, (None, None))
        tensor = tensor.detach()
        if rows is not None:
            tensor = tensor.index_select(0, rows.to(tensor.device))
        if columns is not None:
            tensor = tensor.index_select(1, columns.to(tensor.device))
        return tensor.clone(memory_format=torch.contiguous_format)

    def _leaf(self, leaf: Leaf) -> Leaf:
        kept = self._indices.get(leaf.name)
        if kept is None:
            return leaf
        shape = tuple(
            size if axis > 1 or (index := kept[axis]) is None else len(index)
            for axis, size in enumerate(leaf.shape)
        )
        count, fan_in = prod(shape), prod(shape[1:]) if len(shape) > 1 else 1
        # Every weight is multiplied as often as before: once for each place of the output.
        macs = leaf.macs * count // leaf.count
        return replace(leaf, shape=shape, fan_in=fan_in, rows=count // fan_in, macs=macs)


def _places(stays: NDArray[np.bool_]) -> Tensor | None:
    return None if stays.all() else torch.from_numpy(np.flatnonzero(stays))


def trace(task: Task) -> Structure:
    """What feeds what in the model of a task; found once for each module.

    Raises ValueError with the module's name where its forward pass cannot be followed.
    """
    with _lock:
        for known in _structures.get(task.module, []):
            if known.layout is task.layout:
                return known
    wiring = follow(task.module, task.layout, MODULES, FUNCTIONS)
    found = Structure(task.layout, wiring)
    with _lock:
        known_here = _structures.setdefault(task.module, [])
        known_here.append(found)
        del known_here[:-REMEMBERED]
    return found
