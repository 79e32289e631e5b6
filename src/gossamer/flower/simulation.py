"""Flower's simulation runtime as an engine: clients in Ray actors, of one machine or of a cluster.

Flower's nodes and Ray's actors are interchangeable here: a round is dealt to as many nodes as there
are actors, the largest clients first, in one message each. Client states stay with the server, so a
run's folder is the same as with the engine's own threads, and either can continue it.
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

from gossamer.engine.processor import cores, keep_freed_memory
from gossamer.engine.run_record import Run
from gossamer.flower.batched import Batched, BatchedTransport, ClientWorker

RECORD, STYPE = "gossamer", "gossamer/1"
POLL = 0.01
"""Seconds between two polls for answers."""
CHECK, ABANDONED = 0.5, "gossamer-abandoned"
"""Seconds between an actor's checks whether its round was abandoned, and the name of the flag."""
ATTEMPTS = 3
"""Attempts to start Ray: on a busy machine its processes time out on each other."""
WEEK = 7 * 24 * 3600.0
"""Seconds after which Flower may drop a message."""


@dataclass(frozen=True)
class Cluster:
    """What actors run on, and the resources of each."""

    workers: int = 0
    """Actors on this machine, without a cluster; 0: one per core."""
    address: str = field(default_factory=lambda: os.environ.get("RAY_ADDRESS", ""))
    """Of a Ray cluster; empty: one is started on this machine for the run."""
    processors: float = 1.0
    accelerators: float = 0.0
    """Processors and GPUs of an actor."""


class Actors:
    """A pool of workers behind Flower's messages: one batch to each node."""

    def __init__(self, grid: Grid, nodes: Sequence[int], alive: Callable[[], bool]) -> None:
        self._grid = grid
        self._nodes = list(nodes)
        self._alive = alive
        self.busy = False
        """Whether actors still work, possibly on an abandoned round."""

    def workers(self) -> int:
        """The number of nodes, each of which is an actor."""
        return len(self._nodes)

    def run(self, batches: Sequence[Batched]) -> Iterator[tuple[int, Batched | str] | None]:
        """Sends all batches and yields the answers as they arrive."""
        messages = [
            Message(to_record(batch), node, "train", ttl=WEEK)
            for batch, node in zip(batches, self._nodes, strict=False)
        ]
        self.busy = True
        taken = set(self._grid.push_messages(messages))
        waiting: dict[str, int] = {}
        for place, message in enumerate(messages):
            if message.metadata.message_id in taken:
                waiting[message.metadata.message_id] = place
            else:
                yield place, "Flower did not accept the message"
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
                    yield place, from_record(message.content)
            if not came:
                time.sleep(POLL)
                yield None
        self.busy = False


@contextmanager
def simulation(
    build: Callable[[], Run], cluster: Cluster = Cluster()
) -> Iterator[BatchedTransport]:
    """Starts Ray and Flower, and shuts them down; every actor calls `build` once.

    Flower's server is a thread that lends its grid to the engine.
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
                server, _client(build), actor_count, backend_config={"client_resources": needs}
            )
        except BaseException as problem:
            ready.put(problem)

    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.CRITICAL)  # the engine reports what goes wrong
    thread = threading.Thread(target=simulate, name="flower", daemon=True)
    try:
        actor_count = _started(cluster)
        thread.start()
        grid = ready.get()
        if isinstance(grid, BaseException):
            raise OSError(f"Flower's simulation did not start: {grid}") from grid
        actors = Actors(grid, _nodes(grid, actor_count), thread.is_alive)
        try:
            yield BatchedTransport(actors)
        finally:
            over.set()
            flag = _raise_flag() if actors.busy else None
            thread.join()
            del flag  # it exists as long as it is referenced
    finally:
        ray.shutdown()
        logger.setLevel(before)


def to_record(batch: Sequence[bytes]) -> RecordDict:
    """A batch as a Flower record."""
    arrays = {
        str(place): Array("uint8", (len(part),), STYPE, part) for place, part in enumerate(batch)
    }
    return RecordDict({RECORD: ArrayRecord(arrays)})


def from_record(content: RecordDict) -> list[bytes]:
    """The batch in a Flower record."""
    record = content[RECORD]
    assert isinstance(record, ArrayRecord)
    return [record[str(place)].data for place in range(len(record))]


def _client(build: Callable[[], Run]) -> ClientApp:
    app = ClientApp()
    recipe = cloudpickle.dumps(build)

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        parts = _worker(recipe).work(from_record(message.content))
        return Message(to_record(parts), reply_to=message)

    return app


@cache
def _worker(recipe: bytes) -> ClientWorker:
    """Built once per actor; the app is created anew for every message."""
    keep_freed_memory()
    return ClientWorker(cloudpickle.loads(recipe)(), _AbandonedCheck())


class _Abandoned:
    """An actor whose existence tells the others that their round was abandoned."""


def _raise_flag() -> object:
    """Tells all actors that their round was abandoned."""
    return ray.remote(_Abandoned).options(name=ABANDONED, num_cpus=0).remote()


class _AbandonedCheck:
    """Whether the round was abandoned; checked now and then, not at every step."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + CHECK
        try:
            ray.get_actor(ABANDONED)
        except ValueError:  # there is none
            return False
        return True


def _started(cluster: Cluster) -> int:
    """Connects to a cluster or starts one here.

    Returns:
        How many actors it can run.
    """
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
    actors = 0
    for node in ray.nodes():
        holds = node["Resources"]
        fit = holds.get("CPU", 0) / cluster.processors
        if cluster.accelerators:
            fit = min(fit, holds.get("GPU", 0) / cluster.accelerators)
        actors += int(fit)
    if not actors:
        raise OSError(
            f"no machine of the cluster has {cluster.processors:g} processors and "
            f"{cluster.accelerators:g} GPUs for an actor"
        )
    return actors


def _nodes(grid: Grid, count: int) -> list[int]:
    """Waits for Flower, which registers its nodes while the server starts."""
    while len(nodes := list(grid.get_node_ids())) < count:
        time.sleep(POLL)
    return nodes
