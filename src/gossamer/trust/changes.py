"""What a client changed: the numbers of its reply, less what the server had sent it.

A reply is treated as one long vector: all numbers of all its fields. Where the message down has a
number at the same place (same field, same name, same position in the model), the change is their
difference. Numbers without such a counterpart, such as gradients, sensitivities or replies that
are differences already, are changes as they stand. Integers, texts and masks are no part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from gossamer.core import Exchange, Masks
from gossamer.wire import Drawn, Packed, Revision, Schema, flatten, unpack
from gossamer.wire.kinds import Leaf, is_masks

D = TypeVar("D")
U = TypeVar("U")

Leaves: TypeAlias = list[tuple[str, Any]]
"""The leaves of a record, each after its path."""
Change: TypeAlias = dict[str, Tensor]
"""The numbers of a reply in float64, by their place in its record, such as `params[fc.bias]`."""


def change(exchange: Exchange[Any, Any]) -> Change:
    """A reply's change as a whole record.

    Values on a mask are compared with what was sent at the same weights: with all that was sent if
    the reply names no masks (they lie on the masks of the request), else at the weights of the
    reply's masks, where the request's masks are in the request. A weight that was not sent was
    zero. Without the request's masks, the values stand as they are.

    Args:
        exchange: What was sent to a client, and its reply.

    Returns:
        All floating-point numbers of the reply; empty if it has none, such as a reply of bits.
    """
    return {
        place: tensor.double() if sent is None else tensor.double() - sent.double()
        for place, (tensor, sent) in beside(exchange).items()
    }


def beside(exchange: Exchange[Any, Any]) -> dict[str, tuple[Tensor, Tensor | None]]:
    """The numbers of a reply, each tensor beside what was sent at the same weights, if known."""
    return compared(exchange, leaves_of(exchange.up), leaves_of(exchange.down))


def compared(
    exchange: Exchange[Any, Any], replied: Leaves, requested: Leaves
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """As `beside`, for who has the leaves of both records already."""
    own = numbers(replied)
    known = _references(exchange, own, replied, requested)
    return {place: (tensor, known.get(place)) for place, tensor in own.items()}


def references(exchange: Exchange[Any, Any]) -> dict[str, Tensor]:
    """What was sent at the places of the reply's numbers, where that is known."""
    replied = leaves_of(exchange.up)
    return _references(exchange, numbers(replied), replied, leaves_of(exchange.down))


def norm(change: Mapping[str, Tensor]) -> float:
    """The L2 norm of a whole change, in float64; not finite if one of its numbers is not."""
    return math.sqrt(sum(float(part.square().sum()) for part in change.values()))


def with_change(exchange: Exchange[D, U], change: Mapping[str, Tensor]) -> Exchange[D, U]:
    """The exchange in which the client changed something else.

    Args:
        exchange: What was sent to a client, and its reply.
        change: The new change, with the places and shapes of `change(exchange)`.

    Returns:
        The exchange whose reply has that change; its other leaves, types and shapes are the same.
    """
    both = beside(exchange)

    def moved(place: str, reply: Tensor) -> Tensor:
        _, sent = both[place]
        now = change[place] if sent is None else sent.double() + change[place]
        return now.to(reply.dtype)

    return replace(exchange, up=mapped(exchange.up, moved))


def mapped(record: U, function: Callable[[str, Tensor], Tensor]) -> U:
    """The record with other floating-point tensors, given their places and what they are."""
    leaves: list[Leaf] = []
    for path, leaf in leaves_of(record):
        match leaf:
            case Tensor() if leaf.is_floating_point():
                leaves.append(function(path, leaf))
            case Packed():
                values = {
                    name: function(f"{path}[{name}]", part) if part.is_floating_point() else part
                    for name, part in leaf.values.items()
                }
                leaves.append(replace(leaf, values=values))
            case _:
                leaves.append(leaf)
    rebuilt: U = Schema.of(record).rebuild(iter(leaves))
    return rebuilt


def scaled(exchange: Exchange[D, U], factor: float) -> Exchange[D, U]:
    """The exchange with its change multiplied: what was sent + factor * change.

    A factor of 1 returns the exchange itself, so that a reply within its bound keeps its bits.
    """
    if factor == 1:
        return exchange
    whole = change(exchange)
    return with_change(exchange, {place: part * factor for place, part in whole.items()})


def leaves_of(record: object) -> Leaves:
    """The leaves of a record with their paths."""
    paths = (path for path, _ in Schema.of(record).leaves)
    return list(zip(paths, flatten(record), strict=True))


def numbers(leaves: Leaves) -> dict[str, Tensor]:
    """The floating-point tensors among leaves, by their places."""
    found = {}
    for path, leaf in leaves:
        if isinstance(leaf, Tensor):
            found[path] = leaf
        elif isinstance(leaf, Packed):
            found |= {f"{path}[{name}]": tensor for name, tensor in leaf.values.items()}
    return {place: tensor for place, tensor in found.items() if tensor.is_floating_point()}


def _references(
    exchange: Exchange[Any, Any],
    own: Mapping[str, Tensor],
    replied: Leaves,
    requested: Leaves,
) -> dict[str, Tensor]:
    sent = numbers(requested)
    known = {
        place: sent[place]
        for place, tensor in own.items()
        if place in sent and sent[place].shape == tensor.shape
    }
    before = {path: leaf for path, leaf in requested if isinstance(leaf, Packed)}
    for path, leaf in replied:
        if isinstance(leaf, Packed) and (chosen := _masks_of(exchange.up, leaf)) is not None:
            # The reply lies on masks of its own: equal counts do not mean equal weights.
            places = {name: f"{path}[{name}]" for name in leaf.values}
            for place in places.values():
                known.pop(place, None)
            if path in before:
                known |= _on(chosen, before[path], exchange.down, places)
    return known


def _on(chosen: Masks, sent: Packed, down: object, places: Mapping[str, str]) -> dict[str, Tensor]:
    """What was sent at the weights of other masks; nothing if the request does not name its own."""
    masks = _masks_of(down, sent)
    if masks is None:
        return {}
    whole = unpack(sent, masks)
    return {
        place: whole[name][chosen[name]] if name in chosen else whole[name].flatten()
        for name, place in places.items()
        if name in whole and (name not in chosen or chosen[name].shape == whole[name].shape)
    }


def _masks_of(record: object, packed: Packed) -> Masks | None:
    """The masks in a record on which packed values lie: those whose counts and shapes fit."""
    for leaf in flatten(record):
        match leaf:
            case Revision():
                masks = leaf.masks
            case Drawn():
                masks = leaf.masks()
            case dict() if is_masks(leaf):
                masks = leaf
            case _:
                continue
        if _fit(masks, packed):
            return masks
    return None


def _fit(masks: Masks, packed: Packed) -> bool:
    for name, values in packed.values.items():
        mask = masks.get(name)
        if mask is None:
            if values.numel() != math.prod(packed.shapes[name]):
                return False
        elif tuple(mask.shape) != packed.shapes[name] or int(mask.sum()) != values.numel():
            return False
    return bool(masks.keys() & packed.values.keys()) or not packed.values
