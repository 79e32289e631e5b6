"""A smaller model: which part of every tensor is in it, and how tensors move between the two."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gossamer.core import Masks, Params
from gossamer.submodels.flow import Units
from gossamer.submodels.small import shrink
from gossamer.task import Task
from gossamer.task.layout import Layout, Leaf

if TYPE_CHECKING:
    from gossamer.submodels.structure import Structure

Keep = Mapping[str, Tensor]
"""Units to keep, by the name of a layer's weight; `fc.weight:in`: inputs of a linear layer."""
INPUTS = ":in"
Place = tuple[Tensor | None, Tensor | None]
"""Rows and columns of a tensor; None: all of them."""
REMEMBERED = 4
"""Size of the caches of sub-model tasks (per task) and of structures (per module)."""
_lock = threading.Lock()
_tasks: WeakKeyDictionary[Task, OrderedDict[Hashable, Task]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Cut:
    """A smaller model: which part of every tensor is in it."""

    structure: Structure
    gone: NDArray[np.bool_]
    chosen: Mapping[str, NDArray[np.bool_]]
    """Inputs that linear layers keep, where not all."""

    @cached_property
    def keep(self) -> Masks:
        """The units that each layer keeps, and the inputs of layers that drop some."""
        wiring = self.structure.wiring
        rows = {name: self._stays(wiring.distinct(name)) for name in self.structure.units}
        inputs = {f"{name}{INPUTS}": torch.from_numpy(self._columns(name)) for name in self.chosen}
        return rows | inputs

    def take(self, params: Params) -> Params:
        """The sub-model's tensors: contiguous copies under the same names."""
        return {name: self._take(name, tensor) for name, tensor in params.items()}

    def give(self, small: Params, into: Params) -> Params:
        """The inverse of `take`: a copy of the full tensors `into` with the small ones inserted."""
        filled = {name: tensor.detach().clone() for name, tensor in into.items()}
        for name, tensor in small.items():
            if name not in filled:
                raise ValueError(f"there is no full tensor {name!r} to put the small one into")
            rows, columns = self._indices.get(name, (None, None))
            full = filled[name]
            if rows is None and columns is None:
                full.copy_(tensor)
                continue
            row = torch.arange(len(full)) if rows is None else rows
            place = (row,) if columns is None else (row[:, None], columns)
            full[tuple(each.to(full.device) for each in place)] = tensor.to(full)
        return filled

    def within(self, larger: Cut) -> dict[str, Place]:
        """Where the tensors of this sub-model are in those of a larger one that contains it."""
        names = {**self._indices, **larger._indices}
        pairs = {
            name: zip(
                larger._indices.get(name, (None, None)),
                self._indices.get(name, (None, None)),
                strict=True,
            )
            for name in names
        }
        places = {name: [_inside(*each) for each in pair] for name, pair in pairs.items()}
        return {name: (rows, columns) for name, (rows, columns) in places.items()}

    def silence(self, params: Params) -> Params:
        """Full tensors in which removed units output zeros."""
        silenced = {name: tensor.detach().clone() for name, tensor in params.items()}
        for name, units in self.structure.wiring.rows.items():
            if name in silenced and self.structure.layout[name].kind != "buffer":
                silenced[name][~self._stays(units).to(silenced[name].device)] = 0
        for name, units in self.structure.wiring.tables.items():
            if name in silenced:
                silenced[name][:, ~self._stays(units).to(silenced[name].device)] = 0
        for name, flags in self.chosen.items():
            if name in silenced:
                silenced[name][:, ~torch.from_numpy(flags).to(silenced[name].device)] = 0
        return silenced

    def inputs(self) -> Masks:
        """By tensor that loses some of its inputs: those that the sub-model has."""
        wiring = self.structure.wiring
        kept = {name: self._columns(name) for name in wiring.columns}
        return {name: torch.from_numpy(each) for name, each in kept.items() if not each.all()}

    def masks(self) -> Masks:
        """Masks of the full shape: which weights of each prunable tensor the sub-model has."""
        layout = self.structure.layout
        outside = {
            name: torch.zeros(layout[name].shape, dtype=torch.bool) for name in layout.prunable
        }
        inside = {name: torch.ones(self.layout[name].shape, dtype=torch.bool) for name in outside}
        return self.give(inside, outside)

    @cached_property
    def layout(self) -> Layout:
        """The sub-model's layout, equal to that of a traced one."""
        old = self.structure.layout
        leaves = {name: self._leaf(leaf) for name, leaf in old.leaves.items()}
        constants = {name: self._leaf(leaf) for name, leaf in old.constants.items()}
        return replace(old, leaves=leaves, constants=constants)

    def task(self, task: Task) -> Task:
        """A task to train the sub-model, with criterion, precision and device of `task`.

        Cached for the next cut of the same shapes; like any task, it serves one thread at a time.
        """
        with _lock:
            known = _tasks.setdefault(task, OrderedDict())
            cached = known.get(self._form)
            if cached is not None:
                known.move_to_end(self._form)
                return cached
        small = replace(task, module=self._module(task), layout=self.layout)
        with _lock:
            known[self._form] = small
            while len(known) > REMEMBERED:
                known.popitem(last=False)
        return small

    def _module(self, task: Task) -> nn.Module:
        module, wiring = task.module, self.structure.wiring
        state = dict(module.named_parameters()) | dict(module.named_buffers()) | task.constants
        names = dict.fromkeys([*self._indices, *task.constants])
        return shrink(
            module,
            self.take({name: state[name].detach() for name in names}),
            {path: int((~self.gone[units]).sum()) for path, units in wiring.widths.items()},
            self._norms,
            self._inputs,
        )

    @cached_property
    def _norms(self) -> dict[str, tuple[int, ...]]:
        """Channels left in each group of group norms that lose some, by path."""
        wiring, norms = self.structure.wiring, {}
        for path, groups in wiring.norms.items():
            stays = ~self.gone[wiring.rows[f"{path}.weight"]]
            if not stays.all():
                norms[path] = tuple(stays.reshape(groups, -1).sum(1).tolist())
        return norms

    @cached_property
    def _inputs(self) -> dict[str, Tensor]:
        """Indices of the features that linear layers keep, among those that reach them, by path."""
        inputs = {}
        for name, flags in self.chosen.items():
            present = flags[~self.gone[self.structure.wiring.columns[name]]]
            if not present.all():
                inputs[name.rpartition(".")[0]] = torch.from_numpy(np.flatnonzero(present))
        return inputs

    @cached_property
    def _form(self) -> Hashable:
        """Everything that the small module depends on."""
        shapes = tuple(leaf.shape for leaf in self.layout.leaves.values())
        inputs = tuple((path, tuple(index.tolist())) for path, index in self._inputs.items())
        # Parts of frozen tensors are in the module itself, and so are not only shapes.
        frozen = self.gone.tobytes() if self.structure.layout.constants else b""
        return shapes, inputs, tuple(self._norms.items()), frozen

    @cached_property
    def _indices(self) -> dict[str, Place]:
        """Rows and columns to keep of each tensor that loses some; None: all of them."""
        wiring = self.structure.wiring
        names = dict.fromkeys([*wiring.rows, *wiring.columns])
        indices = {
            name: (
                _places(~self.gone[wiring.rows[name]]) if name in wiring.rows else None,
                _places(self._columns(name)) if name in wiring.columns else None,
            )
            for name in names
        }
        for name, units in wiring.tables.items():
            indices[name] = (None, _places(~self.gone[units]))
        return {name: pair for name, pair in indices.items() if any(i is not None for i in pair)}

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
        # Every remaining weight is used as often as before: once per output position.
        macs = leaf.macs * count // leaf.count
        return replace(leaf, shape=shape, fan_in=fan_in, rows=count // fan_in, macs=macs)


def _places(stays: NDArray[np.bool_]) -> Tensor | None:
    return None if stays.all() else torch.from_numpy(np.flatnonzero(stays))


def _inside(larger: Tensor | None, smaller: Tensor | None) -> Tensor | None:
    """Where some indices are among others that include them; None stands for all indices."""
    if smaller is None or larger is None:
        return smaller
    return torch.searchsorted(larger, smaller) if len(smaller) < len(larger) else None
