"""The numbers of requests and replies that are compressed, and records without them."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from gossamer.core import AnyMethod, Client, Ctx, Exchange, Params
from gossamer.trust import changes
from gossamer.trust.declared import declared
from gossamer.wire import Drawn, Packed, Revision
from gossamer.wire.kinds import is_masks

T = TypeVar("T")

_NOBODY = Client(0, 0)


def check(method: AnyMethod, remembers: bool, requests: bool) -> None:
    """Raises ValueError unless clients send changes of numbers that they were sent.

    Args:
        method: The method to compress.
        remembers: Whether clients remember what their replies lost.
        requests: Whether requests are compressed, too.
    """
    name = type(method).__name__
    sent, replied = _hint(method, "down"), _hint(method, "finish")
    if sent is None or replied is None:
        raise ValueError(
            f"`compress=`: the types of {name}'s records are not known; give its functions down "
            "and finish type hints"
        )
    replies = typing.get_args(replied)[0]
    if remembers and any(kind is Packed for kind in _kinds(replies)):
        raise ValueError(
            f"`compress=`: clients of {name} send values on masks, which may move, and so cannot "
            "remember what a reply lost; leave out +ef and +ef21"
        )
    if remembers and getattr(method, "units_move", False):
        raise ValueError(
            f"`compress=`: clients of {name} train other units in every round, and so cannot "
            "remember what a reply lost; leave out +ef and +ef21"
        )
    if requests and any(kind is Packed for kind in _kinds(sent)):
        raise ValueError(
            f"`compress=`: requests of {name} have values on masks, which may move, and so no "
            "differences to earlier ones; compress its replies only"
        )
    if declared(method).bits or not _paths(sent) & _paths(replies):
        raise ValueError(
            f"`compress=`: clients of {name} send no changes of numbers that they were sent, so "
            "there is nothing to compress; use a method that sends a model back, such as fedavg"
        )


def change(ctx: Ctx, down: Any, up: Any) -> Params:
    """The changes of a reply that are compressed, by their places.

    Running statistics are not, nor are values on masks that the reply itself brings.
    """
    exchange = Exchange(_NOBODY, down, up)
    known = changes.references(exchange)
    leaves = [leaf for _, leaf in changes.leaves_of(up)]
    moved = any(isinstance(leaf, Revision | Drawn) or is_masks(leaf) for leaf in leaves)
    loose = _packed(up) if moved else set()
    return {
        place: tensor.float()
        for place, tensor in changes.change(exchange).items()
        if place in known and place not in loose and not _is_buffer(ctx, place)
    }


def compressible(ctx: Ctx, down: Any) -> Params:
    """The parameters of the model in a request, which are compressed, by their places."""
    layout = ctx.task.layout
    return {
        place: tensor
        for place, tensor in changes.numbers(changes.leaves_of(down)).items()
        if (name := _name(place)) in layout.parameters
        and tensor.dtype == torch.float32
        and tuple(tensor.shape) == tuple(layout[name].shape)
    }


def check_shared(one: Params, other: Params) -> None:
    """Raises ValueError unless the requests to two clients have the same parameters in them."""
    alike = one.keys() == other.keys() and all(torch.equal(one[p], other[p]) for p in one)
    if not one or not alike:
        raise ValueError(
            "requests of this method hold no parameters that all clients are sent alike, so there "
            "is no copy that all of them could hold; compress its replies only"
        )


def check_alike(now: Params, before: Params) -> None:
    """Raises ValueError if a request has other tensors than the one before."""
    if {p: t.shape for p, t in now.items()} != {p: t.shape for p, t in before.items()}:
        raise ValueError(
            "requests of this method are not always of the same form, so that they have no "
            "differences; compress its replies only"
        )


def emptied(record: T, places: Collection[str]) -> T:
    """The record without its numbers at some places; their shapes stay, where they are fixed."""

    def empty(place: str, tensor: Tensor) -> Tensor:
        if place not in places:
            return tensor
        return tensor.new_empty((0,) if place in packed else (0, *tensor.shape))

    packed = _packed(record)
    return changes.mapped(record, empty)


def filled(record: T, numbers: Mapping[str, Tensor]) -> T:
    """The record with numbers at the places that were emptied."""
    return changes.mapped(record, lambda place, tensor: numbers.get(place, tensor))


def like(record: Any) -> Params:
    """Tensors of the shapes that an emptied record had."""
    packed, numbers = _packed(record), changes.numbers(changes.leaves_of(record))
    return {
        place: torch.empty(tensor.shape[1:])
        for place, tensor in numbers.items()
        if place not in packed and tensor.dim() and not len(tensor)
    }


def restored(down: Any, record: Any, change: Params, method: AnyMethod) -> Any:
    """The reply whose numbers were compressed; those of a bounded range stay in it."""
    stub = filled(record, change)
    known = changes.references(Exchange(_NOBODY, down, stub))
    bounds = declared(method)

    def moved(place: str, tensor: Tensor) -> Tensor:
        if place not in change:
            return tensor
        whole = known[place].double() + tensor.double()
        if bounds.least is not None or bounds.most is not None:
            whole = whole.clamp(bounds.least, bounds.most)
        return whole.to(known[place].dtype)

    return changes.mapped(stub, moved)


def finite(change: Params) -> Params:
    """The change, or one that every receiver refuses if some number is not finite."""
    total = math.fsum(float(tensor.double().sum()) for tensor in change.values())
    if math.isfinite(total):
        return change
    return {place: torch.full_like(tensor, torch.nan) for place, tensor in change.items()}


def _packed(record: Any) -> set[str]:
    return {
        f"{path}[{name}]"
        for path, leaf in changes.leaves_of(record)
        if isinstance(leaf, Packed)
        for name in leaf.values
    }


def _is_buffer(ctx: Ctx, place: str) -> bool:
    return _name(place) in ctx.task.layout.buffers


def _name(place: str) -> str:
    """The tensor's name in the model: `fc.bias` of `params[fc.bias]`."""
    return place.partition("[")[2].removesuffix("]")


def _hint(method: AnyMethod, function: str) -> Any:
    return typing.get_type_hints(getattr(type(method), function)).get("return")


def _kinds(hint: Any) -> Iterator[Any]:
    """All types in a hint and in the fields of its records."""
    for argument in typing.get_args(hint):
        yield from _kinds(argument)
    kind = typing.get_origin(hint) or hint
    yield kind
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind not in (Packed, Drawn):
        for inner in typing.get_type_hints(kind).values():
            yield from _kinds(inner)


def _paths(hint: Any, path: str = "") -> set[str]:
    """The fields of records that may hold numbers."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return {each for member in typing.get_args(hint) for each in _paths(member, path)}
    kind = typing.get_origin(hint) or hint
    if kind in (Tensor, dict, Packed):
        return {path}
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return set()
    fields = typing.get_type_hints(kind)
    return {p for name, inner in fields.items() for p in _paths(inner, f"{path}.{name}")}
