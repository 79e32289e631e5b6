"""The engine's one loop: rounds of clients, merged in the order of their ids."""

from __future__ import annotations

import platform
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import gossamer
from gossamer import cost, fields
from gossamer.core import Client, Ctx, Exchange, Key
from gossamer.cost import Cost
from gossamer.data.federation import Federation
from gossamer.engine import checkpoint, replay
from gossamer.engine.checkpoint import Progress
from gossamer.engine.client import Abandoned, AnyMethod, ClientError, Stage, train
from gossamer.engine.evaluate import Evaluator
from gossamer.engine.events import (
    SCHEMA,
    ClientFailed,
    ClientFinished,
    Clock,
    Evaluated,
    Event,
    EventLog,
    Finished,
    RoundFinished,
    Sink,
    Started,
)
from gossamer.engine.store import Store
from gossamer.engine.workers import Workers, cores, keep_freed_memory, one_torch_thread
from gossamer.fields import option
from gossamer.task import Task
from gossamer.wire import Schema, decode, dump, encode, fingerprint, load, record_types

OnClientError = Literal["stop", "skip"]

SHARE_FOR_CHECKPOINTS = 0.02
"""Part of the time that checkpoints may take, unless a number of rounds is asked for."""


class Stop:
    """A request to stop: once to finish the round, twice to abandon it."""

    def __init__(self) -> None:
        self._requests = 0

    def request(self) -> int:
        """Asks (again); returns how often that was done."""
        self._requests += 1
        return self._requests

    def after_round(self) -> bool:
        """Whether to stop when the round is over."""
        return self._requests >= 1

    def at_once(self) -> bool:
        """Whether to drop the round."""
        return self._requests >= 2


@dataclass(frozen=True)
class Options:
    """How to run, as opposed to what: nothing here changes a result."""

    workers: int = option(0, "worker threads; 0 means one per core", least=0)
    eval_every: int = option(1, "rounds between evaluations; 0 means never", least=0)
    personal: bool = option(True, "also test every client's model on the client's own test data")
    on_client_error: OnClientError = option("stop", "what to do when a client's training raises")
    checkpoint_every: int = option(
        0, "rounds between checkpoints; 0 means so often that they take 2 % of the time", least=0
    )


@dataclass(frozen=True)
class Summary:
    """What a run came to."""

    method: str
    run: str
    rounds: int
    accuracy: Mapping[str, float | None]
    density: float
    cost: Cost
    seconds: float
    state_hash: str
    interrupted: bool
    state: Any
    """The final server state."""

    def figures(self) -> dict[str, Any]:
        """The figures that `--json` prints."""
        return {
            "method": self.method,
            "run": self.run,
            "rounds": self.rounds,
            "accuracy": dict(self.accuracy),
            "density": self.density,
            "bits": {
                "up": self.cost.up,
                "down": self.cost.down,
                "paper_up": self.cost.paper_up,
                "paper_down": self.cost.paper_down,
            },
            "flops": self.cost.flops,
            "seconds": self.seconds,
            "state_hash": self.state_hash,
            "interrupted": self.interrupted,
        }


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
) -> Summary:
    """Trains a method on a federation for some rounds; the same call gives the same bits.

    With `out`, events and checkpoints are kept there, and `resume` continues from the newest
    checkpoint as if nothing had happened.
    """
    fields.check(method)
    if rounds < 1:
        raise ValueError(f"a run needs at least 1 round, not {rounds}; use --rounds 1 or more")
    with ExitStack() as stack:
        if out is None:
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="gossamer-"))
        stack.enter_context(one_torch_thread())
        keep_freed_memory()
        workers = Workers(task, options.workers or cores())
        stack.callback(workers.close)
        engine = _Engine(
            method, task, federation, rounds, seed, Path(out), name, options, sinks, stop, workers
        )
        stack.callback(engine.close)
        return engine.run(resume)


@dataclass(frozen=True)
class _Reply:
    """A client's answer as it came over the wire, or its failure."""

    client: Client
    down: Any
    schema: Schema | None
    data: bytes
    event: ClientFinished | None
    seconds: float
    error: ClientError | None = None


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
    ) -> None:
        self.method = method
        self.task = task
        self.federation = federation
        self.rounds = rounds
        self.key = Key(seed)
        self.out = out
        self.name = name or type(method).__name__.lower()
        self.options = options
        self.sinks = list(sinks)
        self.stop = stop or Stop()
        self.workers = workers
        self.types = record_types(method)
        self.folder = out / "rounds"
        self.progress = Progress()
        self.state: Any = None
        self.log: EventLog | None = None
        self.began = time.perf_counter()
        self.saved_at = self.began
        self.save_took = 0.0
        self.saved_round = -1
        self._lock = threading.Lock()

    # the run -----------------------------------------------------------------------------------

    def run(self, resume: bool) -> Summary:
        found = checkpoint.newest(self.folder) if resume else None
        if found is None:
            self.state = self.method.init(self.server_ctx(0))
        else:
            self.progress = found.progress
            self.state = load(found.server, self.types)
        checkpoint.ready(self.out, 3 * len(dump(self.state)) + 2**20)
        self.folder.mkdir(exist_ok=True)
        self.store = Store(self.folder, self.types)
        self.store.rollback(self.progress.round if found else -1)
        self.log = EventLog(self.out / "events.jsonl", found.events if found else 0)
        self.evaluate = Evaluator(self.method, self.federation, self.workers, self.options.personal)
        self.before = self.progress.seconds
        if found is None:
            self.emit(self.started())
            self.assess()
            self.save()
        else:
            self.saved_round = self.progress.round
        interrupted = self.loop()
        state_hash = self.state_hash()
        if not interrupted:
            self.emit(
                Finished(
                    self.progress.round, self.progress.accuracy, self.progress.density, state_hash
                ),
                self.seconds(),
            )
        return Summary(
            method=self.name,
            run=str(self.out),
            rounds=self.progress.round,
            accuracy=self.accuracy(),
            density=self.progress.density,
            cost=self.progress.cost,
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
        answered = [reply for reply in replies if reply.error is None]
        self.state = self.method.merge(ctx, self.state, _exchanges(answered))
        spent = Cost()
        densities, metrics = [], []
        for reply in replies:
            event = reply.event
            if event is None:
                continue
            spent += Cost(
                event.up, event.down, event.paper_up, event.paper_down, event.flops, event.examples
            )
            densities.append(event.density)
            metrics.append(event.metrics)
            self.emit(event, reply.seconds)
        for reply in replies:
            if (error := reply.error) is not None:
                self.emit(ClientFailed(number, error.client, error.stage, error.reason))
        self.progress = replace(
            self.progress,
            round=number,
            cost=self.progress.cost + spent,
            density=float(np.mean(densities)) if densities else self.progress.density,
            seconds=self.seconds(),
        )
        total = self.progress.cost
        self.emit(
            RoundFinished(
                number,
                [reply.client.id for reply in answered],
                [reply.client.id for reply in replies if reply.error is not None],
                self.progress.density,
                _means(metrics),
                total.up,
                total.down,
                total.paper_up,
                total.paper_down,
                total.flops,
            ),
            time.perf_counter() - started,
        )
        every = self.options.eval_every
        if every and (number % every == 0 or number == self.rounds):
            self.assess()

    # clients -----------------------------------------------------------------------------------

    def train(self, ctx: Ctx, cohort: Sequence[Client]) -> list[_Reply]:
        """Every client's reply, in the order of ids; the largest start first, to end together."""
        downs = {client.id: self.method.down(ctx, self.state, client) for client in cohort}
        by_size = sorted(cohort, key=lambda client: (-client.examples, client.id))

        def one(task: Task, client: Client) -> _Reply:
            return self.client(task, ctx.round, client, downs[client.id])

        replies = self.workers.map(one, by_size)
        return sorted(replies, key=lambda reply: reply.client.id)

    def client(self, task: Task, number: int, client: Client, down: Any) -> _Reply:
        if self.stop.at_once():
            raise Abandoned
        started = time.perf_counter()
        stage: list[Stage] = ["decode"]
        local = None
        try:
            schema = Schema.of(down)
            data = encode(down, schema)
            received = decode(data, schema)
            local = self.store.get(client.id)
            stage.append("data")
            ctx = client_ctx(self.key, task, self.federation, client.id, number, self.rounds)
            done = train(
                self.method,
                ctx,
                received,
                local,
                augment=self.federation.augment,
                abandoned=self.stop.at_once,
                at=stage.append,
            )
            stage.append("encode")
            result = done.result
            answer = Schema.of(result.up)
            up = encode(result.up, answer)
            event = ClientFinished(
                round=number,
                client=client.id,
                examples=done.examples,
                steps=done.steps,
                density=cost.density(task.layout, result.masks),
                up=8 * len(up),
                down=8 * len(data),
                paper_up=cost.paper_bits(result.up),
                paper_down=cost.paper_bits(down),
                flops=cost.training_flops(task.layout, result.masks, done.examples),
                metrics=dict(result.metrics),
            )
            stage.append("store")
            if result.local is not None:
                self.store.put(client.id, number, result.local)
        except Abandoned:
            raise
        except Exception as cause:
            return self.failed(
                ClientError(stage[-1], number, client.id, cause), client, down, local, started
            )
        return _Reply(client, down, answer, up, event, time.perf_counter() - started)

    def failed(
        self, error: ClientError, client: Client, down: Any, local: Any, started: float
    ) -> _Reply:
        """Keeps what is needed to replay the client; raises unless failures are to be skipped."""
        capsule = replay.Capsule(error.round, self.rounds, self.key.seed, client.id, down, local)
        replay.write(self.folder, capsule)
        error.replay = f"gossamer replay {self.out} --round {error.round} --client {client.id}"
        if self.options.on_client_error == "stop":
            raise error from error.cause
        return _Reply(client, down, None, b"", None, time.perf_counter() - started, error)

    # what surrounds it -------------------------------------------------------------------------

    def server_ctx(self, number: int) -> Ctx:
        key = self.key.fold("server", "round", number)
        return Ctx(self.task, number, self.rounds, key, self.key.fold("common"))

    def assess(self) -> None:
        if not self.options.eval_every:
            return
        started = time.perf_counter()
        found = self.evaluate(self.server_ctx(self.progress.round), self.state, self.store)
        self.progress = replace(self.progress, accuracy=_best(self.progress.accuracy, found))
        self.emit(found, time.perf_counter() - started)

    def accuracy(self) -> dict[str, float | None]:
        return {**_UNKNOWN, **self.progress.accuracy}

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
        checkpoint.save(self.folder, progress, dump(self.state), self.log.position, new)
        self.store.commit()
        self.saved_at = time.perf_counter()
        self.save_took = self.saved_at - started
        self.saved_round = self.progress.round

    def state_hash(self) -> str:
        """A hash of the server's state and of every client's."""
        parts = [dump(self.state)]
        for id in self.store.clients():
            parts += [str(id).encode(), self.store.raw(id) or b""]
        return fingerprint(*parts)

    def started(self) -> Started:
        layout = self.task.layout
        return Started(
            schema=SCHEMA,
            method=self.name,
            settings={item.name: item.default for item in fields.settings(self.method)},
            rounds=self.rounds,
            seed=self.key.seed,
            pool=len(self.federation.pool),
            data=dict(self.federation.describe()),
            parameters=layout.count,
            prunable=sum(layout.leaves[name].count for name in layout.prunable),
            environment=environment(),
        )

    def emit(self, event: Event, seconds: float = 0.0) -> None:
        assert self.log is not None
        clock = Clock(time.time(), seconds)
        self.log.emit(event, clock)
        for sink in self.sinks:
            sink.emit(event, clock)

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
        for sink in self.sinks:
            sink.close()


def client_ctx(
    key: Key, task: Task, federation: Federation, client: int, round: int, rounds: int
) -> Ctx:
    """Where a client stands in a round, with its data; an error if it has none to train on."""
    data = federation.client(client)
    if not len(data.train):
        raise ValueError(f"client {client} has no training examples")
    own = key.fold("round", round, "client", client)
    return Ctx(task, round, rounds, own, key.fold("common"), data)


def environment() -> dict[str, str]:
    """The software and hardware that a run's bits may depend on."""
    return {
        "gossamer": gossamer.__version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


_UNKNOWN: dict[str, float | None] = {
    "global": None,
    "global_best": None,
    "personal_mean": None,
    "personal_std": None,
    "personal_worst_decile": None,
    "personal_best": None,
    "best": None,
    "best_round": None,
}


def _best(so_far: Mapping[str, float | None], found: Evaluated) -> dict[str, float | None]:
    """Last figures, and the best over all evaluations so far."""
    accuracy: dict[str, float | None] = {
        **_UNKNOWN,
        **so_far,
        "global": found.global_accuracy,
        "personal_mean": found.personal_mean,
        "personal_std": found.personal_std,
        "personal_worst_decile": found.personal_worst_decile,
    }
    for last, best in (("global", "global_best"), ("personal_mean", "personal_best")):
        value, known = accuracy[last], accuracy[best]
        if value is not None and (known is None or value > known):
            accuracy[best] = value
            if last == "global" or found.global_accuracy is None:
                accuracy["best_round"] = found.round
    accuracy["best"] = accuracy["global_best"] or accuracy["personal_best"]
    return accuracy


def _means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for each in metrics for name in each})
    return {
        name: float(np.mean([each[name] for each in metrics if name in each])) for name in names
    }


def _exchanges(replies: Sequence[_Reply]) -> Iterator[Exchange[Any, Any]]:
    """Conversations in the order of client ids, decoded one at a time."""
    for reply in replies:
        assert reply.schema is not None
        yield Exchange(reply.client, reply.down, decode(reply.data, reply.schema))
