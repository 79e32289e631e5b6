"""Whom a run asks: the method's own cohort, among the clients that are there and preferred."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.core import Client, Ctx
from gossamer.devices.selection import (
    LOOK,
    Sampling,
    Seen,
    candidates,
    first_present,
    preferred,
    present,
    when,
)
from gossamer.engine.events import ClientFinished
from gossamer.engine.run_record import Run

FEW = 8
"""Clients that are there, among whom a method chooses one that begins by itself."""
Known = Mapping[str, Sequence[Any]]
"""What a checkpoint keeps of `Seen`, by client."""


@dataclass(frozen=True)
class Chosen:
    """The clients of a round, ordered by id."""

    clients: Sequence[Client]
    wanted: int
    """How many replies are enough."""
    time: float
    """The virtual time at which they are asked."""


def chosen(
    run: Run,
    ctx: Ctx,
    state: Any,
    now: float,
    known: Known,
    *,
    count: int = 0,
    busy: Collection[int] = (),
    wait: bool = True,
) -> Chosen:
    """Chooses clients.

    The method's `cohort` decides, as always. What it decides among is a part of the pool: those
    that are free, there, and preferred.

    Args:
        run: The run.
        ctx: Where the server stands.
        state: Its state.
        now: The virtual time.
        known: What the server has seen of clients.
        count: How many to choose at most; 0: as many as the method asks for, and spare ones.
        busy: Clients that cannot be chosen.
        wait: Whether to wait if nobody is there; otherwise nobody may be chosen.
    """
    method, pool, fleet = run.method, run.pool, run.fleet
    rule, more = run.conditions.sampling, run.conditions.oversample
    clients = run.clients
    whole = (fleet is None or fleet.always) and rule == Sampling() and not busy
    asked = count or math.ceil((clients or 1) * more)
    if whole and asked == (clients or 1):
        cohort = sorted(method.cohort(ctx, state, pool), key=_by_id)
        return Chosen(cohort, len(cohort), now)
    if whole:
        some, time = pool, now
    else:
        assert fleet is not None
        # Of a large pool, few need be looked at for a few clients that begin now.
        large = len(pool) > LOOK + len(busy)
        most = FEW * count if count and large and rule == Sampling() else len(pool)
        found = candidates(ctx.key, pool, 0 if count else asked, busy)
        some, looked_at = first_present(fleet, found, now, most)
        time, least = now, 1 if count else asked
        if not some and not wait:
            return Chosen([], 0, now)
        if len(some) < least:
            time = when(fleet, looked_at, now, least)
            some = present(fleet, looked_at, time)
        seen = {each.id: Seen(*known[str(each.id)]) for each in some if str(each.id) in known}
        some = preferred(rule, ctx.key, some, asked, seen, ctx.round)
    if clients is None:
        cohort = sorted(method.cohort(ctx, state, some), key=_by_id)
        return Chosen(cohort, len(cohort), time)

    def cohort_of(number: int) -> Sequence[Client]:
        number = min(number, len(some))
        return run.asking(number).cohort(ctx, state, some)

    cohort = sorted(cohort_of(asked), key=_by_id)
    wanted = len(cohort_of(clients)) if more > 1 and not count else len(cohort)
    return Chosen(cohort, min(wanted, len(cohort)), time)


def _by_id(client: Client) -> int:
    return client.id


def updated(run: Run, known: dict[str, Any], finished: Sequence[ClientFinished]) -> dict[str, Any]:
    """What the server has seen after a round; nothing unless a rule needs it."""
    if run.conditions.sampling == Sampling():
        return known
    new = {
        str(event.client): (event.round, event.device_seconds or 0.0, event.metrics.get("loss"))
        for event in finished
    }
    return {**known, **new}
