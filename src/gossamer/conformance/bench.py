"""The test bench of conformance checks: a method on tiny data and nets, called step by step."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gossamer.conformance.toys import Tiny
from gossamer.core import (
    AnyMethod,
    Client,
    Ctx,
    Exchange,
    Key,
    Result,
    budgets_of,
)
from gossamer.engine import events
from gossamer.engine.client import Stop, client_ctx, server_ctx, train
from gossamer.engine.loop import start
from gossamer.engine.options import Options
from gossamer.engine.run_record import Run
from gossamer.task import Task

Seen = Callable[[str, object], None]


class Broken(Exception):
    """A promise is broken; the message says how."""


@dataclass(frozen=True)
class Bench:
    """A method, and a small task and federation to try it on."""

    method: AnyMethod
    task: Task
    federation: Tiny
    rounds: int
    played: list[Round] = field(default_factory=list, repr=False, compare=False)
    """The whole history, once it was played to the end."""
    ran: dict[int, Ran] = field(default_factory=dict, repr=False, compare=False)
    """Uninterrupted runs of the engine, by number of workers."""
    stories: dict[int, dict[str, bytes]] = field(default_factory=dict, repr=False, compare=False)
    """What plain calls returned, by the seed of the global generators."""

    def server(self, number: int) -> Ctx:
        """Where the server stands in a round."""
        pool = self.federation.pool
        return server_ctx(self.task, Key(0), number, self.rounds, budgets_of(pool), pool=len(pool))

    def client(self, number: int, client: Client) -> Ctx:
        """Where a client stands in a round."""
        return client_ctx(Key(0), self.task, self.federation, client.id, number, self.rounds)

    def init(self) -> Any:
        """The server's first state."""
        return self.method.init(self.server(0))

    def cohort(self, number: int, state: Any) -> list[Client]:
        """A round's clients in the order of their ids."""
        chosen = self.method.cohort(self.server(number), state, self.federation.pool)
        return sorted(chosen, key=lambda client: client.id)

    def history(self, seen: Seen = lambda name, record: None) -> Iterator[Round]:
        """Plays all rounds as the engine does, with records in place of bytes.

        A history that was played to the end is not played again.

        Args:
            seen: Called with the name and the value of every record that travels or is kept, before
                it is used.
        """
        if self.played:
            yield from self._again(seen)
            return
        rounds = []
        for round in self._play(seen):
            rounds.append(round)
            yield round
        self.played.extend(rounds)

    def _again(self, seen: Seen) -> Iterator[Round]:
        seen("Server", self.played[0].state)
        for round in self.played:
            for exchange, result in zip(round.exchanges, round.results, strict=True):
                seen("Down", exchange.down)
                seen("Up", result.up)
                seen("Local", result.local)
            seen("Server", round.merged)
            yield round

    def _play(self, seen: Seen) -> Iterator[Round]:
        kept: dict[int, Any] = {}
        state = self.init()
        seen("Server", state)
        for number in range(1, self.rounds + 1):
            ctx, exchanges, results = self.server(number), [], []
            for client in self.cohort(number, state):
                down = self.method.down(ctx, state, client)
                seen("Down", down)
                own = self.client(number, client)
                result = train(self.method, own, down, kept.get(client.id)).result
                seen("Up", result.up)
                seen("Local", result.local)
                if result.local is not None:
                    kept[client.id] = result.local
                exchanges.append(Exchange(client, down, result.up))
                results.append(result)
            merged = self.method.merge(ctx, state, list(exchanges))
            seen("Server", merged)
            yield Round(number, state, exchanges, results, merged)
            state = merged


@dataclass(frozen=True)
class Round:
    """What happened in one round of a bench."""

    number: int
    state: Any
    """The server's, at the start."""
    exchanges: list[Exchange[Any, Any]]
    results: list[Result[Any, Any]]
    merged: Any
    """The server's state at the end."""


# every call of a method, watched ----------------------------------------------------------------


# global generators ------------------------------------------------------------------------------


# whole runs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """The result of a whole run: the hash of all states, and the events without their clocks."""

    state_hash: str
    events: list[str]


class _StopAfter:
    """Stops a run at the end of a round."""

    def __init__(self, round: int) -> None:
        self.round = round
        self.stop = Stop()

    def emit(self, event: events.Event, clock: events.Clock) -> None:
        if isinstance(event, events.RoundFinished) and event.round == self.round:
            self.stop.request()

    def close(self) -> None:
        pass


def whole_run(bench: Bench, workers: int, stop_after: int = 0) -> Ran:
    """A run of the engine, stopped after a round and resumed if that is given.

    An uninterrupted run is made once.
    """
    if stop_after:
        return _engine_run(bench, workers, stop_after)
    if workers not in bench.ran:
        bench.ran[workers] = _engine_run(bench, workers)
    return bench.ran[workers]


def _engine_run(bench: Bench, workers: int, stop_after: int = 0) -> Ran:
    with tempfile.TemporaryDirectory(prefix="gossamer-check-") as folder:

        def go(sink: _StopAfter, resume: bool) -> str:
            run = Run(
                # A new value each time: state hidden in the old one is lost, as in a new process.
                dataclasses.replace(bench.method),  # type: ignore[type-var]
                bench.task,
                bench.federation,
                rounds=bench.rounds,
                out=Path(folder),
                options=Options(workers=workers, checkpoint_every=bench.rounds),
            )
            return start(run, sinks=[sink], stop=sink.stop, resume=resume).state_hash

        if stop_after:
            go(_StopAfter(stop_after), resume=False)
        state_hash = go(_StopAfter(-1), resume=bool(stop_after))
        log = events.read(Path(folder) / "events.jsonl")
    for event in log:
        del event["clock"]
    return Ran(state_hash, [json.dumps(event) for event in log])
