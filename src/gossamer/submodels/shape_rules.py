"""Tracing rules of functions that reshape tensors, or read their shapes."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
from torch import nn

from gossamer.submodels.flow import Call, Flow, Sizes, Stuck, Traced
from gossamer.submodels.follow import Books


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
    return sizes if dim is None else one_size(sizes, dim)


def attribute(books: Books, call: Call) -> Traced:
    match call.node.args[1]:
        case "shape":
            return Sizes(call.flow, call.source.ndim)
        case "ndim" | "dtype" | "device":
            return None
    raise Stuck(f"{call.label} cannot be cut")


def one_size(sizes: Sizes, dim: object) -> Traced:
    """A size that is read must not be the number of units."""
    if isinstance(dim, slice) and sizes.flow.axis not in range(sizes.rank)[dim]:
        return None
    if not isinstance(dim, int) or dim % sizes.rank == sizes.flow.axis:
        raise Stuck("the forward pass reads their number")
    return None
