"""What each kind of layer and function does to the units it is given."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from gossamer.models.convolutional import Numbers
from gossamer.models.residual import Pad
from gossamer.submodels.flow import Call, Flow, Found, Sizes, Stuck, Units
from gossamer.submodels.follow import Books, Rule, names_of

# layers -------------------------------------------------------------------------------------------


def _layer(books: Books, call: Call) -> Found:
    part = call.part
    assert isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    weight, bias = names_of(call.path, ("weight", "bias"))
    count, width = part.weight.shape[:2]
    if weight not in books.layout.leaves or _shared(books.module, part):
        raise Stuck(f"{call.label} shares its weight, or computes it")
    flow = call.found(call.node.args[0]) if call.node.args else None
    axis = call.value.ndim - 1 if isinstance(part, nn.Linear) else 1
    if isinstance(flow, Flow) and flow.axis != axis:
        raise Stuck(f"{call.label} works across them")
    groups = 1 if isinstance(part, nn.Linear) else part.groups
    if groups > 1 and (groups, 1) != (count, width):
        raise Stuck(f"{call.label} works in {groups} groups of channels")
    if groups > 1 and not isinstance(flow, Flow):
        raise Stuck(f"{call.label} has a filter for each input, and its inputs stay")
    if weight not in books.rows:
        books.layers.append(weight)
        books.rows[weight] = books.fresh(count)
        if bias in books.layout.leaves:
            books.rows[bias] = books.rows[weight]
    units = books.rows[weight]
    before = flow.units if isinstance(flow, Flow) else books.given(width)
    if groups > 1:
        books.unite(units, before)
    else:
        books.bind(books.columns, weight, before)
    return Flow(units, axis)


def _shared(module: nn.Module, part: nn.Module) -> bool:
    mine = {id(tensor) for tensor in part._parameters.values() if tensor is not None}
    return any(
        id(tensor) in mine
        for other in module.modules()
        for tensor in other._parameters.values()
        if other is not part
    )


def _norm(books: Books, call: Call) -> Found:
    part = call.part
    assert isinstance(part, _NormBase | nn.GroupNorm)
    # By its own mean, a channel of zeros stays zero; by that of a group or of the past it does not.
    alone = isinstance(part, _NormBase) and not part.track_running_stats
    if not part.affine and not alone:
        raise Stuck(f"{call.label} has no scale and shift to silence them with")
    found = _beside(books, call)
    if isinstance(part, nn.GroupNorm):
        books.norms[call.path] = part.num_groups
    elif not part.affine:
        books.bind(books.widths, call.path, _channels(books, call, part.num_features))
    return found


def _beside(books: Books, call: Call) -> Found:
    """A module with a number for each channel, which goes with its unit."""
    part = call.part
    assert part is not None
    if _shared(books.module, part):
        raise Stuck(f"{call.label} shares its tensors with another part")
    for name in names_of(call.path, [*part._parameters, *part._buffers]):
        if name in books.layout.leaves:
            count = books.layout[name].shape[0]
            books.bind(books.rows, name, _channels(books, call, count))
    return call.found(call.node.args[0]) if call.node.args else None


def _channels(books: Books, call: Call, count: int) -> Units:
    """The units of channels that a module has a number for."""
    flow = call.found(call.node.args[0]) if call.node.args else None
    if not isinstance(flow, Flow):
        return books.given(count)
    if flow.axis != 1:
        raise Stuck(f"{call.label} works across them")
    return flow.units


def _prelu(books: Books, call: Call) -> Found:
    assert isinstance(call.part, nn.PReLU)
    return _beside(books, call) if call.part.num_parameters > 1 else _through(books, call)


def _pad(books: Books, call: Call) -> Found:
    """Zeros behind the channels: units that go with whatever they are added to."""
    assert isinstance(call.part, Pad)
    flow = call.flow
    if flow.axis != 1:
        raise Stuck(f"{call.label} works across them")
    if call.path not in books.widths:
        more = books.fresh(call.value.shape[1] - len(flow.units))
        books.widths[call.path] = np.concatenate([flow.units, more])
    units = books.widths[call.path]
    books.unite(units[: len(flow.units)], flow.units)
    return Flow(units, 1)


# functions that leave zero at zero ----------------------------------------------------------------


def _through(books: Books, call: Call) -> Found:
    return call.flow


def _pool(books: Books, call: Call) -> Found:
    if call.flow.axis != 1 or not isinstance(call.value, Tensor):
        raise Stuck(f"{call.label} works across them")
    return call.flow


def _reduce(books: Books, call: Call) -> Found:
    """A mean over places of an image, or a largest value."""
    wanted = call.option(1, "dim", None)
    dims = [wanted] if isinstance(wanted, int) else wanted
    rank = call.source.ndim
    if not isinstance(dims, Iterable) or not all(_after(dim, call.flow.axis, rank) for dim in dims):
        raise Stuck(f"{call.label} works across them")
    return call.flow


def _after(dim: Any, axis: int, rank: int) -> bool:
    return isinstance(dim, int) and dim % rank > axis


def _scale(books: Books, call: Call) -> Found:
    left, right = call.node.args[0], call.option(1, "other", None)
    if isinstance(right, int | float):
        return call.flow
    found = call.found(right)
    if isinstance(left, int | float) and isinstance(found, Flow) and call.node.target is not DIVIDE:
        return found
    raise Stuck(f"{call.label} multiplies them with something else")


def _add(books: Books, call: Call) -> Found:
    left, right = call.node.args[0], call.option(1, "other", None)
    match call.found(left), call.found(right):
        case Flow(units, axis), Flow(others, other) if axis == other:
            if call.sample(left).shape == call.sample(right).shape:
                books.unite(units, others)
                return Flow(units, axis)
    raise Stuck(f"{call.label} adds something to them that stays as it is")


def _join(books: Books, call: Call) -> Found:
    parts, axis = call.node.args[0], call.option(1, "dim", 0)
    assert isinstance(parts, list | tuple)
    flows = [call.found(part) for part in parts]
    if not all(isinstance(flow, Flow) and flow.axis == axis for flow in flows):
        raise Stuck(f"{call.label} joins them with something that stays as it is")
    return Flow(np.concatenate([flow.units for flow in flows if isinstance(flow, Flow)]), axis)


# shapes -------------------------------------------------------------------------------------------


def _flatten(books: Books, call: Call) -> Found:
    if isinstance(call.part, nn.Flatten):
        first, last = call.part.start_dim, call.part.end_dim
    else:
        first, last = call.option(1, "start_dim", 0), call.option(2, "end_dim", -1)
    rank = call.source.ndim
    if first % rank != 1 or last % rank != rank - 1:
        raise Stuck(f"{call.label} does not leave one row for each example")
    return _flat(call)


def _view(books: Books, call: Call) -> Found:
    sizes = call.node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = tuple(sizes[0])
    if len(sizes) != 2 or sizes[1] != -1 or len(call.value) != len(call.source):
        raise Stuck(f"{call.label} is given a number of features; flatten(1) takes any")
    return _flat(call)


def _flat(call: Call) -> Flow:
    """Every unit owns the columns of its whole image."""
    flow, shape = call.flow, call.source.shape
    across = [len(flow.units) if axis == flow.axis else 1 for axis in range(1, len(shape))]
    units = np.broadcast_to(flow.units.reshape(across), tuple(shape[1:])).reshape(-1)
    return Flow(units, 1)


def _size(books: Books, call: Call) -> Found:
    found = Sizes(call.flow, call.source.ndim)
    dim = call.option(1, "dim", None)
    return found if dim is None else _one_size(found, dim)


def _attribute(books: Books, call: Call) -> Found:
    match call.node.args[1]:
        case "shape":
            return Sizes(call.flow, call.source.ndim)
        case "ndim" | "dtype" | "device":
            return None
    raise Stuck(f"{call.label} cannot be cut")


def _item(books: Books, call: Call) -> Found:
    found = call.found(call.node.args[0])
    if not isinstance(found, Sizes):
        raise Stuck("the forward pass takes a part of them")
    return _one_size(found, call.node.args[1])


def _one_size(sizes: Sizes, dim: object) -> Found:
    if not isinstance(dim, int) or dim % sizes.rank == sizes.flow.axis:
        raise Stuck("the forward pass asks how many there are")
    return None


def _nothing(books: Books, call: Call) -> Found:
    return None


def _not_silent(books: Books, call: Call) -> Found:
    raise Stuck(f"{call.label} does not turn zero into zero")


# tables -------------------------------------------------------------------------------------------

DIVIDE = operator.truediv

MODULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d), _layer),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _norm),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _norm),
    nn.GroupNorm: _norm,
    nn.PReLU: _prelu,
    Pad: _pad,
    **dict.fromkeys((nn.Flatten, Numbers), _flatten),
    **dict.fromkeys((nn.Identity, nn.ReLU, nn.ReLU6, nn.GELU, nn.Tanh, nn.SiLU), _through),
    **dict.fromkeys((nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.Hardswish, nn.Mish), _through),
    **dict.fromkeys((nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink), _through),
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), _through),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), _pool),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), _pool),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), _pool),
    **dict.fromkeys((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), _pool),
    **dict.fromkeys((nn.Sigmoid, nn.Hardsigmoid, nn.LogSigmoid, nn.Softplus), _not_silent),
    **dict.fromkeys((nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin), _not_silent),
}

_SAME = (
    *("relu", "relu6", "gelu", "tanh", "silu", "leaky_relu", "elu", "celu", "selu", "mish"),
    *("hardswish", "softsign", "tanhshrink", "hardshrink"),
)
_POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")
_LOUD = ("sigmoid", "hardsigmoid", "softplus", "softmax", "log_softmax", "exp")


def _named(names: Iterable[str], rule: Rule) -> dict[object, Rule]:
    """The functions of torch with these names, and the methods of tensors."""
    found: dict[object, Rule] = {}
    for name in names:
        places = (functional, torch, Tensor)
        callables = (getattr(place, name, None) for place in places)
        found |= {each: rule for each in callables if each is not None}
        found |= {name: rule, f"{name}_": rule}
    return found


FUNCTIONS: dict[object, Rule] = {
    **_named(_SAME, _through),
    **_named((f"{name}{count}d" for name in _POOLS for count in (1, 2, 3)), _pool),
    **_named(("mean", "sum", "amax"), _reduce),
    **_named(("add", "sub"), _add),
    **_named(("mul", "div"), _scale),
    **_named(_LOUD, _not_silent),
    **_named(("flatten",), _flatten),
    **_named(("cat", "concat"), _join),
    **_named(("view", "reshape"), _view),
    **_named(("contiguous", "clone", "float"), _through),
    **_named(("dim",), _nothing),
    **dict.fromkeys((operator.add, operator.iadd, operator.sub, operator.isub), _add),
    **dict.fromkeys((operator.mul, operator.imul, DIVIDE), _scale),
    "size": _size,
    getattr: _attribute,
    operator.getitem: _item,
}
