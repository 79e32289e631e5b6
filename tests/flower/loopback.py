"""A federation of nodes in this process: messages are packed and parsed, faults are injected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gossamer import Options, Summary, engine
from gossamer.conformance.toys import Tiny, plain_task, small
from gossamer.engine import Run
from gossamer.flower.carrier import Incoming, Outgoing
from gossamer.flower.messages import Message
from gossamer.flower.node import Node
from gossamer.flower.server import serve
from gossamer.flower.server_transport import Patience
from gossamer.methods import METHODS
from gossamer.wire import PLAIN, Mode
from helpers import lines

Fault = Callable[[Outgoing, Message | None], Message | str | None]
"""Before a node answers it is given None, after it the answer; text is an error, None silence."""

TASK = plain_task()
NODES = 4


def set_up(name: str, rounds: int = 3, mode: Mode = PLAIN, **options: Any) -> Run:
    return Run(
        small(METHODS[name]),
        TASK,
        Tiny(),
        rounds=rounds,
        wire=mode,
        options=Options(**options),
        name=name,
    )


def simulated(setup: Run, out: Path, **how: Any) -> Summary:
    """The same run in the engine's own threads, unless told how else."""
    return engine.start(replace(setup, out=out), **how)


def node_clients(setup: Run, index: int, count: int = NODES) -> list[int]:
    return [client.id for client in setup.federation.pool if client.id % count == index]


@dataclass
class Loopback:
    """A carrier whose nodes answer at once, each computing in a thread as a worker does."""

    nodes_by_id: dict[int, Node]
    fault: Fault = lambda sent, answer: answer if answer is not None else Message({})
    offline: set[int] = field(default_factory=set)
    sent: list[Outgoing] = field(default_factory=list)
    arrivals: dict[str, Incoming] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, setup: Run, folder: Path, **more: Any) -> Loopback:
        nodes = {
            100 + index: Node(setup, folder / f"node-{index}", node_clients(setup, index))
            for index in range(NODES)
        }
        return cls(nodes, **more)

    def nodes(self) -> list[int]:
        return [node for node in self.nodes_by_id if node not in self.offline]

    def names(self) -> dict[int, str]:
        return self.keys

    def send(self, outgoing: Sequence[Outgoing]) -> list[str]:
        names = []
        for sent in outgoing:
            name = str(len(self.sent))
            self.sent.append(sent)
            names.append(name)
            self._deliver(name, sent)
        return names

    def collect(self, ids: Sequence[str]) -> list[Incoming]:
        return [self.arrivals.pop(id) for id in ids if id in self.arrivals]

    def _deliver(self, name: str, sent: Outgoing) -> None:
        found = self.fault(sent, None)
        if isinstance(found, Message):
            message = Message.parsed(*sent.message.packed())
            with ThreadPoolExecutor(1) as thread:
                try:
                    answer = thread.submit(self.nodes_by_id[sent.node].answer, message).result()
                except Exception as error:
                    self.arrivals[name] = Incoming(name, None, f"{type(error).__name__}: {error}")
                    return
            found = self.fault(sent, Message.parsed(*answer.packed()))
        if isinstance(found, Message):
            self.arrivals[name] = Incoming(name, found)
        elif isinstance(found, str):
            self.arrivals[name] = Incoming(name, None, found)


class Clock:
    """Time that passes only while the transport waits."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def rest(self, seconds: float) -> None:
        self.time += seconds


def served(
    setup: Run,
    carrier: Any,
    out: Path,
    stop: engine.Stop | None = None,
    text: str = "",
    **patience: Any,
) -> Summary:
    """A whole run over a carrier, with a clock that needs no waiting."""
    clock = Clock()
    wish = Patience(**{"deadline": 1.0, "gather": 5.0, "poll": 0.25, **patience})
    run = replace(setup, out=out)
    return serve(carrier, run, wish, text=text, stop=stop, now=clock.now, rest=clock.rest)


def log_of(out: Path) -> list[str]:
    return lines(out / "events.jsonl")
