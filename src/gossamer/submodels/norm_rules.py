"""Tracing rules of norms, and of other layers with an element for each channel."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from gossamer.submodels.flow import Call, Flow, Stuck, Traced, Units
from gossamer.submodels.follow import Books, names_of
from gossamer.submodels.layer_rules import shared


def last_norm(books: Books, call: Call) -> Traced:
    """A norm over the last axis."""
    assert isinstance(call.part, nn.LayerNorm)
    flow = call.traced(call.first)
    if flow is None:
        units = books.given(call.value.shape[-1])
    elif isinstance(flow, Flow) and call.silent(flow).axis == call.value.ndim - 1:
        units = flow.units
    else:
        raise Stuck(f"{call.label} works across them")
    layer_norm(books, call, call.path, call.part, units)
    return flow


def layer_norm(books: Books, call: Call, path: str, part: nn.LayerNorm, units: Units) -> None:
    """A norm at a path. Removed units count as zeros in its statistics."""
    if len(part.normalized_shape) > 1:
        raise Stuck(f"they feed {call.label}, which cannot be cut")
    if part.weight is None:
        raise Stuck(f"{call.label} has no scale and shift to silence them with")
    if shared(books.module, part):
        raise Stuck(f"{call.label} shares its tensors with another part")
    for name in names_of(path, ("weight", "bias")):
        if books.has(name):
            books.fix(books.bind(books.rows, name, units), (name,))
    books.norms[path] = 1


def norm(books: Books, call: Call) -> Traced:
    part = call.part
    assert isinstance(part, _NormBase | nn.GroupNorm)
    # A zero channel stays zero under its own statistics, not under those of a group or the past.
    alone = isinstance(part, _NormBase) and not part.track_running_stats
    if not part.affine and not alone:
        raise Stuck(f"{call.label} has no scale and shift to silence them with")
    flow = _beside(books, call)
    if isinstance(part, nn.GroupNorm):
        books.norms[call.path] = part.num_groups
    elif not part.affine:
        books.bind(books.widths, call.path, _channels(books, call, part.num_features))
    return flow


def _beside(books: Books, call: Call) -> Traced:
    """A module with an element per channel, which is removed with its unit."""
    part = call.part
    assert part is not None
    if shared(books.module, part):
        raise Stuck(f"{call.label} shares its tensors with another part")
    for name in names_of(call.path, [*part._parameters, *part._buffers]):
        if books.has(name):
            units = _channels(books, call, books.layout[name].shape[0])
            books.fix(books.bind(books.rows, name, units), (name,))
    return call.traced(call.first)


def _channels(books: Books, call: Call, count: int) -> Units:
    """The units of a module's channels."""
    flow = call.traced(call.first)
    if not isinstance(flow, Flow):
        return books.given(count)
    if call.silent(flow).axis != 1:
        raise Stuck(f"{call.label} works across them")
    return flow.units


def prelu(books: Books, call: Call) -> Traced:
    assert isinstance(call.part, nn.PReLU)
    return _beside(books, call) if call.part.num_parameters > 1 else through(books, call)


def through(books: Books, call: Call) -> Traced:
    return call.carried
