"""Tracing rules of functions on tensors: how they pass, add, join or reshape units."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from gossamer.submodels.attention_rules import scores
from gossamer.submodels.flow import Attended, Call, Flow, Sizes, Stuck, Traced
from gossamer.submodels.follow import Books


def pool(books: Books, call: Call) -> Traced:
    if call.flow.axis != 1 or not isinstance(call.value, Tensor):
        raise Stuck(f"{call.label} works across them")
    return call.flow


def reduce(books: Books, call: Call) -> Traced:
    """A mean or maximum over the positions of an image or of a sequence."""
    wanted = call.option(1, "dim", None)
    dims = [wanted] if isinstance(wanted, int) else wanted
    rank, flow = call.source.ndim, call.flow
    if not isinstance(dims, Iterable) or not all(isinstance(dim, int) for dim in dims):
        raise Stuck(f"{call.label} works across them")
    gone = {dim % rank for dim in dims}
    if flow.axis in gone or not isinstance(call.value, Tensor):
        raise Stuck(f"{call.label} works across them")
    left = call.value.ndim < rank
    return Flow(flow.units, flow.axis - (sum(dim < flow.axis for dim in gone) if left else 0))


def scale(books: Books, call: Call) -> Traced:
    left, right = call.first, call.option(1, "other", None)
    if isinstance(call.sample(right), int | float) and isinstance(call.traced(left), Flow):
        return call.carried
    flow, other = call.traced(left), right
    if flow is None and call.node.target not in DIVISIONS:
        flow, other = call.traced(right), left
    own = call.sample(left if other is right else right)
    if not isinstance(flow, Flow) or call.traced(other) is not None:
        raise Stuck(f"{call.label} multiplies them by something other than a number")
    if _same_for_all(own, flow, call.sample(other)):
        return Flow(flow.units, flow.axis + call.value.ndim - own.ndim, flow.loud)
    raise Stuck(f"{call.label} multiplies them by something other than a number")


def add(books: Books, call: Call) -> Traced:
    left, right = call.first, call.option(1, "other", None)
    flows = call.traced(left), call.traced(right)
    match flows:
        case Flow(units, axis, loud), Flow(others, other, also):
            ranks = call.sample(left).ndim, call.sample(right).ndim
            if axis - ranks[0] == other - ranks[1] and len(units) == len(others):
                books.unite(units, others)
                return Flow(units, max(axis, other), loud or also)
        case (Flow() as flow, None) | (None, Flow() as flow):
            own, given = (left, right) if flows[1] is None else (right, left)
            if scores(call, flow) and _same_for_all(call.sample(own), flow, call.sample(given)):
                return Flow(flow.units, flow.axis, loud=True)
    raise Stuck(f"{call.label} adds something to them that cannot be cut")


def _same_for_all(own: Tensor, flow: Flow, other: object) -> bool:
    """Whether a number, or a tensor without units, is the same for all units of a tensor."""
    if isinstance(other, int | float):
        return True
    back = own.ndim - flow.axis
    return isinstance(other, Tensor) and (other.ndim < back or other.shape[-back] == 1)


def join(books: Books, call: Call) -> Traced:
    parts, axis = call.node.args[0], call.option(1, "dim", 0)
    assert isinstance(parts, list | tuple)
    flows = [call.traced(part) for part in parts]
    if not all(isinstance(flow, Flow) and flow.axis == axis for flow in flows):
        raise Stuck(f"{call.label} joins them with something that cannot be cut")
    return Flow(np.concatenate([flow.units for flow in flows if isinstance(flow, Flow)]), axis)


def flatten(books: Books, call: Call) -> Traced:
    if isinstance(call.part, nn.Flatten):
        first, last = call.part.start_dim, call.part.end_dim
    else:
        first, last = call.option(1, "start_dim", 0), call.option(2, "end_dim", -1)
    rank, flow = call.source.ndim, call.flow
    if first % rank == flow.axis and last % rank >= flow.axis:
        return _merged(flow, call.source.shape[flow.axis + 1 : last % rank + 1])
    if first % rank != 1 or last % rank != rank - 1:
        raise Stuck(f"{call.label} does not leave one row per example")
    return _flat(call)


def view(books: Books, call: Call) -> Traced:
    sizes = call.node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = tuple(sizes[0])
    flow, old, new = call.flow, tuple(call.source.shape), tuple(call.value.shape)
    axis = flow.axis
    if len(sizes) == 2 and sizes[1] == -1 and len(call.value) == len(call.source):
        return _flat(call)
    if len(sizes) <= axis or sizes[axis] != -1 or new[:axis] != old[:axis]:
        raise Stuck(f"{call.label} has a fixed number of features; use flatten(1), or -1 for heads")
    after = len(old) - axis - 1
    if len(new) > len(old) and new[len(new) - after :] == old[axis + 1 :]:
        return _split(books, flow, new[axis])
    kept = len(new) - axis - 1
    if len(new) <= len(old) and new[axis + 1 :] == old[len(old) - kept :]:
        return _merged(flow, old[axis + 1 : len(old) - kept])
    raise Stuck(f"{call.label} mixes them with other axes")


def unflatten(books: Books, call: Call) -> Traced:
    """One axis becomes several: heads, and the outputs of each of them."""
    flow, dim, sizes = call.flow, call.option(1, "dim", 0), call.option(2, "sizes", ())
    if not isinstance(dim, int) or dim % call.source.ndim != flow.axis:
        if isinstance(dim, int) and dim % call.source.ndim > flow.axis:
            return flow
        raise Stuck(f"{call.label} works across them")
    if not isinstance(sizes, list | tuple) or sizes[0] != -1:
        raise Stuck(f"{call.label} has a fixed number of heads; use -1 for it, and give their size")
    return _split(books, flow, call.value.shape[flow.axis])


def _split(books: Books, flow: Flow, count: int) -> Flow:
    """Outputs of a head become one unit."""
    heads = flow.units.reshape(count, -1)
    for place in range(1, heads.shape[1]):
        books.unite(heads[:, 0], heads[:, place])
    return Flow(heads[:, 0], flow.axis)


def _merged(flow: Flow, sizes: Iterable[int]) -> Flow:
    """Each unit has all positions of the axes behind it."""
    return Flow(np.repeat(flow.units, prod(sizes)), flow.axis)


def transpose(books: Books, call: Call) -> Traced:
    flow, rank = call.carried, call.source.ndim
    first, second = call.option(1, "dim0", 0), call.option(2, "dim1", 1)
    if not isinstance(first, int) or not isinstance(second, int):
        raise Stuck(f"{call.label} cannot be cut")
    swap = {first % rank: second % rank, second % rank: first % rank}
    return Flow(flow.units, swap.get(flow.axis, flow.axis), flow.loud)


def permute(books: Books, call: Call) -> Traced:
    flow, dims = call.carried, call.node.args[1:]
    if len(dims) == 1 and isinstance(dims[0], list | tuple):
        dims = tuple(dims[0])
    places = [dim % call.source.ndim for dim in dims if isinstance(dim, int)]
    if len(places) != call.source.ndim:
        raise Stuck(f"{call.label} cannot be cut")
    return Flow(flow.units, places.index(flow.axis), flow.loud)


def _flat(call: Call) -> Flow:
    """Each unit has the columns of all positions of its image."""
    flow, shape = call.flow, call.source.shape
    across = [len(flow.units) if axis == flow.axis else 1 for axis in range(1, len(shape))]
    units = np.broadcast_to(flow.units.reshape(across), tuple(shape[1:])).reshape(-1)
    return Flow(units, 1)


def size(books: Books, call: Call) -> Traced:
    sizes = Sizes(call.flow, call.source.ndim)
    dim = call.option(1, "dim", None)
    return sizes if dim is None else _one_size(sizes, dim)


def attribute(books: Books, call: Call) -> Traced:
    match call.node.args[1]:
        case "shape":
            return Sizes(call.flow, call.source.ndim)
        case "ndim" | "dtype" | "device":
            return None
    raise Stuck(f"{call.label} cannot be cut")


def item(books: Books, call: Call) -> Traced:
    source, index = call.traced(call.first), call.node.args[1]
    match source:
        case Sizes():
            return _one_size(source, index)
        case Attended() if index in (0, 1):
            if index == 1 and call.node.users:
                books.stuck.append((source.heads, "the forward pass reads weights of attention"))
            return source.flow if index == 0 else None
        case Flow():
            return _picked(call, source, index if isinstance(index, tuple) else (index,))
    raise Stuck("the forward pass indexes them")


def _picked(call: Call, flow: Flow, index: tuple[object, ...]) -> Flow:
    """Positions of other axes, such as the first of a sequence."""
    plain = all(isinstance(each, int | slice) for each in index)
    if not plain or any(each != slice(None) for each in index[flow.axis : flow.axis + 1]):
        raise Stuck("the forward pass indexes them")
    return Flow(
        flow.units, flow.axis - sum(isinstance(each, int) for each in index[: flow.axis]), flow.loud
    )


def _one_size(sizes: Sizes, dim: object) -> Traced:
    if isinstance(dim, slice) and sizes.flow.axis not in range(sizes.rank)[dim]:
        return None
    if not isinstance(dim, int) or dim % sizes.rank == sizes.flow.axis:
        raise Stuck("the forward pass reads their number")
    return None


def nothing(books: Books, call: Call) -> Traced:
    return None


def not_silent(books: Books, call: Call) -> Traced:
    raise Stuck(f"{call.label} does not turn zero into zero")


DIVISIONS = (operator.truediv, torch.div, Tensor.div, Tensor.__truediv__, "div")
