"""The asynchronous server: clients under way, and the replies of a merge in their virtual order.

Some clients train at any time. When a reply arrives, another client is sent the server's state as
it is then; when enough replies have arrived, they are merged, and that is a round. What happens
when follows from the key and the devices alone: workers only compute. A client whose reply cannot
possibly be the next one need not have been computed, so that several workers are busy at once.

A checkpoint is written between merges, when the buffer is empty. It holds the clients under way as
who they are, when they began and the server's states they were sent; what they reply is computed
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from typing import Any

from gossamer.core import Client, Ctx, Exchange
from gossamer.devices.declared import timing
from gossamer.engine.checks import ctx_of
from gossamer.engine.choosing import Known, chosen
from gossamer.engine.conversation import Conversations, Visit
from gossamer.engine.events import ClientStopped, RoundTimed, Timed
from gossamer.engine.expected import Reply
from gossamer.engine.rebasing import Rebase
from gossamer.engine.run_record import Run
from gossamer.engine.virtual_time import (
    LATE,
    MERGED,
    Gathered,
    Part,
    earliest,
    part_of,
    stopped,
)
from gossamer.engine.workers import Workers
from gossamer.task import Task
from gossamer.trust.declared import declared
from gossamer.wire import dump, load, record_types

PATIENCE = 4
"""A merge that lost so many times the clients under way goes ahead with the replies it has."""


@dataclass
class Flight:
    """A client under way."""

    client: Client
    round: int
    """For which it began: its state is that before this round."""
    began: float
    bound: float
    """Before which nothing is heard of it."""
    result: Callable[[], Reply]
    """Waits for its reply, which some worker computes."""
    part: Part | None = None
    """What becomes of it; None until that is known, and if it really failed."""


@dataclass
class Underway:
    """The clients that train, and the states that they were sent."""

    run: Run
    conversations: Conversations
    workers: Workers
    visit: Callable[[Ctx, Any, Client, int], Visit]
    """What to send to a client of so many."""
    flights: dict[int, Flight] = field(default_factory=dict)
    states: dict[int, Any] = field(default_factory=dict)
    """The server's states by the round that clients began for with them."""
    queue: list[tuple[float, int]] = field(default_factory=list)
    """When something is heard of each client, at the earliest if that is not known; a heap."""
    rounds: dict[int, int] = field(default_factory=dict)
    """For which the clients began whose replies were gathered last."""

    def past(self, saved: Sequence[Any]) -> dict[int, bytes]:
        """The states that clients of a checkpoint were sent, by the rounds they began for."""
        return {number: dump(self.states[number]) for number in sorted({n for _, n, _ in saved})}

    def resume(self, saved: Sequence[Any], past: Mapping[int, bytes]) -> None:
        """Sends the clients of a checkpoint on their way again."""
        types = record_types(self.run.method)
        self.states = {number: load(each, types) for number, each in past.items()}
        pool = {client.id: client for client in self._clients([id for id, _, _ in saved])}
        for id, number, began in saved:
            self._start(pool[id], number, began)

    def settled(self) -> list[tuple[int, int, float]]:
        """The clients under way after a merge, as a checkpoint has them.

        States that nobody trains from any more are dropped.
        """
        needed = {each.round for each in self.flights.values()}
        self.states = {number: each for number, each in self.states.items() if number in needed}
        return [(id, each.round, each.began) for id, each in sorted(self.flights.items())]

    def gather(self, ctx: Ctx, state: Any, now: float, known: Known) -> Gathered:
        """Lets virtual time pass until there are enough replies to merge.

        Args:
            ctx: Where the server stands.
            state: Its state, which clients are sent that begin now.
            now: The virtual time of the last merge.
            known: What the server has seen of clients.
        """
        asked = self.run.conditions.asynchronous
        assert asked is not None
        began, self.states[ctx.round] = now, state
        buffer: dict[int, tuple[Flight, Part]] = {}
        failed: list[Reply] = []
        lost: list[ClientStopped] = []
        rows: list[Timed] = []
        waited, starts = None, 0
        while len(buffer) < asked.buffer and len(failed) + len(lost) < PATIENCE * asked.concurrency:
            here = replace(ctx, key=ctx.key.fold("start", starts))
            starts += 1
            self._fill(here, state, now, known, busy={*self.flights, *buffer})
            flight = self._next()
            reply, part, waited = flight.result(), flight.part, flight.client.id
            now = max(now, part.ended if part else flight.bound)
            if part is None:
                assert reply.failure is not None
                failed.append(replace(reply, failure=replace(reply.failure, round=ctx.round)))
            elif part.outcome == MERGED:
                buffer[flight.client.id] = (flight, part)
            else:
                lost.append(stopped(part, ctx.round, part.ended, part.outcome))
                rows.append(part.timed(part.ended, part.outcome, ctx.round - flight.round))
        replies = failed
        for _, (flight, part) in sorted(buffer.items()):
            rows.append(part.timed(part.ended, MERGED, ctx.round - flight.round))
            event = part.reply.event
            assert event is not None
            replies.append(replace(part.reply, event=replace(event, round=ctx.round)))
        timed = RoundTimed(ctx.round, began, now, waited, sorted(rows, key=lambda row: row.client))
        self.rounds = {id: flight.round for id, (flight, _) in buffer.items()}
        return Gathered(replies, lost, timed)

    def rebased(self, ctx: Ctx, state: Any) -> Callable[[Exchange[Any, Any]], Exchange[Any, Any]]:
        """Makes the gathered replies fit the server's state."""
        run, asked = self.run, self.run.conditions.asynchronous
        assert asked is not None
        rebase = Rebase(
            declared(getattr(run.method, "method", run.method)),
            run.task.layout.buffers,
            asked.merge == "models",
        )
        plain = getattr(run.method, "plain", None)

        def fitting(exchange: Exchange[Any, Any]) -> Exchange[Any, Any]:
            began, client = self.rounds[exchange.client.id], exchange.client
            age = ctx.round - began
            weight = asked.rate * asked.staleness.weight(age)
            now = run.method.down(ctx_of(run, began), state, client)
            key = ctx.key.fold("stale", client.id)
            fits = partial(rebase, now=now, age=age, weight=weight, key=key)
            whole: Exchange[Any, Any] = plain(ctx, exchange, fits) if plain else fits(exchange)
            return whole

        return fitting

    def _fill(self, ctx: Ctx, state: Any, now: float, known: Known, busy: set[int]) -> None:
        """Sends the state to as many clients as have arrived."""
        asked = self.run.conditions.asynchronous
        assert asked is not None
        missing = asked.concurrency - len(self.flights)
        if missing <= 0:
            return
        # If nobody is there, somebody under way may arrive before others come.
        where, wait = (self.run, ctx, state, now, known), not self.flights
        found = chosen(*where, count=missing, busy=busy, wait=wait)
        for client in found.clients:
            self._start(client, ctx.round, found.time)

    def _start(self, client: Client, number: int, began: float) -> None:
        run, conversations = self.run, self.conversations
        assert run.fleet is not None
        asked = run.conditions.asynchronous
        assert asked is not None
        visit = self.visit(ctx_of(run, number), self.states[number], client, asked.buffer)
        bits = 8 * len(conversations.outbox.write(number, visit.down).data)
        device = run.fleet.of(client.id)
        bound = earliest(run, device, number, client.id, bits, began)

        def compute(task: Task, visit: Visit) -> Reply:
            return conversations.hold(task, number, visit)

        result = self.workers.submit(compute, visit)
        self.flights[client.id] = Flight(client, number, began, bound, result)
        heappush(self.queue, (bound, client.id))

    def _next(self) -> Flight:
        """The client of whom something is heard next; it is no longer under way."""
        while True:
            flight = self.flights[heappop(self.queue)[1]]
            if flight.part is not None:
                return self.flights.pop(flight.client.id)
            reply = flight.result()
            if reply.event is None:
                return self.flights.pop(flight.client.id)
            part = part_of(self.run, reply, flight.round, flight.began)
            if part.ended > (limit := flight.began + self.run.conditions.deadline):
                part = replace(part, ended=limit, outcome=LATE)
            flight.part = part
            heappush(self.queue, (part.ended, flight.client.id))

    def _clients(self, ids: Sequence[int]) -> list[Client]:
        pool = self.run.pool
        if all(id < len(pool) and pool[id].id == id for id in ids):
            return [pool[id] for id in ids]
        wanted = set(ids)
        return [client for client in pool if client.id in wanted]


def begins(run: Run) -> int:
    """Rounds of an asynchronous run that are synchronous, before others; -1: the run is none."""
    return timing(run.method).first if run.conditions.asynchronous else -1
