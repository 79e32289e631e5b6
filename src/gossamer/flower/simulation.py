"""Flower's simulation runtime as an engine: clients in Ray actors, of one machine or of a cluster.

Flower's nodes and Ray's actors are interchangeable here: a round is dealt to as many nodes as there
are actors, the largest clients first, in one message each. States of clients stay with the server,
so a run's folder is what the engine's own threads would have written, and either can continue it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from queue import Queue
from typing import Any

import ray  # type: ignore[import-not-found, unused-ignore]
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from ray import cloudpickle  # type: ignore[import-not-found, unused-ignore]

from gossamer.engine.workers import cores, keep_freed_memory
from gossamer.flower.batched import Bench, Bundle, Crowd
from gossamer.flower.node import Setup

RECORD, STYPE = "gossamer", "gossamer/1"
POLL = 0.01
"""Seconds between two looks at what has come."""
GLANCE, ABANDONED = 0.5, "gossamer-abandoned"
"""Seconds between an actor's looks for the sign that its round was abandoned, and the sign."""
ATTEMPTS = 3
"""How often Ray is started: on a busy machine its parts give each other up after some seconds."""
WEEK = 7 * 24 * 3600.0
"""Seconds after which Flower may drop a message."""


@dataclass(frozen=True)
class Cluster:
    """What actors run on, and what each of them takes of it."""

    workers: int = 0
    """Actors on this machine, where no cluster is; 0 means one per core."""
    address: str = field(default_factory=lambda: os.environ.get("RAY_ADDRESS", ""))
    """Of a Ray cluster; nothing starts one on this machine for the run."""
    processors: float = 1.0
    accelerators: float = 0.0
    """Processors and GPUs of an actor."""


class Actors:
    """Errands by Flower's messages: one to each of as many nodes as there are bundles."""

    def __init__(self, grid: Grid, nodes: Sequence[int], alive: Callable[[], bool]) -> None:
        self._grid = grid
        self._nodes = list(nodes)
        self._alive = alive
        self.busy = False
        """Whether actors still work, be it on something that nobody waits for."""

    def workers(self) -> int:
        """Nodes, each of which is an actor."""
        return len(self._nodes)

    def run(self, bundles: Sequence[Bundle]) -> Iterator[tuple[int, Bundle | str] | None]:
        """Sends all and hands over what comes."""
        messages = [
            Message(enclosed(bundle), node, "train", ttl=WEEK)
            for bundle, node in zip(bundles, self._nodes, strict=False)
        ]
        self.busy = True
        taken = set(self._grid.push_messages(messages))
        waiting: dict[str, int] = {}
        for place, message in enumerate(messages):
            if message.metadata.message_id in taken:
                waiting[message.metadata.message_id] = place
            else:
                yield place, "Flower did not take the message"
        while waiting:
            if not self._alive():
                raise OSError("Flower's simulation has ended before the run")
            came = list(self._grid.pull_messages(list(waiting)))
            for message in came:
                place = waiting.pop(message.metadata.reply_to_message_id)
                if message.has_error():
                    lines = (message.error.reason or "no reason was given").strip().splitlines()
                    yield place, lines[0]
                else:
                    yield place, unclosed(message.content)
            if not came:
                time.sleep(POLL)
                yield None
        self.busy = False


@contextmanager
def simulation(build: Callable[[], Setup], cluster: Cluster = Cluster()) -> Iterator[Crowd]:
    """Starts Ray and Flower, and ends them; every actor calls `build` once.

    Flower's server is a thread that lends its grid to whoever runs the engine.
    """
    ready: Queue[Grid | BaseException] = Queue()
    over = threading.Event()
    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        ready.put(grid)
        over.wait()

    def simulate() -> None:
        try:
            needs: dict[str, Any] = {
                "num_cpus": cluster.processors,
                "num_gpus": cluster.accelerators,
            }
            run_simulation(
                server, _client(build), hands, backend_config={"client_resources": needs}
            )
        except BaseException as problem:
            ready.put(problem)

    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.CRITICAL)  # what goes wrong is told as the engine tells it
    thread = threading.Thread(target=simulate, name="flower", daemon=True)
    try:
        hands = _started(cluster)
        thread.start()
        grid = ready.get()
        if isinstance(grid, BaseException):
            raise OSError(f"Flower's simulation did not start: {grid}") from grid
        actors = Actors(grid, _nodes(grid, hands), thread.is_alive)
        try:
            yield Crowd(actors)
        finally:
            over.set()
            sign = _put_up() if actors.busy else None
            thread.join()
            del sign  # it stands as long as somebody holds it
    finally:
        ray.shutdown()
        logger.setLevel(before)


def enclosed(bundle: Sequence[bytes]) -> RecordDict:
    """A bundle as Flower carries it."""
    arrays = {
        str(place): Array("uint8", (len(part),), STYPE, part) for place, part in enumerate(bundle)
    }
    return RecordDict({RECORD: ArrayRecord(arrays)})


def unclosed(content: RecordDict) -> list[bytes]:
    """The bundle in a message."""
    record = content[RECORD]
    assert isinstance(record, ArrayRecord)
    return [record[str(place)].data for place in range(len(record))]


def _client(build: Callable[[], Setup]) -> ClientApp:
    app = ClientApp()
    recipe = cloudpickle.dumps(build)

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        parts = _bench(recipe).work(unclosed(message.content))
        return Message(enclosed(parts), reply_to=message)

    return app


@cache
def _bench(recipe: bytes) -> Bench:
    """Built once in an actor; apps come anew with every message."""
    keep_freed_memory()
    return Bench(cloudpickle.loads(recipe)(), _Glances())


class _Abandoned:
    """Tells actors by its mere existence that nobody wants what they do."""


def _put_up() -> object:
    """The sign, as an actor with a name."""
    return ray.remote(_Abandoned).options(name=ABANDONED, num_cpus=0).remote()


class _Glances:
    """Whether the round was abandoned; looks it up now and then, not at every step."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + GLANCE
        try:
            ray.get_actor(ABANDONED)
        except ValueError:  # there is none
            return False
        return True


def _started(cluster: Cluster) -> int:
    """Connects to a cluster or starts one here; returns how many actors it holds."""
    how: dict[str, Any] = {"address": cluster.address}
    if not cluster.address:
        how = {"address": "local", "num_cpus": cluster.workers or cores()}
    how |= {"include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False}
    for left in reversed(range(ATTEMPTS)):
        try:
            ray.init(**how)
            break
        except Exception as problem:  # of many kinds, one of them being Exception itself
            if not left:
                raise OSError(f"Ray did not start: {problem}") from problem
            ray.shutdown()
    found = 0
    for node in ray.nodes():
        holds = node["Resources"]
        fit = holds.get("CPU", 0) / cluster.processors
        if cluster.accelerators:
            fit = min(fit, holds.get("GPU", 0) / cluster.accelerators)
        found += int(fit)
    if not found:
        raise OSError(
            f"no machine of the cluster has {cluster.processors:g} processors and "
            f"{cluster.accelerators:g} GPUs for an actor"
        )
    return found


def _nodes(grid: Grid, count: int) -> list[int]:
    """Flower registers its nodes while the server starts."""
    while len(found := list(grid.get_node_ids())) < count:
        time.sleep(POLL)
    return found
