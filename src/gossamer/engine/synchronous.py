"""A synchronous round: all chosen clients are asked at once, and those in time are merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gossamer.core import Client, Ctx
from gossamer.engine.choosing import Chosen, Known, chosen
from gossamer.engine.conversation import Conversations, Visit
from gossamer.engine.run_record import Run
from gossamer.engine.transport import Transport
from gossamer.engine.virtual_time import Gathered, affordable, judged, part_of
from gossamer.engine.workers import Workers
from gossamer.task import Task


@dataclass(frozen=True)
class Together:
    """Asks the clients of a round."""

    run: Run
    conversations: Conversations
    transport: Transport
    workers: Workers
    visit: Callable[[Ctx, Any, Client, int], Visit]
    """What to send to a client of so many."""

    def gather(self, ctx: Ctx, state: Any, now: float, known: Known) -> Gathered:
        """The message path of a round: from choosing the clients to their replies.

        Args:
            ctx: Where the server stands.
            state: Its state, which clients are sent.
            now: The virtual time.
            known: What the server has seen of clients.
        """
        run, guard = self.run, self.conversations.guard
        if guard is None:
            found = chosen(run, ctx, state, now, known)
        else:
            drawn = sorted(guard.cohort(ctx, run.pool), key=lambda client: client.id)
            found = Chosen(drawn, len(drawn), now)
        visits = [self.visit(ctx, state, each, len(found.clients)) for each in found.clients]
        if run.conditions.partial:
            visits = self._shortened(ctx, visits, found.time)
        replies = self.transport.hold(self.conversations, ctx, state, visits)
        replies.sort(key=lambda reply: reply.client.id)
        if run.fleet is None:
            return Gathered(replies)
        return judged(run, ctx.round, replies, found.wanted, found.time)

    def _shortened(self, ctx: Ctx, visits: Sequence[Visit], began: float) -> list[Visit]:
        """Visits with as many steps as fit the deadline, as a rehearsal without steps shows."""

        def rehearsed(task: Task, visit: Visit) -> Visit:
            reply = self._dry.hold(task, ctx.round, visit)
            if reply.event is None:
                return visit
            part = part_of(self.run, reply, ctx.round, began)
            steps = affordable(part, reply.event.steps, self.run.conditions.deadline)
            return replace(visit, steps=steps) if 0 < steps < reply.event.steps else visit

        return self.workers.map(rehearsed, visits)

    @cached_property
    def _dry(self) -> Conversations:
        """Conversations in which clients skip their training."""
        conversations = self.conversations
        return Conversations(replace(self.run, dry=True), conversations.store, conversations.stop)
