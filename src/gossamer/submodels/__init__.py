"""Physically smaller sub-models: dead filters and neurons are removed, not set to zero.

A *unit* is one output of a convolution or a linear layer. Removing it removes its row and bias, its
channel of every norm behind it, and the inputs of every layer that it feeds. The result computes
what the full model computes with that unit at zero, at the cost of the smaller model.

>>> from torch import nn
>>> from gossamer import Key
>>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
>>> task = Task.of(net, torch.zeros(1, 4))
>>> trace(task).units
{'0.weight': 3}
>>> small, params = compact(task, task.init(Key(0)), {"0.weight": torch.tensor([1, 0, 1]).bool()})
>>> [tuple(tensor.shape) for tensor in params.values()]
[(2, 4), (2,), (2, 2), (2,)]
"""

from __future__ import annotations

import torch

from gossamer.core import Params
from gossamer.submodels.cut import INPUTS, Cut, Keep
from gossamer.submodels.needed import needed
from gossamer.submodels.structure import Structure, trace
from gossamer.task import Task

__all__ = ["INPUTS", "Cut", "Keep", "Structure", "compact", "masked", "needed", "restore", "trace"]


def compact(task: Task, params: Params, keep: Keep) -> tuple[Task, Params]:
    """The sub-model of the units in `keep`: a task to train it, and its tensors."""
    cut = trace(task).cut(keep)
    return cut.task(task), cut.take(params)


def restore(task: Task, small: Params, keep: Keep, into: Params | None = None) -> Params:
    """The inverse of `compact`: full tensors, with removed parts from `into` (default: zero)."""
    if into is None:
        blank = {n: torch.zeros(leaf.shape) for n, leaf in task.layout.leaves.items() if n in small}
        fresh = {n: tensor for n, tensor in task.buffers().items() if n in small}
        into = {n: tensor.to(small[n]) for n, tensor in (blank | fresh).items()}
    return trace(task).cut(keep).give(small, into)


def masked(task: Task, params: Params, keep: Keep) -> Params:
    """Full tensors that compute the same as the compacted model.

    Rows, biases, scales and shifts of removed units are zero, so their outputs are zero.
    """
    return trace(task).cut(keep).silence(params)
