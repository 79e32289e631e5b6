"""Tracing rules of torch's layers of attention and encoders, which hold their parts."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from gossamer.submodels.flow import Attended, Call, Flow, Stuck, Traced, Units
from gossamer.submodels.follow import Books, names_of
from gossamer.submodels.layer_rules import dense, shared
from gossamer.submodels.norm_rules import layer_norm

_ACTIVATIONS = (functional.relu, functional.gelu)
_ACTIVATION_LAYERS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh)


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
