"""The engine's one loop: rounds of clients, merged in the order of their ids."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from gossamer.core import AnyMethod, Client, Ctx, Key, Measures
from gossamer.data.federation import Federation
from gossamer.engine import checkpoint, resuming, until
from gossamer.engine.arithmetic import arithmetic_chosen
from gossamer.engine.checkpoint import Checkpoint, Progress
from gossamer.engine.checks import check_settings, ctx_of
from gossamer.engine.client import Abandoned, ClientError, Stop
from gossamer.engine.conversation import Conversations, Visit
from gossamer.engine.evaluate import Evaluator, sample_notice
from gossamer.engine.events import ClientFailed, Clock, Event, EventLog, Sink, StateLost
from gossamer.engine.expected import Reply
from gossamer.engine.files import notices, private_folder
from gossamer.engine.history import History
from gossamer.engine.measure import measured, measures
from gossamer.engine.options import Options
from gossamer.engine.privacy import Guard, Spent
from gossamer.engine.processor import cores, keep_freed_memory, one_torch_thread
from gossamer.engine.round_figures import advanced, round_finished
from gossamer.engine.run_record import Run
from gossamer.engine.store import Store
from gossamer.engine.summary import Summary, best, environment, run_finished, run_started, summarise
from gossamer.engine.transport import Transport
from gossamer.engine.workers import Threads, Workers
from gossamer.task import Task
from gossamer.wire import dump, fingerprint, load, record_types

CHECKPOINT_OVERHEAD = 0.02
"""The share of the time that adaptive checkpoints may take."""


def run(
    method: AnyMethod,
    task: Task,
    federation: Federation,
    *,
    rounds: int,
    seed: int = 0,
    out: str | Path | None = None,
    options: Options = Options(),
    sinks: Sequence[Sink] = (),
) -> Summary:
    """Trains a method on a federation; the same call gives the same bits.

    `start` has further ways to execute a run: resuming, stopping, other encodings and transports.

    Args:
        method: The method, with its hyper-parameters.
        task: The model and its loss.
        federation: The clients and their data.
        rounds: Rounds of communication.
        seed: Of all randomness.
        out: A folder for events and checkpoints; None keeps nothing.
        options: How the run is executed and reported.
        sinks: Where events go besides the log in `out`.

    Returns:
        The last and best figures, the costs and the final state.

    Raises:
        ClientError: A client failed, and failures are not to be skipped.
    """
    folder = None if out is None else Path(out)
    what = Run(method, task, federation, rounds=rounds, key=Key(seed), options=options, out=folder)
    return start(what, sinks=sinks)


def start(
    run: Run,
    *,
    sinks: Sequence[Sink] = (),
    stop: Stop | None = None,
    resume: bool = False,
    transport: Transport | None = None,
) -> Summary:
    """Executes a run.

    Args:
        run: What is run.
        sinks: Where events go besides the log in `run.out`.
        stop: Through which the run can be asked to stop.
        resume: Whether to continue, bit-identically, from the newest checkpoint in `run.out`.
        transport: How requests reach the clients; None: threads of this process train them.

    Returns:
        The last and best figures, the costs and the final state.

    Raises:
        ClientError: A client failed, and failures are not to be skipped.
        checkpoint.Unusable: The folder is of another run, or is in use.
        files.Damaged: Files of the run are damaged, and no older checkpoint helps.
    """
    check_settings(run)
    with ExitStack() as stack:
        if run.out is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gossamer-"))
            run = replace(run, out=Path(folder))
        stack.enter_context(one_torch_thread())
        keep_freed_memory()
        _ = run.task.planned  # traced once, before threads share it
        _ = run.rule, run.pool  # both are kept for all rounds
        workers = Workers(run.task, run.options.workers or cores())
        stack.callback(workers.close)
        loop = _Loop(run, sinks, stop or Stop(), workers, transport or Threads(workers))
        stack.callback(loop.close)
        loop.open(resume)
        interrupted = loop.rounds()
        return loop.finish(interrupted)


class _Loop:
    """The state that moves from round to round: open, run the rounds, finish."""

    def __init__(
        self,
        run: Run,
        sinks: Sequence[Sink],
        stop: Stop,
        workers: Workers,
        transport: Transport,
    ) -> None:
        self.run = run
        self.sinks = list(sinks)
        self.stop = stop
        self.workers = workers
        self.transport = transport
        self.progress = Progress()
        self.state: Any = None
        self.log: EventLog | None = None
        self.resources = ExitStack()
        self.began = time.perf_counter()
        self.saved_at = self.began
        self.save_took = 0.0
        self.saved_round = -1

    # the run -----------------------------------------------------------------------------------

    def open(self, resume: bool) -> None:
        """Begins a run, or continues it from the newest checkpoint: lock, check, then roll back."""
        folder, identity = self.run.folder, self.run.identity
        checkpoint.ready(folder, 0)
        self.resources.enter_context(checkpoint.held(folder))
        replaceable = getattr(self.run.method, "resend", None) is not None
        found = resuming.find(folder, identity, replaceable) if resume else resuming.Found()
        saved = found.saved
        self.load(saved)
        checkpoint.ready(folder, 3 * len(dump(self.state)) + 2**20)
        for text in (*found.notices, *found.lost.values(), sample_notice(self.run)):
            if text:
                notices.warning("%s", text)
        self.beside = resuming.beside(folder)
        private_folder(folder / "rounds")
        self.store = Store(folder / "rounds", record_types(self.run.method), run=identity)
        self.store.rollback(self.progress.round if saved else -1, saved.states if saved else {})
        log = folder / "events.jsonl"
        self.history = History.read(log, saved.events) if saved else History()
        self.log = EventLog(log, *((saved.events, saved.chain) if saved else ()))
        for client, reason in found.lost.items():
            self.store.forget(client)
            self.emit(StateLost(self.progress.round, client, reason))
        spent = self.progress.privacy
        self.guard = Guard(self.run, Spent(**spent) if spent else None) if self.run.dp else None
        self.conversations = Conversations(self.run, self.store, self.stop, self.guard)
        self.pool = self.run.pool
        remote_figures = partial(self.transport.figures, self.conversations)
        self.evaluate = Evaluator(self.run, self.workers, remote_figures)
        if saved is None:
            self.emit(run_started(self.run))
            self.emit(arithmetic_chosen(self.run, 0, self.shown.masks))
            if self.shown.masks:
                self.measure(Measures())
            self.assess()
            self.save()

    def load(self, saved: Checkpoint | None) -> None:
        """The server's state: the first one, or that of a checkpoint."""
        if saved is None:
            self.state = self.run.method.init(ctx_of(self.run, 0))
        else:
            resuming.check_rounds(saved, self.run.folder, self.run.rounds)
            for text in resuming.other_environment(saved, environment()):
                notices.warning("%s", text)
            self.progress = saved.progress
            self.saved_round = saved.progress.round
            self.state = load(saved.server, record_types(self.run.method))
        self.before = self.progress.seconds
        self.shown = measures(self.run.method, ctx_of(self.run, self.progress.round), self.state)

    def rounds(self) -> bool:
        """Runs rounds until the last one or a goal; True if stopped before."""
        while self.progress.round < self.run.rounds and not self.reached():
            if self.stop.after_round():
                self.save()
                return True
            try:
                self.round(self.progress.round + 1)
            except (Abandoned, ClientError) as problem:
                self.rollback()
                self.save()
                if isinstance(problem, ClientError):
                    raise
                return True
            if self.due():
                self.save()
        self.save()
        return False

    def finish(self, interrupted: bool) -> Summary:
        """The results; a run that came to its end says so in its log."""
        run, progress, state_hash = self.run, self.progress, self.state_hash()
        if not interrupted:
            ended = run_finished(run, progress, state_hash, self.reached())
            self.emit(ended, self.seconds())
        taken = (self.seconds(), self.state, self.history)
        return summarise(run, progress, state_hash, interrupted, *taken, self.reached())

    # a round -----------------------------------------------------------------------------------

    def round(self, number: int) -> None:
        """Trains and merges one round, and reports it."""
        started = time.perf_counter()
        ctx = ctx_of(self.run, number)
        replies, refused = self.exchange(ctx)
        failures = [reply.failure for reply in replies if reply.failure is not None] + refused
        finished = [reply.event for reply in replies if reply.event is not None]
        for reply in replies:
            if reply.lost:
                self.emit(StateLost(number, reply.client.id, reply.lost))
            if reply.event is not None:
                self.emit(reply.event, reply.seconds)
        for failure in failures:
            self.emit(failure)
        self.account(number, [event.client for event in finished])
        timed = self.run.network is not None
        self.progress = advanced(self.progress, finished, failures, timed, self.seconds())
        summary = round_finished(self.progress, finished, failures)
        self.emit(summary, time.perf_counter() - started)
        before, self.shown = self.shown, measures(self.run.method, ctx, self.state)
        self.measure(before)
        every = self.run.options.eval_every
        if every and (number % every == 0 or number == self.run.rounds or self.reached()):
            self.assess()

    def reached(self) -> str:
        """The goal of `--until` that the run has reached; empty if there is none."""
        headline = self.run.task.goal.headline
        return until.reached(self.run.options.until, self.progress, headline.name, headline.better)

    def exchange(self, ctx: Ctx) -> tuple[list[Reply], list[ClientFailed]]:
        """The message path of a round: from choosing the clients to merging their replies.

        Returns:
            The replies in the order of client ids, and those that were refused.
        """
        method, pool = self.run.method, self.pool
        chosen = self.guard.cohort(ctx, pool) if self.guard else None
        if chosen is None:
            chosen = method.cohort(ctx, self.state, pool)
        cohort = sorted(chosen, key=lambda client: client.id)
        visits = [self.visit(ctx, client, len(cohort)) for client in cohort]
        replies = self.transport.hold(self.conversations, ctx, self.state, visits)
        replies.sort(key=lambda reply: reply.client.id)
        merged = self.conversations.merge(ctx, self.state, replies, self.progress.norms)
        self.state, self.progress = merged.state, replace(self.progress, norms=merged.norms)
        return replies, list(merged.refused)

    def visit(self, ctx: Ctx, client: Client, cohort: int) -> Visit:
        """What to send to a client; a paper may charge it for the clients that take no part."""
        method, charged = self.run.method, 1.0
        if self.run.accounting.recipients == "all":
            charged = len(self.run.federation.pool) / cohort
        resend = getattr(method, "resend", None)
        again = partial(resend, ctx, self.state, client) if resend else None
        return Visit(client, method.down(ctx, self.state, client), charged, again)

    def account(self, number: int, senders: Sequence[int]) -> None:
        """Reports what a round has cost clients under differential privacy."""
        if self.guard is not None:
            self.emit(self.guard.account(number, senders))
            self.progress = replace(self.progress, privacy=asdict(self.guard.spent))

    # reports and checkpoints -------------------------------------------------------------------

    def measure(self, before: Measures) -> None:
        """Reports the method's measures of the server state, and how far its masks moved."""
        if event := measured(self.progress.round, before, self.shown):
            self.emit(event)
        number, now = self.progress.round, self.shown.masks
        if number and now is not before.masks and (now or before.masks):
            chosen = arithmetic_chosen(self.run, number, now)
            if chosen != arithmetic_chosen(self.run, number, before.masks):
                self.emit(chosen)

    def assess(self) -> None:
        """Evaluates the models."""
        options = self.run.options
        if not options.eval_every:
            return
        started = time.perf_counter()
        event = self.evaluate(ctx_of(self.run, self.progress.round), self.state, self.store)
        better = self.run.task.goal.headline.better
        figures = best(self.progress.scores, event, self.progress.density, options.select, better)
        self.progress = replace(self.progress, scores=figures)
        self.emit(event, time.perf_counter() - started)
        if options.keep == "best" and figures["best_round"] == self.progress.round:
            checkpoint.save(self.run.folder / checkpoint.BEST, self.checkpoint())

    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.began

    def due(self) -> bool:
        """Whether a checkpoint should be written after this round."""
        if every := self.run.options.checkpoint_every:
            return self.progress.round % every == 0
        passed = time.perf_counter() - self.saved_at
        return passed * CHECKPOINT_OVERHEAD >= self.save_took

    def save(self) -> None:
        """Writes a checkpoint, unless this round has one."""
        if self.saved_round == self.progress.round:
            return
        assert self.log is not None
        started = time.perf_counter()
        self.log.sync()
        new = self.store.new()
        self.store.commit(checkpoint.save(self.run.folder / "rounds", self.checkpoint(), new))
        self.saved_at = time.perf_counter()
        self.save_took = self.saved_at - started
        self.saved_round = self.progress.round

    def checkpoint(self) -> Checkpoint:
        """The state of the run after this round, apart from those of clients."""
        assert self.log is not None
        return Checkpoint(
            replace(self.progress, seconds=self.seconds()),
            dump(self.state),
            self.log.position,
            self.log.chain,
            self.store.states(),
            self.run.identity,
            self.beside,
            environment(),
            self.run.rounds,
        )

    def rollback(self) -> None:
        """Drops what clients kept in a round that does not end."""
        self.store.rollback(self.progress.round, self.store.states(self.progress.round))

    def state_hash(self) -> str:
        """A hash of the server's state and of every client's."""
        parts = [dump(self.state)]
        for id in self.store.clients():
            parts += [str(id).encode(), self.transport.receipt(self.store.raw(id) or b"")]
        return fingerprint(*parts)

    def emit(self, event: Event, seconds: float = 0.0) -> None:
        """Logs an event and passes it to the sinks."""
        assert self.log is not None
        clock = Clock(time.time(), seconds)
        self.log.emit(event, clock)
        self.history.see(event, clock)
        for sink in self.sinks:
            sink.emit(event, clock)

    def close(self) -> None:
        """Closes the log and the sinks, and lets others have the folder."""
        if self.log is not None:
            self.log.close()
        self.resources.close()
        for sink in self.sinks:
            sink.close()
