"""The test bench of conformance checks: a method on tiny data and nets, called step by step."""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gossamer.conformance.toys import Tiny
from gossamer.core import (
    AnyMethod,
    Client,
    Ctx,
    Data,
    Ensemble,
    Examples,
    Exchange,
    Key,
    Measures,
    Result,
    budgets_of,
)
from gossamer.engine import events
from gossamer.engine.client import Stop, batches, client_ctx, server_ctx, train
from gossamer.engine.loop import start
from gossamer.engine.options import Options
from gossamer.engine.run_record import Run
from gossamer.task import Task
from gossamer.wire import dump

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
        budgets = budgets_of(self.federation.pool)
        return server_ctx(self.task, Key(0), number, self.rounds, budgets)

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


@dataclass
class Story:
    """Two rounds, call by call, and what each call returned, as bytes."""

    bench: Bench
    twice: bool = False
    """Whether every call is made twice and must return the same."""
    guard: bool = False
    """Whether every call must leave its arguments unchanged."""
    returned: dict[str, bytes] = field(default_factory=dict)

    def tell(self) -> dict[str, bytes]:
        """Plays the two rounds."""
        method, kept = self.bench.method, dict[int, Any]()
        state = self.call("init", method.init, self.bench.server(0))
        self.measure(0, state)
        for number in (1, 2):
            ctx, exchanges = self.bench.server(number), []
            pool = self.bench.federation.pool
            cohort = self.call(f"cohort of round {number}", method.cohort, ctx, state, pool)
            for client in sorted(cohort, key=lambda client: client.id):
                at = f"of client {client.id} in round {number}"
                down = self.call(f"down {at}", method.down, ctx, state, client)
                own, local = self.bench.client(number, client), kept.get(client.id)
                result = self.train(at, own, state, down, local)
                kept[client.id] = local if result.local is None else result.local
                self.call(f"model {at}", method.model, ctx, state, kept[client.id])
                exchanges.append(Exchange(client, down, result.up))
            state = self.call(f"merge of round {number}", method.merge, ctx, state, exchanges)
            self.call(f"model of round {number}", method.model, ctx, state, None)
            self.measure(number, state)
        return self.returned

    def measure(self, number: int, state: Any) -> None:
        """The method's measures of a state, if it has any."""
        if measures := getattr(self.bench.method, "measures", None):
            self.call(f"measures of round {number}", measures, self.bench.server(number), state)

    def train(self, at: str, ctx: Ctx, state: Any, down: Any, local: Any) -> Result[Any, Any]:
        """A client's job on the server's own records instead of decoded copies."""
        outside = (state, down, local)
        before = image(outside) if self.guard else b""
        job = self.call(f"begin {at}", self.bench.method.begin, ctx, down, local)
        work = job.work
        for batch in batches(ctx, job):
            name = f"step {batch.step} {at}"
            work = self.call(name, self.bench.method.step, ctx, work, batch, consumes=1)
            if self.guard and image(outside) != before:
                raise Broken(
                    f"{name} changes what the server sent or the client kept; "
                    "copy it in begin (ctx.task.own) before it is updated in place"
                )
        result: Result[Any, Any] = self.call(f"finish {at}", self.bench.method.finish, ctx, work)
        return result

    def call(self, name: str, function: Callable[..., Any], *given: Any, consumes: int = -1) -> Any:
        """One call; the argument at `consumes` may be used up by it."""
        before = [image(each) for each in given] if self.guard else []
        generators = global_states()
        result = function(*given)
        self.returned[name] = image(result)
        if self.twice and consumes < 0:
            restore(generators)
            if image(function(*given)) != self.returned[name]:
                raise Broken(f"{name} returns something else when it is called again")
        for index, (each, was) in enumerate(zip(given, before, strict=False)):
            if index != consumes and image(each) != was:
                raise Broken(f"{name} changes its argument number {index + 1}; return a new value")
        return result


def story(bench: Bench, seed: int) -> dict[str, bytes]:
    """What all calls return with the global generators seeded; computed once per seed."""
    if seed not in bench.stories:
        poison(seed)
        bench.stories[seed] = Story(bench).tell()
    return bench.stories[seed]


def image(value: object) -> bytes:
    """The bytes of any value; of a context only the data count."""
    match value:
        case Ctx():
            return image(value.data)
        case Ensemble() | Exchange() | Client() | Examples() | Data() | Result() | Measures():
            return image([getattr(value, each.name) for each in dataclasses.fields(value)])
        case list() | tuple():
            return b"".join(_framed(image(each)) for each in value)
        case Sequence() if not isinstance(value, str):
            return b""  # a pool, which may have millions of clients
    try:
        return dump(value)
    except TypeError:
        return _image_of_parts(value)


def _image_of_parts(value: object) -> bytes:
    """`Work` need not be a record: its tensors and numbers count, of the rest only the type."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return image([getattr(value, each.name) for each in dataclasses.fields(value)])
    if isinstance(value, dict):
        return image([each for pair in value.items() for each in pair])
    return type(value).__qualname__.encode()


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


# global generators ------------------------------------------------------------------------------


def poison(seed: int) -> None:
    """Seeds the global generators, which a method must not draw from."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def global_states() -> tuple[Any, ...]:
    """The states of the global generators."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def restore(states: tuple[Any, ...]) -> None:
    """Restores the global generators."""
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])


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
