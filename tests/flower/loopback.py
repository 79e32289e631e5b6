"""A federation of nodes in this process: letters are packed and opened, faults can be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gossamer import Options, Summary, engine
from gossamer.conformance.toys import Tiny, plain_task, small
from gossamer.flower.messages import Letter
from gossamer.flower.node import Node, Setup
from gossamer.flower.server import serve
from gossamer.flower.server_transport import Arrival, Parcel, Patience
from gossamer.methods import METHODS
from gossamer.wire import PLAIN, Mode
from helpers import lines

Fault = Callable[[Parcel, Letter | None], Letter | str | None]
"""Before a node answers it is given None, after it the answer; text is an error, None silence."""

TASK = plain_task()
NODES = 4


def set_up(name: str, rounds: int = 3, mode: Mode = PLAIN, **options: Any) -> Setup:
    return Setup(small(METHODS[name]), TASK, Tiny(), rounds, 0, mode, Options(**options), name)


def simulated(setup: Setup, out: Path, **how: Any) -> Summary:
    """The same run in the engine's own threads, unless told how else."""
    return engine.run(
        setup.method,
        setup.task,
        setup.federation,
        rounds=setup.rounds,
        seed=setup.seed,
        out=out,
        name=setup.name,
        options=setup.options,
        wire=setup.mode,
        **how,
    )


def node_clients(setup: Setup, index: int, count: int = NODES) -> list[int]:
    return [client.id for client in setup.federation.pool if client.id % count == index]


@dataclass
class Loopback:
    """A carrier whose nodes answer at once, each computing in a thread as a worker does."""

    nodes_by_id: dict[int, Node]
    fault: Fault = lambda parcel, answer: answer if answer is not None else Letter({})
    offline: set[int] = field(default_factory=set)
    sent: list[Parcel] = field(default_factory=list)
    arrivals: dict[str, Arrival] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, setup: Setup, folder: Path, **more: Any) -> Loopback:
        nodes = {
            100 + index: Node(setup, folder / f"node-{index}", node_clients(setup, index))
            for index in range(NODES)
        }
        return cls(nodes, **more)

    def nodes(self) -> list[int]:
        return [node for node in self.nodes_by_id if node not in self.offline]

    def names(self) -> dict[int, str]:
        return self.keys

    def send(self, parcels: Sequence[Parcel]) -> list[str]:
        names = []
        for parcel in parcels:
            name = str(len(self.sent))
            self.sent.append(parcel)
            names.append(name)
            self._deliver(name, parcel)
        return names

    def collect(self, ids: Sequence[str]) -> list[Arrival]:
        return [self.arrivals.pop(id) for id in ids if id in self.arrivals]

    def _deliver(self, name: str, parcel: Parcel) -> None:
        found = self.fault(parcel, None)
        if isinstance(found, Letter):
            letter = Letter.opened(*parcel.letter.packed())
            with ThreadPoolExecutor(1) as thread:
                try:
                    answer = thread.submit(self.nodes_by_id[parcel.node].answer, letter).result()
                except Exception as error:
                    self.arrivals[name] = Arrival(name, None, f"{type(error).__name__}: {error}")
                    return
            found = self.fault(parcel, Letter.opened(*answer.packed()))
        if isinstance(found, Letter):
            self.arrivals[name] = Arrival(name, found)
        elif isinstance(found, str):
            self.arrivals[name] = Arrival(name, None, found)


class Clock:
    """Time that passes only while the post rests."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def rest(self, seconds: float) -> None:
        self.time += seconds


def served(
    setup: Setup, carrier: Any, out: Path, stop: engine.Stop | None = None, **patience: Any
) -> Summary:
    """A whole run over a carrier, with a clock that needs no waiting."""
    clock = Clock()
    wish = Patience(**{"deadline": 1.0, "gather": 5.0, "poll": 0.25, **patience})
    return serve(carrier, setup, out, wish, stop=stop, now=clock.now, rest=clock.rest)


def log_of(out: Path) -> list[str]:
    return lines(out / "events.jsonl")
