"""SWAT: layers that compute with their largest weights, and learn from their largest inputs.

Raihan, Aamodt: Sparse weight activation training. NeurIPS 2020. https://arxiv.org/abs/2001.01969

A pass forward takes the largest weights and all inputs. Back, the gradient of inputs goes by the
same weights; that of weights goes by the largest inputs, and all weights have it, so that a small
one may grow. Zeros are multiplied here like other numbers: costs are counted from densities.

    sparse = sparse_task(task, 0.1)  # for training; parameters have the names of `task`
    active(params, task.layout.prunable, 0.1)  # what `task` itself is tested with
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from gossamer.core import Masks, Params
from gossamer.sparsity import as_fraction
from gossamer.sparsity.algebra import magnitudes, ranked
from gossamer.task import Task
from gossamer.task.layout import Leaf

CUTS = "swat_cuts"
"""The buffer of a sparse layer: from which magnitude on weights count, and from which inputs do."""
UNKNOWN = -1.0
"""A cut that is found in the next pass."""

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_lock = threading.Lock()
_known: WeakKeyDictionary[Task, tuple[float, Task]] = WeakKeyDictionary()


# what is large ------------------------------------------------------------------------------------


def cut(values: Tensor, density: float) -> float:
    """The magnitude from which on numbers are among the largest, a part `density` of them.

    >>> cut(torch.tensor([3.0, -0.5, 2.0, 0.1]), 0.5)
    2.0
    """
    found = magnitudes(values)
    if not len(found):
        return 0.0
    place = len(found) - max(ceil(as_fraction(density) * len(found)), 1)
    return ranked(found, place)


def active(params: Params, names: Iterable[str], density: float) -> Params:
    """The model that sparse layers compute with; weights as large as the last one stay too."""
    return {**params, **{name: _largest(params[name], density) for name in names}}


def masks(params: Params, names: Iterable[str], density: float) -> Masks:
    """Where these layers have weights that are not zero."""
    return {name: _largest(params[name], density) != 0 for name in names}


def _largest(values: Tensor, density: float) -> Tensor:
    return _above(values, cut(values, density))


def _above(values: Tensor, least: float) -> Tensor:
    return values.masked_fill(values.abs() < least, 0)


# layers -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Geometry:
    """How a convolution moves over its input."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class _Product(torch.autograd.Function):
    """A layer's output by its active weights; `weight` is there for its gradient alone."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        used: Tensor,
        bias: Tensor | None,
        least: float,
        how: Geometry | None,
    ) -> Tensor:
        ctx.save_for_backward(_above(x, least), used)
        ctx.how, ctx.biased = how, bias is not None
        if how is None:
            return functional.linear(x, used, bias)
        none = [0] * len(how.stride)
        return torch.convolution(
            x, used, bias, how.stride, how.padding, how.dilation, False, none, how.groups
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, used = ctx.saved_tensors
        inputs, weights = ctx.needs_input_grad[:2]
        biases = ctx.biased and ctx.needs_input_grad[3]
        found: Sequence[Tensor | None]
        if ctx.how is None:
            rows = grad.reshape(-1, grad.shape[-1])
            found = (
                grad @ used if inputs else None,
                rows.T @ x.reshape(-1, x.shape[-1]) if weights else None,
                rows.sum(0) if biases else None,
            )
        else:
            how = ctx.how
            found = torch.ops.aten.convolution_backward(
                grad,
                x,
                used,
                [used.shape[0]] if biases else None,
                how.stride,
                how.padding,
                how.dilation,
                False,
                [0] * len(how.stride),
                how.groups,
                [inputs, weights, biases],
            )
        return found[0], found[1], None, found[2], None, None


class SparseLayer(nn.Module):
    """A convolution or linear layer under the same names, with its largest weights and inputs.

    What counts as large is kept in a buffer from one batch to the next; see `forget`.
    """

    swat_cuts: Tensor

    def __init__(self, layer: nn.Linear | _ConvNd, density: float) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = layer.bias
        self.register_buffer(CUTS, torch.full((2,), UNKNOWN))
        self.density = density
        self.how: Geometry | None = None
        self.around: tuple[list[int], str] | None = None
        if isinstance(layer, _ConvNd):
            padding = layer.padding
            if isinstance(padding, str) or layer.padding_mode != "zeros":
                mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
                self.around = list(layer._reversed_padding_repeated_twice), mode
                padding = (0,) * len(layer.stride)
            self.how = Geometry(layer.stride, padding, layer.dilation, layer.groups)

    def forward(self, x: Tensor) -> Tensor:
        used = _above(self.weight.detach(), self._cut(0, self.weight))
        bias = self.bias
        if torch.is_autocast_enabled(x.device.type):
            kind = torch.get_autocast_dtype(x.device.type)
            x, used = x.to(kind), used.to(kind)
            bias = None if bias is None else bias.to(kind)
        # In a test nothing is learned from inputs.
        least = self._cut(1, x) if self.training else 0.0
        if self.around is not None:
            x = functional.pad(x, *self.around)
        product: Callable[..., Tensor] = _Product.apply
        return product(x, self.weight, used, bias, least, self.how)

    def _cut(self, place: int, values: Tensor) -> float:
        if self.training and (known := float(self.swat_cuts[place])) >= 0:
            return known
        found = cut(values, self.density)
        if self.training:
            self.swat_cuts[place] = found
        return found


# tasks --------------------------------------------------------------------------------------------


def sparse_task(task: Task, density: float) -> Task:
    """The same task with sparse layers where the layout has prunable weights.

    Its parameters have two more numbers for each of these layers, in which cuts are remembered.
    The last one that was made of a task is kept; like any task, it is for one thread at a time.
    """
    with _lock:
        known = _known.get(task)
    if known is None or known[0] != density:
        known = density, _made(task, density)
        with _lock:
            _known[task] = known
    return known[1]


def cuts(task: Task) -> list[str]:
    """The names under which the layers of a sparse task remember their cuts."""
    return [name for name in task.layout.buffers if name.rpartition(".")[2] == CUTS]


def forget(task: Task, params: Params) -> None:
    """Lets the layers of a sparse task find new cuts in the next pass, in place."""
    for name in cuts(task):
        params[name].fill_(UNKNOWN)


def _made(task: Task, density: float) -> Task:
    holder = nn.ModuleDict({"module": copy.deepcopy(task.module)})
    state = dict(holder["module"].named_parameters())
    wanted = {id(state[name]): name for name in task.layout.prunable}
    made: dict[int, SparseLayer] = {}
    for parent in list(holder.modules()):
        # Not named_children, which leaves out the second name of a layer that has two.
        for name, child in list(parent._modules.items()):
            if not isinstance(child, _KINDS) or type(child) not in _KINDS:
                continue
            if id(child.weight) in wanted:
                parent._modules[name] = made.setdefault(id(child), SparseLayer(child, density))
    for odd in wanted.keys() - {id(layer.weight) for layer in made.values()}:
        raise ValueError(
            f"{wanted[odd]} is no weight of a plain convolution or linear layer, and only these "
            "compute with few activations; leave it out with --prunable"
        )
    module = holder["module"]
    places = [path for path, part in module.named_modules() if isinstance(part, SparseLayer)]
    names = [f"{path}.{CUTS}" if path else CUTS for path in places]
    leaves = {name: Leaf(name, "buffer", (2,), 1, 2, 0, False, False) for name in names}
    layout = replace(task.layout, leaves={**task.layout.leaves, **leaves})
    return Task(module, task.criterion, layout, task.precision, task.device)
