"""Tracing rules of attention: heads are units, which have outputs of queries, keys and values.

A head whose values are zero adds nothing, whatever its queries and keys are. So it is removed with
all of its outputs and with the inputs that they are of the projection behind it.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor, fx, nn
from torch.nn import functional

from gossamer.submodels.flow import Attended, Call, Flow, Sizes, Stuck, Traced, Units
from gossamer.submodels.follow import Books, names_of
from gossamer.submodels.layer_rules import dense, layer_norm, shared

_ACTIVATIONS = (functional.relu, functional.gelu)
_ACTIVATION_LAYERS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh)


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


def attention(books: Books, call: Call) -> Traced:
    """`nn.MultiheadAttention`."""
    part = call.part
    assert isinstance(part, nn.MultiheadAttention)
    names = ("query", "key", "value")
    given = [call.option(place, name, None) for place, name in enumerate(names)]
    mask = call.option(5, "attn_mask", None)
    if mask is not None and call.sample(mask).ndim > 2:
        raise Stuck(f"{call.label} has a mask for each head")
    width = call.sample(given[0]).shape[-1]
    inputs = [_last(books, call, each, width) for each in given]
    for other in inputs[1:]:
        books.unite(inputs[0], other)
    out, heads = _attend(books, call, call.path, part, inputs[0])
    return Attended(Flow(out, call.sample(given[0]).ndim - 1), heads)


def encoder_layer(books: Books, call: Call) -> Traced:
    """`nn.TransformerEncoderLayer`."""
    assert isinstance(call.part, nn.TransformerEncoderLayer)
    units = _last(books, call, call.first, call.value.shape[-1])
    _same_masks(call)
    return Flow(_encode(books, call, call.path, call.part, units), call.value.ndim - 1)


def encoder(books: Books, call: Call) -> Traced:
    """`nn.TransformerEncoder`: its layers, one after another, and a norm."""
    part = call.part
    assert isinstance(part, nn.TransformerEncoder)
    units = _last(books, call, call.first, call.value.shape[-1])
    _same_masks(call)
    for place, each in enumerate(part.layers):
        if not isinstance(each, nn.TransformerEncoderLayer):
            raise Stuck(f"{call.label} has layers of {type(each).__name__}")
        (path,) = names_of(call.path, (f"layers.{place}",))
        units = _encode(books, call, path, each, units)
    if part.norm is not None:
        if not isinstance(part.norm, nn.LayerNorm):
            raise Stuck(f"{call.label} has a norm that cannot be cut")
        layer_norm(books, call, names_of(call.path, ("norm",))[0], part.norm, units)
    return Flow(units, call.value.ndim - 1)


def _encode(
    books: Books, call: Call, path: str, part: nn.TransformerEncoderLayer, stream: Units
) -> Units:
    known = part.activation in _ACTIVATIONS or isinstance(part.activation, _ACTIVATION_LAYERS)
    if not known:
        raise Stuck(f"{call.label} has an activation that cannot be cut")
    inner = names_of(path, ("self_attn", "linear1", "linear2", "norm1", "norm2"))
    attended, first, second, *norms = inner
    out, _ = _attend(books, call, attended, part.self_attn, stream)
    books.unite(stream, out)
    hidden = dense(books, call, first, part.linear1, stream)
    books.unite(stream, dense(books, call, second, part.linear2, hidden))
    for where, norm in zip(norms, (part.norm1, part.norm2), strict=True):
        layer_norm(books, call, where, norm, stream)
    return stream


def _attend(
    books: Books, call: Call, path: str, part: nn.MultiheadAttention, inputs: Units
) -> tuple[Units, Units]:
    """The units of the output, and the heads."""
    weight, bias = names_of(path, ("in_proj_weight", "in_proj_bias"))
    (out,) = names_of(path, ("out_proj",))
    if part.in_proj_weight is None or part.bias_k is not None or part.add_zero_attn:
        raise Stuck(f"{call.label} has projections of several sizes, or keys of its own")
    if not books.has(weight) or shared(books.module, part):
        raise Stuck(f"{call.label} shares its weight, or computes it")
    if weight not in books.rows:
        heads = books.fresh(part.num_heads)
        books.layers.append(weight)
        books.rows[weight] = np.tile(np.repeat(heads, part.head_dim), 3)
        parts = [weight]
        if books.has(bias):
            books.rows[bias] = books.rows[weight]
            parts.append(bias)
        for name in parts:
            books.quiet[name] = np.arange(3 * part.embed_dim) < 2 * part.embed_dim
        books.fix(heads, parts)
    books.bind(books.columns, weight, inputs)
    values = books.rows[weight][2 * part.embed_dim :]
    return dense(books, call, out, part.out_proj, values), values[:: part.head_dim]


def _last(books: Books, call: Call, argument: object, width: int) -> Units:
    """The units along the last axis of an argument."""
    flow = call.traced(argument)
    if flow is None:
        return books.given(width)
    if not isinstance(flow, Flow) or flow.axis != call.sample(argument).ndim - 1:
        raise Stuck(f"{call.label} works across them")
    return call.silent(flow).units


def _same_masks(call: Call) -> None:
    for each in (*call.node.args[1:], *call.node.kwargs.values()):
        found = call.sample(each)
        if each is call.first or not isinstance(found, Tensor):
            continue
        if call.traced(each) is not None or found.ndim > 2:
            raise Stuck(f"{call.label} has a mask for each head")
