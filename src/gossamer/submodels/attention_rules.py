"""Tracing rules of attention by functions: heads are units, of queries, keys and values.

A head whose values are zero adds nothing, whatever its queries and keys are. So it is removed with
all of its outputs and with the inputs that they are of the projection behind it.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor, fx, nn

from gossamer.submodels.flow import Call, Flow, Sizes, Stuck, Traced
from gossamer.submodels.follow import Books, names_of


def scaled_dot_product(books: Books, call: Call) -> Traced:
    """`functional.scaled_dot_product_attention` of tensors (..., heads, length, size)."""
    names = ("query", "key", "value")
    query, key, value = (call.option(place, name, None) for place, name in enumerate(names))
    mask = call.option(3, "attn_mask", None)
    flows = [call.traced(each) for each in (query, key, value)]
    sizes = {call.sample(each).shape[:-2] for each in (query, key, value)}
    axes = {flow.axis if isinstance(flow, Flow) else None for flow in flows}
    rank = call.value.ndim
    if len(axes) > 1 or len(sizes) > 1 or axes & {None, rank - 1, rank - 2}:
        raise Stuck(f"{call.label} works across them, or not all of its inputs can be cut")
    _same_for_all(call, mask, flows[2])
    for each in (query, key):
        hush(books, call, each)
    return _united(books, call, [flow for flow in flows if isinstance(flow, Flow)])


def product(books: Books, call: Call) -> Traced:
    """Matrices of scores, and scores times values, head by head."""
    left, right = call.first, call.option(1, "other", None)
    flows = [call.traced(each) for each in (left, right)]
    both = [flow for flow in flows if isinstance(flow, Flow)]
    rank = call.value.ndim
    axes = {flow.axis for flow in both}
    if len(both) < 2 or len(axes) > 1 or axes & {rank - 1, rank - 2}:
        raise Stuck(f"{call.label} works across them, or not all of its inputs can be cut")
    if any(call.sample(each).ndim != rank for each in (left, right)):
        raise Stuck(f"{call.label} repeats them")
    if both[0].loud and both[1].loud:
        raise Stuck(f"they are not zero where they reach {call.label}")
    for each, flow in zip((left, right), both, strict=True):
        if flow.loud:
            hush(books, call, each)
    return _united(books, call, both)


def softmax(books: Books, call: Call) -> Traced:
    """Scores become shares, head by head; those of a head without scores are not zero."""
    flow, dim = call.carried, call.option(1, "dim", None)
    if isinstance(call.part, nn.Softmax):
        dim = call.part.dim
    if not isinstance(dim, int) or not scores(call, flow) or dim % call.value.ndim == flow.axis:
        raise Stuck(f"{call.label} does not turn zero into zero")
    return Flow(flow.units, flow.axis, loud=True)


def fill(books: Books, call: Call) -> Traced:
    """`masked_fill` of scores."""
    flow = call.carried
    if not scores(call, flow):
        raise Stuck(f"{call.label} does not turn zero into zero")
    _same_for_all(call, call.option(1, "mask", None), flow)
    return Flow(flow.units, flow.axis, loud=True)


def scores(call: Call, flow: Flow) -> bool:
    """Whether a tensor is (..., heads, length, length), with heads as units."""
    return bool(call.value.ndim >= 4 and flow.axis == call.value.ndim - 3)


def _same_for_all(call: Call, mask: object, flow: Traced) -> None:
    """Refuses a mask that has a part for each head."""
    if mask is None:
        return
    if call.traced(mask) is not None:
        raise Stuck(f"{call.label} has a mask that cannot be cut")
    assert isinstance(flow, Flow)
    back, given = call.value.ndim - flow.axis, call.sample(mask)
    if isinstance(given, Tensor) and given.ndim >= back and given.shape[-back] != 1:
        raise Stuck(f"{call.label} has a mask for each head")


def _united(books: Books, call: Call, flows: list[Flow]) -> Flow:
    first, *others = flows
    for other in others:
        books.unite(first.units, other.units)
    return Flow(first.units, first.axis)


def hush(books: Books, call: Call, argument: object) -> None:
    """Notes layers whose outputs reach nothing but this argument, which cannot be heard alone.

    It has an effect only where values are other than zero: as queries and keys, and as scores.
    """
    waiting, layers = [argument], list[str]()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, fx.Node) or len(_readers(call, node)) != 1:
            return
        weight, bias = names_of(str(node.target), ("weight", "bias"))
        if node.op == "call_module" and weight in books.layers:
            if weight in books.repeated or weight not in books.rows:
                return
            layers += [weight, *([bias] if bias in books.rows else [])]
        else:
            before = [each for each in node.all_input_nodes if call.flows.get(each) is not None]
            if not before:
                return
            waiting += before
    for name in layers:
        books.quiet[name] = np.ones(len(books.rows[name]), np.bool_)


def _readers(call: Call, node: fx.Node) -> list[fx.Node]:
    """Calls that read a result, and not only its shape."""
    return [user for user in node.users if not isinstance(call.flows.get(user), Sizes)]
