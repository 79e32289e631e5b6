"""How a round's messages reach its clients: the one part of the engine that a network replaces."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gossamer.accounting import Entry
from gossamer.core import Client, Ctx
from gossamer.engine.conversation import Conversations, Reply, Talk
from gossamer.engine.evaluate import Figures
from gossamer.engine.workers import Workers
from gossamer.task import Task
from gossamer.wire import fingerprint

LIGHT = 0.007
"""Seconds of a processor: clients that take less may only wait for each other in threads."""
AGAIN = 32
"""Rounds of light clients after which the slower of both ways is tried once more."""


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


@dataclass
class Pace:
    """Whether clients train one after another: light ones do, if that was found to be faster.

    It depends on how much of their time they hold the interpreter's lock, which nobody can tell.
    """

    light: bool = False
    taken: dict[bool, float] = field(default_factory=dict)
    """Seconds of a round for each example: in threads, and one after another."""
    rounds: int = 0

    def alone(self) -> bool:
        """The way of the next round: one that was not tried yet, else the faster one."""
        if not self.light:
            return False
        for way in (False, True):
            if way not in self.taken:
                return way
        faster = self.taken[True] < self.taken[False]
        return faster if self.rounds % AGAIN else not faster

    def note(self, alone: bool, effort: float, seconds: float) -> None:
        """How it was: a client's seconds of a processor, the round's seconds for each example."""
        if self.rounds:  # in the first one, threads are started
            self.taken[alone] = seconds
        self.rounds += 1
        self.light = effort < LIGHT


@dataclass(frozen=True)
class Threads:
    """Clients in this process, on the engine's workers; one after another if that is faster."""

    workers: Workers
    pace: Pace = field(default_factory=Pace)

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
        alone, began = self.pace.alone(), time.perf_counter()
        held = self.workers.map(one, by_size, alone=alone)
        if held:
            effort = sum(seconds for _, seconds in held) / len(held)
            examples = sum(visit.client.examples for visit in visits)
            self.pace.note(alone, effort, (time.perf_counter() - began) / max(examples, 1))
        return [reply for reply, _ in held]

    def receipt(self, kept: bytes) -> bytes:
        return fingerprint(kept).encode()

    def figures(
        self, conversations: Conversations, ctx: Ctx, state: Any, clients: Sequence[int]
    ) -> None:
        return None
