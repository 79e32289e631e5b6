"""Who is asked to take part: the clients that are there, and those that a rule prefers.

The server sees what it may: which clients are there, and of those that took part how long that
took and the loss that they reported. It never sees a device.

Chai et al.: TiFL: a tier-based federated learning system. HPDC 2020. https://arxiv.org/abs/2001.09249
Lai, Zhu, Madhyastha, Chowdhury: Oort: efficient federated learning via guided participant
selection. OSDI 2021. https://arxiv.org/abs/2010.06081
Cho, Wang, Joshi: Towards understanding biased client selection in federated learning (power of
choice; here with the last known loss, as its variant rpow-d). AISTATS 2022.
https://arxiv.org/abs/2010.01243
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gossamer.core import Client, Key
from gossamer.devices.availability import comes, is_there
from gossamer.devices.fleet import Fleet
from gossamer.devices.permutation import Order

LOOK = 256
"""Clients that are looked at for each choice, besides four for each one wanted; in a larger pool
they are drawn uniformly, so that a choice costs by what is chosen and not by the pool."""
TRIES = 1000
"""How often the server waits for the next client before it takes those that are there."""
EXPLORED, LEAST_EXPLORED, DECAY = 0.9, 0.2, 0.98
"""The share of unknown clients in the first round, at least, and its decay by round (Oort)."""
SLOW = 2.0
"""The exponent of the penalty of clients that are slower than the median (Oort)."""

Kind = Literal["uniform", "tiers", "utility", "power"]


@dataclass(frozen=True)
class Sampling:
    """A rule by which clients are preferred."""

    kind: Kind = "uniform"
    number: int = 0
    """How many tiers, or how many candidates for each client that is wanted."""

    @classmethod
    def parse(cls, text: str) -> Sampling:
        """Reads `uniform`, `tiers:5`, `utility` or `power:2`."""
        word, _, number = text.partition(":")
        match word:
            case "" | "uniform" if not number:
                return cls()
            case "utility" if not number:
                return cls("utility")
            case "tiers" | "power" if number.isascii() and number.isdecimal() and int(number) > 1:
                return cls(word, int(number))
        raise ValueError(f"`sampling=` is uniform, tiers:5, utility or power:2, not {text!r}")


@dataclass(frozen=True)
class Seen:
    """What the server knows of a client since it took part last."""

    round: int
    seconds: float
    loss: float | None = None


Known = Mapping[int, Seen]


def candidates(
    key: Key, pool: Sequence[Client], count: int, busy: Collection[int]
) -> Iterator[Client]:
    """The clients to choose from: all that are free, or a uniform sample of a large pool."""
    look = LOOK + 4 * count
    if len(pool) <= look + len(busy):
        yield from (client for client in pool if client.id not in busy)
        return
    order = Order(key.fold("candidates"), len(pool))
    for number in range(len(pool)):
        client = pool[order.place(number)]
        if client.id not in busy:
            yield client
            look -= 1
            if not look:
                return


def first_present(
    fleet: Fleet, clients: Iterator[Client], time: float, most: int
) -> tuple[list[Client], list[Client]]:
    """Looks at clients until so many are there.

    Returns:
        Those that are there, and all that were looked at; both ordered by id.
    """
    there, seen = list[Client](), list[Client]()
    for client in clients:
        seen.append(client)
        if is_there(fleet.of(client.id).availability, time):
            there.append(client)
            if len(there) == most:
                break
    return sorted(there, key=_by_id), sorted(seen, key=_by_id)


def when(fleet: Fleet, clients: Sequence[Client], now: float, count: int) -> float:
    """The first time, from now on, at which enough of the clients are there together.

    Raises:
        RuntimeError: Nobody comes any more.
    """
    if fleet.always:
        return now
    time = now
    for _ in range(TRIES):
        arrivals = sorted(comes(fleet.of(each.id).availability, time) for each in clients)
        finite = [arrival for arrival in arrivals if arrival < math.inf]
        if not finite:
            raise RuntimeError(
                f"after {time / 3600:.1f} h of virtual time no client comes any more; use traces "
                "that last longer, or repeat them: `availability='traces.csv@7d'`"
            )
        latest = finite[min(count, len(finite)) - 1]
        if latest == time:
            return time
        time = latest
    return comes(fleet.of(clients[0].id).availability, time)


def _by_id(client: Client) -> int:
    return client.id


def present(fleet: Fleet, clients: Sequence[Client], time: float) -> list[Client]:
    """Those of some clients that are there at a time."""
    if fleet.always:
        return list(clients)
    return [each for each in clients if is_there(fleet.of(each.id).availability, time)]


def preferred(
    rule: Sampling, key: Key, clients: Sequence[Client], count: int, known: Known, number: int
) -> list[Client]:
    """The clients that a rule prefers: at least `count` if there are so many, ordered by id."""
    if rule.kind == "uniform" or len(clients) <= count:
        return list(clients)
    draw = key.fold("preferred").numpy()
    match rule.kind:
        case "tiers":
            chosen = _tier(rule.number, draw, clients, count, known)
        case "utility":
            chosen = _useful(draw, clients, count, known, number)
        case _:
            size = min(rule.number * count, len(clients))
            some = [clients[place] for place in draw.choice(len(clients), size, replace=False)]
            chosen = sorted(some, key=lambda each: -_loss(known.get(each.id)))[:count]
    return sorted(chosen, key=lambda client: client.id)


def _loss(seen: Seen | None) -> float:
    """The last known loss; clients that are not known come first."""
    return math.inf if seen is None or seen.loss is None else seen.loss


def _tier(
    tiers: int, draw: np.random.Generator, clients: Sequence[Client], count: int, known: Known
) -> list[Client]:
    """A tier of clients that took about equally long; those not known yet are one more tier."""
    fresh = [each for each in clients if each.id not in known]
    timed = sorted(
        (each for each in clients if each.id in known),
        key=lambda each: (known[each.id].seconds, each.id),
    )
    parts = [[timed[place] for place in part] for part in np.array_split(range(len(timed)), tiers)]
    large = [part for part in (*parts, fresh) if len(part) >= count]
    if not large:
        return list(clients)
    return large[int(draw.integers(len(large)))]


def _useful(
    draw: np.random.Generator, clients: Sequence[Client], count: int, known: Known, number: int
) -> list[Client]:
    """Clients of the largest utility, and a share of unknown ones."""
    fresh = [each for each in clients if each.id not in known]
    share = max(LEAST_EXPLORED, EXPLORED * DECAY**number)
    unknown = min(len(fresh), max(round(share * count), count - (len(clients) - len(fresh))))
    explored = [fresh[place] for place in draw.choice(len(fresh), unknown, replace=False)]
    usual = float(
        np.median([known[each.id].seconds for each in clients if each.id in known] or [0])
    )

    def utility(client: Client) -> float:
        seen = known[client.id]
        value = client.examples * (1.0 if seen.loss is None else abs(seen.loss))
        value += math.sqrt(0.1 * math.log(max(number, 2)) / max(seen.round, 1))
        return value * ((usual / seen.seconds) ** SLOW if seen.seconds > usual else 1.0)

    rest = sorted(
        (each for each in clients if each.id in known), key=lambda each: (-utility(each), each.id)
    )
    return explored + rest[: count - unknown]
