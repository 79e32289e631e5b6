"""Tracing rules of layers: how they create, scale, look up or pad units."""

from __future__ import annotations

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from gossamer.models.blocks import Pad
from gossamer.submodels.flow import Call, Flow, Stuck, Traced, Units
from gossamer.submodels.follow import Books, names_of


def layer(books: Books, call: Call) -> Traced:
    part = call.part
    assert isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    count, width = part.weight.shape[:2]
    flow = call.traced(call.first)
    axis = call.value.ndim - 1 if isinstance(part, nn.Linear) else 1
    if isinstance(flow, Flow) and call.silent(flow).axis != axis:
        raise Stuck(f"{call.label} works across them")
    if flow is not None and not isinstance(flow, Flow):
        raise Stuck(f"they feed {call.label}, which cannot be cut")
    groups = 1 if isinstance(part, nn.Linear) else part.groups
    if groups > 1 and (groups, 1) != (count, width):
        raise Stuck(f"{call.label} works in {groups} groups of channels")
    if groups > 1 and not isinstance(flow, Flow):
        raise Stuck(f"{call.label} has a filter for each input, and its inputs cannot be removed")
    before = flow.units if isinstance(flow, Flow) else books.given(width)
    return Flow(dense(books, call, call.path, part, before), axis)


def dense(
    books: Books,
    call: Call,
    path: str,
    part: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d,
    before: Units,
) -> Units:
    """The units of a layer at a path, which reads the units `before`."""
    weight, bias = names_of(path, ("weight", "bias"))
    if not books.has(weight) or shared(books.module, part):
        raise Stuck(f"{call.label} shares its weight, or computes it")
    if weight in books.rows:
        books.repeated.add(weight)
        for name in (weight, bias):
            books.quiet.pop(name, None)
    else:
        books.layers.append(weight)
        books.rows[weight] = books.fresh(part.weight.shape[0])
        if books.has(bias):
            books.rows[bias] = books.rows[weight]
        books.fix(books.rows[weight], (weight, bias))
    units = books.rows[weight]
    if isinstance(part, nn.Linear) or part.groups == 1:
        books.bind(books.columns, weight, before)
    else:
        books.unite(units, before)
    return units


def embedding(books: Books, call: Call) -> Traced:
    """Numbers are looked up as rows; the columns are units."""
    part = call.part
    assert isinstance(part, nn.Embedding)
    (weight,) = names_of(call.path, ("weight",))
    if not books.has(weight) or shared(books.module, part):
        raise Stuck(f"{call.label} shares its weight, or computes it")
    if part.max_norm is not None:
        raise Stuck(f"{call.label} scales its rows")
    if weight not in books.tables:
        books.layers.append(weight)
        books.tables[weight] = books.fresh(part.embedding_dim)
        books.fix(books.tables[weight], (weight,))
    return Flow(books.tables[weight], call.value.ndim - 1)


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


def shared(module: nn.Module, part: nn.Module) -> bool:
    mine = {id(tensor) for tensor in part._parameters.values() if tensor is not None}
    return any(
        id(tensor) in mine
        for other in module.modules()
        for tensor in other._parameters.values()
        if other is not part
    )


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


def pad(books: Books, call: Call) -> Traced:
    """Zero channels appended: new units, united with those to which they are added."""
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


def through(books: Books, call: Call) -> Traced:
    return call.carried
