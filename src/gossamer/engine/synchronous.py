"""A synchronous round: all chosen clients are asked at once, and those in time are merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

from gossamer.core import Client, Ctx
from gossamer.engine.choosing import Chosen, Known, chosen
from gossamer.engine.conversation import Conversations, Visit
from gossamer.engine.expected import Reply
from gossamer.engine.run_record import Run
from gossamer.engine.virtual_time import Gathered, affordable, judged, part_of
from gossamer.engine.workers import Workers
from gossamer.task import Task

Change: TypeAlias = Callable[[Sequence[Visit]], Sequence[Visit]]
"""Makes other requests of those that are meant for clients."""


@dataclass(frozen=True)
class Together:
    """Asks the clients of a round."""

    run: Run
    conversations: Conversations
    workers: Workers
    ask: Callable[[Ctx, Any, Sequence[Client], Change | None], list[Reply]]
    """The replies of clients, in the order of ids, after a change of what they are asked."""

    def gather(self, ctx: Ctx, state: Any, now: float, known: Known) -> Gathered:
        """The replies of a round in virtual time.

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
            drawn = guard.cohort(ctx, run.pool)
            found = Chosen(drawn, len(drawn), now)
        # On a network clients look at their own clocks.
        rehearsed = run.conditions.partial and run.fleet is not None
        shorter = partial(self._shortened, ctx, found.time) if rehearsed else None
        replies = self.ask(ctx, state, found.clients, shorter)
        if run.fleet is None:  # the transport has kept the time
            return Gathered(replies)
        return judged(run, ctx.round, replies, found.wanted, found.time)

    def _shortened(self, ctx: Ctx, began: float, visits: Sequence[Visit]) -> Sequence[Visit]:
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
