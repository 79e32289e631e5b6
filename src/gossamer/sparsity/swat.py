"""SWAT: sparse weights in both passes, sparse activations for the gradient of the weights.

Raihan, Aamodt: Sparse weight activation training. NeurIPS 2020. https://arxiv.org/abs/2001.01969

The forward pass uses the largest weights and all inputs. In the backward pass, the gradient of the
inputs uses the same weights; the gradient of the weights uses the largest inputs and is dense, so
that small weights can grow. The package's own kernels compute both passes at the largest weights;
where they do not, torch computes with dense tensors that have zeros. Costs follow from densities.

    sparse = sparse_task(task, 0.1)  # for training; parameters have the names of `task`
    gradients(task, sparse, params, batch, 0.1)
    active(params, task.layout.prunable, 0.1)  # to evaluate with `task` itself
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gossamer.arithmetic.native import InputCut
from gossamer.core import Batch, Masks, Params
from gossamer.sparsity.counts import as_fraction
from gossamer.sparsity.swat_layers import CUTS, UNKNOWN, SparseLayer, above, cut
from gossamer.task import Task
from gossamer.task.layout import Leaf
from gossamer.task.task import Gradients

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_lock = threading.Lock()
_known: WeakKeyDictionary[Task, tuple[float, Task]] = WeakKeyDictionary()


# large weights ------------------------------------------------------------------------------------


def active(params: Params, names: Iterable[str], density: float) -> Params:
    """The model that sparse layers compute with; ties at the cut are kept."""
    return {**params, **{name: _largest(params[name], density) for name in names}}


def masks(params: Params, names: Iterable[str], density: float) -> Masks:
    """The masks of the nonzero weights of these layers."""
    return {name: _largest(params[name], density) != 0 for name in names}


def _largest(values: Tensor, density: float) -> Tensor:
    return above(values, cut(values, density))


# tasks --------------------------------------------------------------------------------------------


def sparse_task(task: Task, density: float) -> Task:
    """The same task with sparse layers where the layout has prunable weights.

    Each of these layers has an additional buffer of two numbers, which stores its cuts.
    The last result for each task is cached; like any task, it serves one thread at a time.
    """
    with _lock:
        known = _known.get(task)
    if known is None or known[0] != density:
        known = density, _made(task, density)
        with _lock:
            _known[task] = known
    return known[1]


def gradients(task: Task, sparse: Task, params: Params, batch: Batch, density: float) -> Gradients:
    """Loss and gradients of a sparse task, by the kernels where they compute its model.

    Args:
        task: the task without sparse layers.
        sparse: the same with them.
        params: all tensors of the sparse task; cuts are found and updated in place.
        batch: the examples.
        density: the share of weights and activations that layers compute with.
    """
    known = {name: params.get(f"{name.rpartition('.')[0]}.{CUTS}") for name in task.layout.prunable}
    held = {name: each for name, each in known.items() if each is not None}
    if len(held) < len(known):  # a layer that is the whole module, or has several names
        return sparse.gradients(params, batch)
    used = {name: params[name] for name in task.layout.leaves}
    for name, both in held.items():
        if both[0] < 0:
            both[0] = cut(params[name], density)
        used[name] = above(params[name], float(both[0]))
    masks = {name: used[name] != 0 for name in held}
    native = task.native_for(masks, batch)
    if native is None:
        return sparse.gradients(params, batch)
    share = as_fraction(density)
    inputs = {name: InputCut(both[1:], share) for name, both in held.items()}
    loss, grads = native.gradients(used, batch, masks, True, inputs)
    return Gradients(torch.tensor(loss), grads)


def cuts(task: Task) -> list[str]:
    """The names of the buffers in which the layers of a sparse task store their cuts."""
    return [name for name in task.layout.buffers if name.rpartition(".")[2] == CUTS]


def forget(task: Task, params: Params) -> None:
    """Resets the cuts of a sparse task in place; the next pass computes new ones."""
    for name in cuts(task):
        params[name].fill_(UNKNOWN)


def _made(task: Task, density: float) -> Task:
    holder = nn.ModuleDict({"module": copy.deepcopy(task.module)})
    state = dict(holder["module"].named_parameters())
    wanted = {id(state[name]): name for name in task.layout.prunable}
    made: dict[int, SparseLayer] = {}
    for parent in list(holder.modules()):
        # Not named_children, which omits the second name of a shared layer.
        for name, child in list(parent._modules.items()):
            if not isinstance(child, _KINDS) or type(child) not in _KINDS:
                continue
            if id(child.weight) in wanted:
                parent._modules[name] = made.setdefault(id(child), SparseLayer(child, density))
    for odd in wanted.keys() - {id(layer.weight) for layer in made.values()}:
        raise ValueError(
            f"{wanted[odd]} is not a weight of a plain convolution or linear layer, and only these "
            "support sparse activations; exclude it with `prunable=`"
        )
    module = holder["module"]
    places = [path for path, part in module.named_modules() if isinstance(part, SparseLayer)]
    names = [f"{path}.{CUTS}" if path else CUTS for path in places]
    leaves = {name: Leaf(name, "buffer", (2,), 1, 2, 0, False, False) for name in names}
    layout = replace(task.layout, leaves={**task.layout.leaves, **leaves})
    return replace(task, module=module, layout=layout, arithmetic="torch")
