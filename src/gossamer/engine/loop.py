"""The engine's one loop: rounds of clients, merged in the order of their ids."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gossamer import fields
from gossamer.accounting import Accounting, Network
from gossamer.core import Client, Ctx, Key, Measures, budgets_of
from gossamer.data.federation import Federation
from gossamer.engine import checkpoint
from gossamer.engine.checkpoint import Progress
from gossamer.engine.client import Abandoned, AnyMethod, ClientError, server_ctx
from gossamer.engine.conversation import Conversations, Reply
from gossamer.engine.evaluate import Evaluator, check_selection
from gossamer.engine.events import Clock, Event, EventLog, Finished, Sink
from gossamer.engine.measure import measured, measures
from gossamer.engine.options import Options, Stop
from gossamer.engine.store import Store
from gossamer.engine.summary import (
    UNKNOWN,
    Summary,
    advanced,
    best,
    plain_settings,
    round_finished,
    run_started,
)
from gossamer.engine.transport import Threads, Transport, Visit
from gossamer.engine.workers import Workers, cores, keep_freed_memory, one_torch_thread
from gossamer.task import Task
from gossamer.wire import PLAIN, Mode, dump, fingerprint, load, record_types

SHARE_FOR_CHECKPOINTS = 0.02
"""Part of the time that checkpoints may take, unless a number of rounds is asked for."""


def run(
    method: AnyMethod,
    task: Task,
    federation: Federation,
    *,
    rounds: int,
    seed: int = 0,
    out: str | Path | None = None,
    name: str | None = None,
    options: Options = Options(),
    sinks: Sequence[Sink] = (),
    stop: Stop | None = None,
    resume: bool = False,
    wire: Mode = PLAIN,
    dry: bool = False,
    transport: Transport | None = None,
) -> Summary:
    """Trains a method on a federation for some rounds; the same call gives the same bits.

    With `out`, events and checkpoints are kept there, and `resume` continues from the newest
    checkpoint as if nothing had happened. `wire` is how numbers travel, `transport` by what means:
    to threads of this process unless it is given.
    A dry run goes through everything but the training steps: see `gossamer.accounting.dry_run`.
    """
    _check(method, federation, rounds, options)
    with ExitStack() as stack:
        if out is None:
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="gossamer-"))
        stack.enter_context(one_torch_thread())
        keep_freed_memory()
        workers = Workers(task, options.workers or cores())
        stack.callback(workers.close)
        engine = _Engine(
            method,
            task,
            federation,
            rounds,
            seed,
            Path(out),
            name,
            options,
            sinks,
            stop,
            workers,
            wire,
            dry,
            transport or Threads(workers),
        )
        stack.callback(engine.close)
        return engine.run(resume)


def check(
    method: AnyMethod,
    task: Task,
    federation: Federation,
    *,
    rounds: int,
    seed: int = 0,
    options: Options = Options(),
) -> None:
    """Raises what `run` would raise before its first round, and leaves no trace."""
    _check(method, federation, rounds, options)
    method.init(server_ctx(task, Key(seed), 0, rounds, budgets_of(federation.pool)))


def _check(method: AnyMethod, federation: Federation, rounds: int, options: Options) -> None:
    fields.check(method)
    if rounds < 1:
        raise ValueError(f"a run needs at least 1 round, not {rounds}; use --rounds 1 or more")
    check_selection(options, federation)


class _Engine:
    """One run: the state that the loop moves from round to round."""

    def __init__(
        self,
        method: AnyMethod,
        task: Task,
        federation: Federation,
        rounds: int,
        seed: int,
        out: Path,
        name: str | None,
        options: Options,
        sinks: Sequence[Sink],
        stop: Stop | None,
        workers: Workers,
        wire: Mode,
        dry: bool,
        transport: Transport,
    ) -> None:
        self.method = method
        self.task = task
        self.federation = federation
        self.budgets = budgets_of(federation.pool)
        self.rounds = rounds
        self.key = Key(seed)
        self.out = out
        self.name = name or type(method).__name__.lower()
        self.options = options
        self.sinks = list(sinks)
        self.stop = stop or Stop()
        self.workers = workers
        self.wire = wire
        self.dry = dry
        self.transport = transport
        self.network = Network.parse(options.network) if options.network else None
        self.accounting: Accounting = getattr(method, "accounting", Accounting())
        self.types = record_types(method)
        self.folder = out / "rounds"
        self.progress = Progress()
        self.state: Any = None
        self.log: EventLog | None = None
        self.holding = ExitStack()
        self.began = time.perf_counter()
        self.saved_at = self.began
        self.save_took = 0.0
        self.saved_round = -1

    # the run -----------------------------------------------------------------------------------

    def run(self, resume: bool) -> Summary:
        found = checkpoint.newest(self.folder) if resume else None
        if found is None:
            self.state = self.method.init(self.server_ctx(0))
        else:
            checkpoint.check_continues(found, self.out, self.identity())
            self.progress = found.progress
            self.state = load(found.server, self.types)
        self.shown = measures(self.method, self.server_ctx(self.progress.round), self.state)
        checkpoint.ready(self.out, 3 * len(dump(self.state)) + 2**20)
        self.holding.enter_context(checkpoint.held(self.out))
        self.folder.mkdir(exist_ok=True)
        self.store = Store(self.folder, self.types)
        self.store.rollback(self.progress.round if found else -1)
        if found is not None:
            checkpoint.check_states(found, self.out, len(self.store.clients()))
        self.log = EventLog(self.out / "events.jsonl", found.events if found else 0)
        self.conversations = Conversations(
            self.method,
            self.federation,
            self.store,
            self.key,
            self.rounds,
            self.out,
            self.options,
            self.stop,
            self.wire,
            self.accounting,
            self.network,
            self.dry,
            f"{self.name.rpartition(':')[2]}-{self.identity()}",
        )
        asked = partial(self.transport.figures, self.conversations)
        what = (self.method, self.federation, self.workers, self.options)
        self.evaluate = Evaluator(*what, asked)
        self.before = self.progress.seconds
        if found is None:
            run = (self.method, self.name, self.rounds, self.key.seed)
            self.emit(run_started(*run, self.federation, self.task.layout))
            if self.shown.masks:
                self.measure(Measures())
            self.assess()
            self.save()
        else:
            self.saved_round = self.progress.round
        interrupted = self.loop()
        state_hash = self.state_hash()
        if not interrupted:
            self.emit(
                Finished(
                    self.progress.round,
                    self.progress.accuracy,
                    self.progress.density,
                    state_hash,
                    self.options.select,
                ),
                self.seconds(),
            )
        return Summary(
            method=self.name,
            run=str(self.out),
            rounds=self.progress.round,
            accuracy={**UNKNOWN, **self.progress.accuracy},
            select=self.options.select,
            density=self.progress.density,
            cost=self.progress.cost,
            device_seconds=self.progress.device_seconds,
            failed=self.progress.failed,
            seconds=self.seconds(),
            state_hash=state_hash,
            interrupted=interrupted,
            state=self.state,
        )

    def loop(self) -> bool:
        """Rounds until the last one; True if asked to stop before."""
        while self.progress.round < self.rounds:
            if self.stop.after_round():
                self.save()
                return True
            try:
                self.round(self.progress.round + 1)
            except Abandoned:
                self.store.rollback(self.progress.round)
                self.save()
                return True
            except ClientError:
                self.store.rollback(self.progress.round)
                self.save()
                raise
            if self.due():
                self.save()
        self.save()
        return False

    def round(self, number: int) -> None:
        started = time.perf_counter()
        ctx = self.server_ctx(number)
        cohort = self.method.cohort(ctx, self.state, self.federation.pool)
        ordered = sorted(cohort, key=lambda client: client.id)
        replies = self.train(ctx, ordered)
        failures = [reply.failure for reply in replies if reply.failure is not None]
        self.state, refused = self.conversations.merge(ctx, self.state, replies)
        failures += refused
        finished = [reply.event for reply in replies if reply.event is not None]
        for reply in replies:
            if reply.event is not None:
                self.emit(reply.event, reply.seconds)
        for failure in failures:
            self.emit(failure)
        timed = self.network is not None
        self.progress = advanced(self.progress, finished, failures, timed, self.seconds())
        told = round_finished(self.progress, finished, failures)
        self.emit(told, time.perf_counter() - started)
        before, self.shown = self.shown, measures(self.method, ctx, self.state)
        self.measure(before)
        every = self.options.eval_every
        if every and (number % every == 0 or number == self.rounds):
            self.assess()

    # clients -----------------------------------------------------------------------------------

    def train(self, ctx: Ctx, cohort: Sequence[Client]) -> list[Reply]:
        """Every client's reply, in the order of ids."""
        charged = 1.0
        if self.accounting.recipients == "all" and cohort:
            charged = len(self.federation.pool) / len(cohort)
        resend = getattr(self.method, "resend", None)
        visits = [
            Visit(
                client,
                self.method.down(ctx, self.state, client),
                charged,
                partial(resend, ctx, self.state, client) if resend else None,
            )
            for client in cohort
        ]
        replies = self.transport.hold(self.conversations, ctx, self.state, visits)
        return sorted(replies, key=lambda reply: reply.client.id)

    # what surrounds it -------------------------------------------------------------------------

    def server_ctx(self, number: int) -> Ctx:
        return server_ctx(self.task, self.key, number, self.rounds, self.budgets)

    def measure(self, before: Measures) -> None:
        """Tells what the method shows of its state now, and how far it moved from before."""
        if found := measured(self.progress.round, before, self.shown):
            self.emit(found)

    def assess(self) -> None:
        if not self.options.eval_every:
            return
        started = time.perf_counter()
        found = self.evaluate(self.server_ctx(self.progress.round), self.state, self.store)
        so_far = best(self.progress.accuracy, found, self.progress.density, self.options.select)
        self.progress = replace(self.progress, accuracy=so_far)
        self.emit(found, time.perf_counter() - started)

    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.began

    def due(self) -> bool:
        """Whether a checkpoint should be written after this round."""
        if every := self.options.checkpoint_every:
            return self.progress.round % every == 0
        passed = time.perf_counter() - self.saved_at
        return passed * SHARE_FOR_CHECKPOINTS >= self.save_took

    def save(self) -> None:
        if self.saved_round == self.progress.round:
            return
        assert self.log is not None
        started = time.perf_counter()
        self.log.sync()
        progress = replace(self.progress, seconds=self.seconds())
        new = self.store.new()
        kept = checkpoint.save(
            self.folder,
            progress,
            dump(self.state),
            self.log.position,
            self.identity(),
            new,
            len(self.store.clients()),
        )
        self.store.commit(kept)
        self.saved_at = time.perf_counter()
        self.save_took = self.saved_at - started
        self.saved_round = self.progress.round

    def identity(self) -> str:
        """A hash of what decides the results, also of the data on which a round is chosen."""
        shapes = {name: leaf.shape for name, leaf in self.task.layout.leaves.items()}
        data = self.federation.describe()
        what = (self.name, plain_settings(self.method), self.rounds, self.key.seed, data, shapes)
        chosen = [] if self.options.select == "test" else [self.options.select]
        return fingerprint(json.dumps([*what, str(self.wire), *chosen], default=str).encode())

    def state_hash(self) -> str:
        """A hash of the server's state and of every client's."""
        parts = [dump(self.state)]
        for id in self.store.clients():
            parts += [str(id).encode(), self.transport.receipt(self.store.raw(id) or b"")]
        return fingerprint(*parts)

    def emit(self, event: Event, seconds: float = 0.0) -> None:
        assert self.log is not None
        clock = Clock(time.time(), seconds)
        self.log.emit(event, clock)
        for sink in self.sinks:
            sink.emit(event, clock)

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
        self.holding.close()
        for sink in self.sinks:
            sink.close()
