"""Which pruned groups of a model may be taken out of it, so that training the rest is exact.

A pruned filter has no weights left, but it may have a bias, or a norm behind it, and then says the
same thing to every example. It can go if that thing is zero and stays zero: where bias and norm are
pruned with it, and where a ReLU cuts off a bias that is not positive, which gets no gradient then.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from gossamer.core import Masks, Params
from gossamer.sparsity.hard_concrete import Groups
from gossamer.submodels import INPUTS, Cut, Structure, trace
from gossamer.submodels.graph import watch
from gossamer.submodels.rules import MODULES
from gossamer.task import Task
from gossamer.task.layout import Layout

_RELUS = (nn.ReLU, nn.ReLU6)
_RELU_CALLS = (torch.relu, functional.relu, functional.relu6, "relu", "relu_")
_KEEP_SIGNS = (
    *(nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
)
"""What makes nothing positive of numbers that are not."""

_lock = threading.Lock()
_known: WeakKeyDictionary[nn.Module, tuple[Layout, dict[str, Behind]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Behind:
    """What follows a layer's weight for each of its outputs."""

    beside: tuple[str, ...]
    """Its bias, and scale and shift of a norm that comes next."""
    cut_off: bool
    """Whether a ReLU comes before anything that could tell one negative number from another."""


def behind(task: Task) -> dict[str, Behind]:
    """Of every convolution and linear layer that is called once, by the name of its weight."""
    with _lock:
        known = _known.get(task.module)
    if known is None or known[0] is not task.layout:
        known = task.layout, _behind(task)
        with _lock:
            _known[task.module] = known
    return known[1]


def beside(task: Task, groups: Groups) -> dict[str, tuple[str, ...]]:
    """What belongs to filters and neurons apart from their weights, by the name of the weight."""
    follows = behind(task)
    rows = [name for name, axis in zip(groups.names, groups.axes, strict=True) if axis == 0]
    return {name: follows[name].beside for name in rows if name in follows}


def pruned_beside(task: Task, groups: Groups, alive: Masks) -> Masks:
    """Which biases, scales and shifts are left when they go with their groups."""
    found: Masks = {}
    for name, names in beside(task, groups).items():
        for each in names:
            found[each] = alive[name] & found[each] if each in found else alive[name]
    return found


def plan(task: Task, groups: Groups, alive: Masks, params: Params, held: Masks) -> Cut | None:
    """The part of a model that is worth training; None if that is all of it.

    `held` is false where biases and norms are zero for good.
    """
    if None in groups.axes or all(bool(part.all()) for part in alive.values()):
        return None
    try:
        structure = trace(task)
    except ValueError:  # a model that cannot be followed is trained as a whole
        return None
    stays = _stays(task, structure, groups, alive, params, held)
    keep = {}
    for name, axis in zip(groups.names, groups.axes, strict=True):
        if axis == 1 and structure.wiring.columns.get(name) is not None:
            keep[f"{name}{INPUTS}"] = _some(alive[name])
        elif axis == 0 and name in structure.units:
            units = torch.from_numpy(stays[structure.wiring.rows[name]])
            keep[name] = _some(alive[name] | units)
    if all(bool(flags.all()) for flags in keep.values()):
        return None
    return structure.cut(keep)


def _stays(
    task: Task,
    structure: Structure,
    groups: Groups,
    alive: Masks,
    params: Params,
    held: Masks,
) -> np.ndarray:
    """By unit: whether something beside its weights can be heard of it, or listens to it."""
    wiring = structure.wiring
    found = np.zeros(len(wiring.removable), np.bool_)
    silent = _cut_off(task, groups, alive, params)
    for name, units in wiring.rows.items():
        leaf = structure.layout[name]
        if name in wiring.layers or leaf.kind == "buffer":
            continue
        heard = torch.ones(leaf.shape, dtype=torch.bool)
        for quiet in (held, silent):
            heard &= quiet.get(name, heard)
        found[units[heard.numpy()]] = True
    for name, axis in zip(groups.names, groups.axes, strict=True):
        if axis == 1 and name in wiring.columns:
            # Its gate is trained as long as it is open, whatever comes through it.
            found[wiring.columns[name][_some(alive[name]).numpy()]] = True
    return found


def _cut_off(task: Task, groups: Groups, alive: Masks, params: Params) -> Masks:
    """False where the bias of a pruned group never passes the ReLU behind it."""
    found: Masks = {}
    follows = behind(task)
    for name, axis in zip(groups.names, groups.axes, strict=True):
        known = follows.get(name)
        if axis == 0 and known and known.cut_off and len(known.beside) == 1:
            (bias,) = known.beside
            found[bias] = alive[name] | (params[bias].cpu() > 0)
    return found


def _some(flags: Tensor) -> Tensor:
    """At least one unit, since nothing passes a layer without any."""
    if bool(flags.any()):
        return flags
    first = torch.zeros_like(flags)
    first[0] = True
    return first


# what follows what --------------------------------------------------------------------------------


def _behind(task: Task) -> dict[str, Behind]:
    layout = task.layout
    calls = watch(task.module, layout.input.blank(2), lambda part: type(part) in MODULES)
    parts = {
        node: task.module.get_submodule(str(node.target))
        for node, _ in calls
        if node.op == "call_module"
    }
    times = [id(part) for part in parts.values()]
    found = {}
    for node, part in parts.items():
        weight = f"{node.target}.weight"
        layer = isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
        if not layer or weight not in layout.leaves or times.count(id(part)) > 1:
            continue
        names = [f"{node.target}.bias"]
        users = list(node.users)
        after = parts.get(users[0]) if len(users) == 1 else None
        if isinstance(after, _NormBase | nn.GroupNorm) and times.count(id(after)) == 1:
            names += [f"{users[0].target}.{leaf}" for leaf in ("weight", "bias")]
        beside = tuple(name for name in names if name in layout.parameters)
        found[weight] = Behind(beside, _reaches_relu(node, parts))
    return found


def _reaches_relu(node: fx.Node, parts: Mapping[fx.Node, nn.Module]) -> bool:
    """Whether all that is made of a result goes through a ReLU first."""
    if not node.users:
        return False
    for user in node.users:
        part = parts.get(user)
        if isinstance(part, _RELUS) or (part is None and user.target in _RELU_CALLS):
            continue
        if not (isinstance(part, _KEEP_SIGNS) and _reaches_relu(user, parts)):
            return False
    return True
