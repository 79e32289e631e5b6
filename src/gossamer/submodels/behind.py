"""What follows each layer: its bias, a norm after it, and whether a ReLU cuts both off."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from gossamer.core import Masks
from gossamer.sparsity.groups import Groups
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
"""Layers that never turn non-positive numbers into positive ones."""

_lock = threading.Lock()
_known: WeakKeyDictionary[nn.Module, tuple[Layout, dict[str, Behind]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Behind:
    """What follows a layer's weight for each of its outputs."""

    beside: tuple[str, ...]
    """Its bias, and the scale and shift of a norm that comes next."""
    cut_off: bool
    """Whether a ReLU comes before any operation that depends on negative values."""


def behind(task: Task) -> dict[str, Behind]:
    """What follows every convolution and linear layer called once, by the name of its weight."""
    with _lock:
        known = _known.get(task.module)
    if known is None or known[0] is not task.layout:
        known = task.layout, _behind(task)
        with _lock:
            _known[task.module] = known
    return known[1]


def beside(task: Task, groups: Groups) -> dict[str, tuple[str, ...]]:
    """The biases, scales and shifts of filters and neurons, by the name of their weight."""
    follows = behind(task)
    rows = [name for name, axis in zip(groups.names, groups.axes, strict=True) if axis == 0]
    return {name: follows[name].beside for name in rows if name in follows}


def pruned_beside(task: Task, groups: Groups, alive: Masks) -> Masks:
    """Masks of biases, scales and shifts that are pruned with their groups."""
    masks: Masks = {}
    for name, names in beside(task, groups).items():
        for each in names:
            masks[each] = alive[name] & masks[each] if each in masks else alive[name]
    return masks


def _behind(task: Task) -> dict[str, Behind]:
    layout = task.layout
    calls = watch(task.module, layout.input.blank(2), lambda part: type(part) in MODULES)
    parts = {
        node: task.module.get_submodule(str(node.target))
        for node, _ in calls
        if node.op == "call_module"
    }
    times = [id(part) for part in parts.values()]
    layers = {}
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
        layers[weight] = Behind(beside, _reaches_relu(node, parts))
    return layers


def _reaches_relu(node: fx.Node, parts: Mapping[fx.Node, nn.Module]) -> bool:
    """Whether everything computed from a result goes through a ReLU first."""
    if not node.users:
        return False
    for user in node.users:
        part = parts.get(user)
        if isinstance(part, _RELUS) or (part is None and user.target in _RELU_CALLS):
            continue
        if not (isinstance(part, _KEEP_SIGNS) and _reaches_relu(user, parts)):
            return False
    return True
