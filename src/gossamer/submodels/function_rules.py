"""Tracing rules of functions on tensors: how they pass, add, join or reshape units."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor, nn

from gossamer.submodels.flow import Call, Flow, Sizes, Stuck, Traced
from gossamer.submodels.follow import Books


def pool(books: Books, call: Call) -> Traced:
    if call.flow.axis != 1 or not isinstance(call.value, Tensor):
        raise Stuck(f"{call.label} works across them")
    return call.flow


def reduce(books: Books, call: Call) -> Traced:
    """A mean or maximum over the positions of an image."""
    wanted = call.option(1, "dim", None)
    dims = [wanted] if isinstance(wanted, int) else wanted
    rank = call.source.ndim
    if not isinstance(dims, Iterable) or not all(_after(dim, call.flow.axis, rank) for dim in dims):
        raise Stuck(f"{call.label} works across them")
    return call.flow


def _after(dim: Any, axis: int, rank: int) -> bool:
    return isinstance(dim, int) and dim % rank > axis


def scale(books: Books, call: Call) -> Traced:
    left, right = call.node.args[0], call.option(1, "other", None)
    if isinstance(right, int | float):
        return call.flow
    flow = call.traced(right)
    if isinstance(left, int | float) and isinstance(flow, Flow) and call.node.target is not DIVIDE:
        return flow
    raise Stuck(f"{call.label} multiplies them by something other than a number")


def add(books: Books, call: Call) -> Traced:
    left, right = call.node.args[0], call.option(1, "other", None)
    match call.traced(left), call.traced(right):
        case Flow(units, axis), Flow(others, other) if axis == other:
            if call.sample(left).shape == call.sample(right).shape:
                books.unite(units, others)
                return Flow(units, axis)
    raise Stuck(f"{call.label} adds something to them that cannot be cut")


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
    rank = call.source.ndim
    if first % rank != 1 or last % rank != rank - 1:
        raise Stuck(f"{call.label} does not leave one row per example")
    return _flat(call)


def view(books: Books, call: Call) -> Traced:
    sizes = call.node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = tuple(sizes[0])
    if len(sizes) != 2 or sizes[1] != -1 or len(call.value) != len(call.source):
        raise Stuck(f"{call.label} has a fixed number of features; use flatten(1)")
    return _flat(call)


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
    sizes = call.traced(call.node.args[0])
    if not isinstance(sizes, Sizes):
        raise Stuck("the forward pass indexes them")
    return _one_size(sizes, call.node.args[1])


def _one_size(sizes: Sizes, dim: object) -> Traced:
    if not isinstance(dim, int) or dim % sizes.rank == sizes.flow.axis:
        raise Stuck("the forward pass reads their number")
    return None


def nothing(books: Books, call: Call) -> Traced:
    return None


def not_silent(books: Books, call: Call) -> Traced:
    raise Stuck(f"{call.label} does not turn zero into zero")


DIVIDE = operator.truediv
