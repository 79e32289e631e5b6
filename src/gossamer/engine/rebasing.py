"""Stale replies, as if their clients had made the same change to what they would be sent now.

A client is sent numbers x and replies with y. When its reply is merged the server would send it
x', because it has merged others since. The method is handed the reply x' + s (y - x), with the
weight s of the reply's age, and the request x'. So whatever its `merge` makes of replies, it makes
of changes relative to the server's state (FedBuff); a plain mean gives x' + mean of s (y - x).

Numbers without a counterpart in the request are changes as they stand, and multiplied by s. Running
statistics are no sums of changes, so the client's are mixed in: x' + s (y - x'). FedAsync does that
with all numbers. Bits that were drawn with probability x are drawn again, with the probability
x' + s (y - x), which is the bit itself if nothing has changed. Masks and integers stay.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gossamer.core import Exchange, Key
from gossamer.trust import changes
from gossamer.trust.declared import Privacy


@dataclass(frozen=True)
class Rebase:
    """How the replies of a run are re-based."""

    declared: Privacy
    """What a method says of its replies: bounds of numbers, and bits with their probabilities."""
    statistics: Collection[str]
    """Names of running statistics."""
    models: bool = False
    """Whether all numbers are mixed as they are, not as changes."""

    def __call__(
        self, exchange: Exchange[Any, Any], now: Any, age: int, weight: float, key: Key
    ) -> Exchange[Any, Any]:
        """The exchange with another request, and the reply that fits it.

        Args:
            exchange: What was sent and what came back.
            now: What the client would be sent now.
            age: Merges since the request.
            weight: How much the reply counts.
            key: Of the bits that are drawn again.
        """
        before = changes.beside(exchange)
        after = changes.beside(replace(exchange, down=now))

        def moved(place: str, reply: Tensor) -> Tensor:
            sent, current = before[place][1], after[place][1]
            if sent is None or current is None:
                return reply if weight == 1 else (reply.double() * weight).to(reply.dtype)
            base = current if self.models or _name(place) in self.statistics else sent
            if weight == 1 and (base is current or torch.equal(sent, current)):
                return reply
            value = current.double() + weight * (reply.double() - base.double())
            low, high = self.declared.least, self.declared.most
            if low is not None or high is not None:
                value = value.clamp(low, high)
            return value.to(reply.dtype)

        up = changes.mapped(exchange.up, moved)
        for field, wanted in self.declared.bits.items():
            chances = (getattr(exchange.down, wanted), getattr(now, wanted))
            up = replace(up, **{field: _redrawn(getattr(up, field), *chances, weight, key)})
        return Exchange(exchange.client, _with_numbers(exchange.down, now), up, age)


def _with_numbers(sent: Any, now: Any) -> Any:
    """The request with the numbers of another one, at the places that both have."""
    current = changes.numbers(changes.leaves_of(now))

    def taken(place: str, tensor: Tensor) -> Tensor:
        other = current.get(place)
        return tensor if other is None or other.shape != tensor.shape else other

    return changes.mapped(sent, taken)


def _redrawn(
    bits: dict[str, Tensor],
    sent: dict[str, Tensor],
    now: dict[str, Tensor],
    weight: float,
    key: Key,
) -> dict[str, Tensor]:
    drawn = {}
    for name, bit in bits.items():
        chance = now[name].double() + weight * (bit.double() - sent[name].double())
        draw = torch.from_numpy(key.fold(name).numpy().random(chance.numel())).view(chance.shape)
        drawn[name] = draw < chance
    return drawn


def _name(place: str) -> str:
    """The tensor at a place such as `params[bn.running_var]`."""
    return place[place.find("[") + 1 : -1]
