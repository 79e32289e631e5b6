"""Tracing rules of layers: how they create, look up or pad units."""

from __future__ import annotations

import numpy as np
from torch import nn

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


def shared(module: nn.Module, part: nn.Module) -> bool:
    mine = {id(tensor) for tensor in part._parameters.values() if tensor is not None}
    return any(
        id(tensor) in mine
        for other in module.modules()
        for tensor in other._parameters.values()
        if other is not part
    )


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
