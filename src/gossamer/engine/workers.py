"""Worker threads in one process, one torch thread each, and the transport to clients on them.

PyTorch releases the interpreter lock inside its kernels, so threads are as fast as processes here;
only clients of a few milliseconds, most of them Python, are faster if they take turns. Results
never depend on the number of workers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeVar

import torch

from gossamer.arithmetic.turns import turns
from gossamer.core import Ctx
from gossamer.engine.conversation import Conversations, Visit
from gossamer.engine.expected import Reply
from gossamer.task import Task
from gossamer.wire import fingerprint

Item = TypeVar("Item")
Out = TypeVar("Out")

LIGHT = 0.007
"""Processor seconds: clients that take less may mostly wait for the interpreter's lock."""
AGAIN = 32
"""Rounds of light clients after which the slower way is tried once more."""


class Workers:
    """Runs independent pieces of work, each thread with its own copy of the task.

    One worker means no thread at all: tracebacks are plain and `breakpoint()` works.
    """

    def __init__(self, task: Task, count: int) -> None:
        self.count = count
        self._task = task
        self._mine = threading.local()
        self._pool = ThreadPoolExecutor(count, "gossamer", self._start) if count > 1 else None

    def map(self, work: Callable[[Task, Item], Out], items: Sequence[Item]) -> list[Out]:
        """Applies `work`, called with the thread's task and an item, to every item.

        Returns:
            The results in the order of the items. The first error is raised once nothing runs any
            more, so that its handler may clean up.
        """
        if self._pool is None:
            return [work(self._task, item) for item in items]
        futures = [self._pool.submit(self._run, work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            wait(futures)
            raise

    def submit(self, work: Callable[[Task, Item], Out], item: Item) -> Callable[[], Out]:
        """Begins a piece of work, or lets it wait until it is asked for if there is one worker.

        Returns:
            A function that waits for the result.
        """
        if self._pool is None:
            return cache(partial(work, self._task, item))
        return self._pool.submit(self._run, work, item).result

    def close(self) -> None:
        """Waits for running work and ends the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        self._mine.task = self._task.copy()

    def _run(self, work: Callable[[Task, Item], Out], item: Item) -> Out:
        return work(self._mine.task, item)


@dataclass
class Pace:
    """Decides whether clients take turns: light ones do if that is faster.

    That depends on how long they hold the interpreter's lock, so both ways are timed.
    """

    light: bool = False
    taken: dict[bool, float] = field(default_factory=dict)
    """Seconds of a round per example, by whether clients took turns."""
    rounds: int = 0

    def in_turns(self) -> bool:
        """Whether clients of the next round take turns: an untried way first, then the faster."""
        if not self.light:
            return False
        for way in (False, True):
            if way not in self.taken:
                return way
        faster = self.taken[True] < self.taken[False]
        return faster if self.rounds % AGAIN else not faster

    def note(self, in_turns: bool, effort: float, seconds: float) -> None:
        """Records a round.

        Args:
            in_turns: Whether clients took turns.
            effort: Processor seconds of a client.
            seconds: Seconds of the round per example.
        """
        if self.rounds:  # in the first one, threads are started
            self.taken[in_turns] = seconds
        self.rounds += 1
        self.light = effort < LIGHT


@dataclass(frozen=True)
class Threads:
    """The transport to clients in this process, on the engine's workers."""

    workers: Workers
    pace: Pace = field(default_factory=Pace)
    turns: AbstractContextManager[object] = field(default_factory=turns)

    def hold(
        self, conversations: Conversations, ctx: Ctx, state: Any, visits: Sequence[Visit]
    ) -> list[Reply]:
        """Holds all conversations, the largest clients first, so that all end together."""

        in_turns = self.pace.in_turns()
        turn = self.turns if in_turns else nullcontext()

        def one(task: Task, visit: Visit) -> Reply:
            with turn:
                reply = conversations.hold(task, ctx.round, visit)
                if reply.local is not None:  # a file takes as long as a step or two
                    conversations.store.stage(visit.client.id, ctx.round, reply.local)
                return reply

        by_size = sorted(visits, key=lambda visit: (-visit.client.examples, visit.client.id))
        began, busy = time.perf_counter(), time.process_time()
        replies = self.workers.map(one, by_size)
        if replies:
            effort = (time.process_time() - busy) / len(replies)
            examples = sum(visit.client.examples for visit in visits)
            self.pace.note(in_turns, effort, (time.perf_counter() - began) / max(examples, 1))
        return replies

    def receipt(self, kept: bytes) -> bytes:
        """The fingerprint of a client's state."""
        return fingerprint(kept).encode()

    def figures(
        self, conversations: Conversations, ctx: Ctx, state: Any, clients: Sequence[int]
    ) -> None:
        """None: the server has the states."""
