"""How a round's messages reach its clients: the one part of the engine that a network replaces."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gossamer.core import Client, Ctx
from gossamer.cost import Entry
from gossamer.engine.conversation import Conversations, Reply, Talk
from gossamer.engine.evaluate import Figures
from gossamer.engine.workers import Workers
from gossamer.task import Task
from gossamer.wire import fingerprint

LIGHT = 0.007
"""Seconds of a processor: clients that take less would only wait for each other in threads."""


@dataclass(frozen=True)
class Visit:
    """A conversation that is to be held: with whom, and what there is to say."""

    client: Client
    down: Any
    charged: float
    """How often a paper counts what goes down."""
    again: Callable[[], Any] | None
    """What to send to a client that lost what it kept."""

    def begin(
        self, conversations: Conversations, number: int, before: Sequence[Entry] = ()
    ) -> Talk:
        """The server's side of the conversation; `before` is the ledger of one that failed."""
        what = (self.client, self.down, self.charged, self.again)
        return conversations.talk(number, *what, before)


class Transport(Protocol):
    """Carries messages; the order and the moment in which replies arrive change no result."""

    def hold(
        self, conversations: Conversations, ctx: Ctx, state: Any, visits: Sequence[Visit]
    ) -> list[Reply]:
        """One reply for each visit, in any order."""
        ...

    def receipt(self, kept: bytes) -> bytes:
        """The fingerprint of a client's state, of what the server's store has of it."""
        ...

    def figures(
        self, conversations: Conversations, ctx: Ctx, state: Any, clients: Sequence[int]
    ) -> Mapping[int, Figures | None] | None:
        """What clients measured of their own models, None for a model that is the global one.

        Who did not answer is left out. None in place of it all: the server has their states.
        """
        ...


@dataclass(frozen=True)
class Threads:
    """Clients in this process, on the engine's workers; one after another if they are light."""

    workers: Workers
    _effort: list[float] = field(default_factory=lambda: [LIGHT])
    """Seconds that a client of the last round took of a processor, on average."""

    def hold(
        self, conversations: Conversations, ctx: Ctx, state: Any, visits: Sequence[Visit]
    ) -> list[Reply]:
        """The largest start first, to end together."""

        def one(task: Task, visit: Visit) -> tuple[Reply, float]:
            started = time.thread_time()
            reply = conversations.hold(
                task, ctx.round, visit.client, visit.down, visit.charged, visit.again
            )
            return reply, time.thread_time() - started

        by_size = sorted(visits, key=lambda visit: (-visit.client.examples, visit.client.id))
        held = self.workers.map(one, by_size, alone=self._effort[0] < LIGHT)
        if held:
            self._effort[0] = sum(seconds for _, seconds in held) / len(held)
        return [reply for reply, _ in held]

    def receipt(self, kept: bytes) -> bytes:
        return fingerprint(kept).encode()

    def figures(
        self, conversations: Conversations, ctx: Ctx, state: Any, clients: Sequence[int]
    ) -> None:
        return None
