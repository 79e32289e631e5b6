"""Tracing rules of functions on tensors: how they pass, scale, add, join or pick units."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from gossamer.submodels.attention_rules import scores
from gossamer.submodels.flow import Attended, Call, Flow, Sizes, Stuck, Traced
from gossamer.submodels.follow import Books
from gossamer.submodels.shape_rules import one_size


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


def item(books: Books, call: Call) -> Traced:
    source, index = call.traced(call.first), call.node.args[1]
    match source:
        case Sizes():
            return one_size(source, index)
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


def nothing(books: Books, call: Call) -> Traced:
    return None


def not_silent(books: Books, call: Call) -> Traced:
    raise Stuck(f"{call.label} does not turn zero into zero")


DIVISIONS = (operator.truediv, torch.div, Tensor.div, Tensor.__truediv__, "div")
