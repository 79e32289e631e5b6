"""Limits behind the wire: a well-formed reply may still be absurd.

A reply's change is measured field by field, and compared with those of the other clients and of
recent rounds. What a client claims about its work is bounded by what it can have done. State that
is not finite is never accepted: the replies that caused it are found by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from gossamer.arithmetic import sums
from gossamer.core import Client, Exchange
from gossamer.trust.changes import Leaves, compared, leaves_of
from gossamer.wire import Packed, flatten

T = TypeVar("T")

Norms: TypeAlias = dict[str, list[float]]
"""The median norms of recent rounds, oldest first, by field of a reply."""

RECENT = 5
"""Rounds whose median norms are remembered."""
FEW = 3
"""From so many replies on, their own median can be relied on."""
ALLOWED = 2.0
"""A change up to this multiple of what was sent is never refused: clients whose data are fitted
send changes near zero, and must not shut out those that still learn or that replaced their mask."""


@dataclass(frozen=True)
class Size:
    """The norms of a reply by field: of its change, and of what was sent."""

    changes: Mapping[str, float]
    sent: Mapping[str, float]
    examples: int = 1
    """Of the client: who takes more steps may change more."""


def measured(
    exchanges: Iterable[Exchange[Any, Any]], sizes: dict[int, Size]
) -> Iterator[Exchange[Any, Any]]:
    """Hands exchanges on, and notes the norms of replies in `sizes`, by client.

    A request that several clients were sent is read once, and a reply that is noted not again.
    """
    down, requested, sent = None, Leaves(), dict[str, float]()
    for exchange in exchanges:
        if exchange.down is not down:
            down, requested = exchange.down, leaves_of(exchange.down)
            sent = _squares(requested)
        if exchange.client.id not in sizes:
            sizes[exchange.client.id] = size(exchange, requested, sent)
        yield exchange


def size(exchange: Exchange[Any, Any], requested: Leaves, sent: Mapping[str, float]) -> Size:
    """The norms of a reply, by fields such as `Update.model.values`.

    Args:
        exchange: What was sent to a client, and its reply.
        requested: The leaves of what was sent.
        sent: Their squared norms, by field.
    """
    kind = type(exchange.up).__name__
    squares: dict[str, float] = {}
    replied = leaves_of(exchange.up)
    for place, (tensor, before) in compared(exchange, replied, requested).items():
        field = place.partition("[")[0]
        squares[field] = squares.get(field, 0.0) + sums.square(tensor, before)
    for path, leaf in replied:
        if isinstance(leaf, float):
            field = path.partition("[")[0]
            squares[field] = squares.get(field, 0.0) + leaf**2
    whole = math.fsum(sent.values())
    return Size(
        {f"{kind}.{field}": _root(square) for field, square in squares.items()},
        {f"{kind}.{field}": _root(sent.get(field, whole)) for field in squares},
        exchange.client.examples,
    )


def outside(sizes: Mapping[int, Size], recent: Norms, limit: float) -> dict[int, str]:
    """Replies far larger than those of the other clients.

    A client with more examples than most takes more steps, and may change more in proportion.

    Args:
        sizes: Of the replies of a round, by client.
        recent: Median norms of recent rounds.
        limit: How many times the usual norm is let through.

    Returns:
        By client, the field and by how much.
    """
    refused: dict[int, str] = {}
    for field in dict.fromkeys(name for each in sizes.values() for name in each.changes):
        having = [each for each in sizes.values() if field in each.changes]
        norms = [each.changes[field] for each in having]
        usual = _usual(norms, recent.get(field, []))
        least = ALLOWED * median_low([each.sent[field] for each in having])
        examples = max(median_low([each.examples for each in having]), 1)
        for client, each in sizes.items():
            found = each.changes.get(field, 0.0)
            most = max(limit * usual * max(1.0, each.examples / examples), least)
            if most and math.isfinite(most) and not found <= most and client not in refused:
                refused[client] = (
                    f"{field.partition('.')[2] or field} changed by a norm of {found:.3g}, where "
                    f"{usual:.3g} is usual and {most:.3g} the most; see `reply_limit=`"
                )
    return refused


def _usual(norms: Sequence[float], recent: Sequence[float]) -> float:
    """The usual norm of a field: one or two replies alone do not change what was usual before."""
    now = median_low(norms)
    if len(norms) >= FEW:
        return max(now, median_low(recent)) if recent else now
    return median_low([*recent, now])


def remembered(sizes: Iterable[Size], recent: Norms) -> Norms:
    """The memory after a round: the medians of all its replies, refused ones too.

    A change of the usual size that lasts is therefore accepted after a few rounds.
    """
    norms: Norms = {}
    for each in sizes:
        for field, norm in each.changes.items():
            norms.setdefault(field, []).append(norm if math.isfinite(norm) else 0.0)
    now = {field: [*recent.get(field, []), median_low(each)] for field, each in norms.items()}
    return {**recent, **{field: each[-RECENT:] for field, each in now.items()}}


# states ------------------------------------------------------------------------------------------


def is_finite(state: object, before: object = None) -> bool:
    """Whether all numbers of a state are finite; tensors that `before` has too are not read."""
    known = {id(tensor) for tensor in _tensors(before)}
    floats = (leaf for leaf in flatten(state) if isinstance(leaf, float))
    return all(map(math.isfinite, floats)) and all(
        bool(torch.isfinite(tensor.sum(dtype=torch.float64)))
        for tensor in _tensors(state)
        if id(tensor) not in known and tensor.is_floating_point()
    )


def culprits(items: Sequence[T], sound: Callable[[Sequence[T]], bool]) -> list[T]:
    """The items without which the others are sound, by bisection.

    Args:
        items: In some order.
        sound: Whether some of the items can be accepted together.

    Returns:
        Items that are unsound alone; if items are unsound only together, the last of them.

    >>> culprits([1, 5, 2, 7, 3], lambda numbers: all(n < 4 for n in numbers))
    [5, 7]
    """
    if not items or sound(items):
        return []
    if len(items) == 1:
        return list(items)
    half = len(items) // 2
    return culprits(items[:half], sound) + culprits(items[half:], sound) or [items[-1]]


# weights -----------------------------------------------------------------------------------------


def capped(pool: Sequence[Client], cap: float) -> dict[int, int]:
    """Clients that claim more than `cap` times the median of examples, and what they count for."""
    sizes = [client.examples for client in pool if client.examples]
    if not cap or not sizes:
        return {}
    most = max(int(cap * median_low(sizes)), 1)
    return {client.id: most for client in pool if client.examples > most}


# records -----------------------------------------------------------------------------------------


def _squares(leaves: Leaves) -> dict[str, float]:
    """The squared norm of every field."""
    squares: dict[str, float] = {}
    for path, leaf in leaves:
        field = path.partition("[")[0]
        for tensor in _tensors(leaf):
            if tensor.is_floating_point():
                squares[field] = squares.get(field, 0.0) + sums.square(tensor)
    return squares


def _tensors(record: object) -> list[Tensor]:
    """The tensors of a record, apart from masks."""
    found: list[Tensor] = []
    for leaf in flatten(record):
        if isinstance(leaf, Packed):
            found += leaf.values.values()
        elif isinstance(leaf, Tensor):
            found.append(leaf)
    return found


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0 else math.inf
