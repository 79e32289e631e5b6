"""Flower's ServerApp and ClientApp around a method; only this file depends on Flower.

A message is an ArrayRecord of two byte arrays, head and body. They are separate because Flower
sends equal objects once: a body that goes to all clients is uploaded once, whatever the heads are.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from google.protobuf.message import DecodeError

from gossamer import fields
from gossamer.engine.client import one_line
from gossamer.engine.run_record import Run
from gossamer.flower import messages
from gossamer.flower.carrier import Incoming, Outgoing
from gossamer.flower.node import Node
from gossamer.flower.server import serve
from gossamer.flower.server_transport import Patience
from gossamer.wire import WireError

RECORD, HEAD, BODY = "gossamer", "head", "body"
STYPE = "gossamer/1"
STALLED = 75
"""Exit code of a client that outlived its round."""
LOOK = 2.0
"""Seconds between two looks at which nodes have been restarted."""
SILENCE = 15.0
"""Seconds after which a node that has not answered is sent one more message."""

GARBAGE = (DecodeError, ValueError, TypeError, LookupError, AttributeError)
"""What Flower raises for a malformed message."""


@dataclass(frozen=True)
class Sent:
    """A message on its way."""

    node: int
    at: float
    until: float
    started: str
    """When the node's process had been started."""


class GridCarrier:
    """Flower's grid as a carrier.

    A SuperNode answers every message that it receives. One that was cut off while it received a
    message, such as by the end of a server, answers that message too and is one behind from then
    on: it sends an answer only when the next message arrives. So a node that is silent for a while
    is sent one more message. One that was killed and started again does not answer what it had
    received before; the SuperLink knows when each was started, so that is not waited for.
    """

    def __init__(self, grid: Grid, now: Callable[[], float] = time.monotonic) -> None:
        self._grid = grid
        self._now = now
        self._open: dict[str, Sent] = {}
        self._nudged: dict[int, float] = {}
        self._looked = -inf

    def nodes(self) -> list[int]:
        """The nodes that the SuperLink considers online."""
        return list(self._grid.get_node_ids())

    def names(self) -> dict[int, str]:
        """The names under which keys were registered."""
        return {each.node_id: each.name for each in self._grid.get_nodes()}

    def send(self, outgoing: Sequence[Outgoing]) -> list[str]:
        """Pushes messages; those that the SuperLink did not accept have an empty id."""
        pushed = [
            Message(
                to_record(each.message),
                each.node,
                each.purpose,
                group_id=str(each.round),
                ttl=each.seconds,
            )
            for each in outgoing
        ]
        started = self._started()
        accepted = {id for id in self._grid.push_messages(pushed) if id}
        ids = [message.metadata.message_id for message in pushed]
        now = self._now()
        self._open |= {
            id: Sent(each.node, now, now + each.seconds, started.get(each.node, ""))
            for id, each in zip(ids, outgoing, strict=True)
            if id in accepted
        }
        return [id if id in accepted else "" for id in ids]

    def collect(self, ids: Sequence[str]) -> list[Incoming]:
        """Pulls answers; one that cannot be read becomes a reason."""
        if not ids:
            return []
        try:
            received = [_incoming(message) for message in self._grid.pull_messages(list(ids))]
        except GARBAGE:  # from one of the nodes, so pull each answer on its own
            received = [incoming for id in ids for incoming in self._pull(id)]
        received += self._lost(set(ids) - {incoming.id for incoming in received})
        for incoming in received:
            self._open.pop(incoming.id, None)
        self._nudge()
        return received

    def _started(self) -> dict[int, str]:
        """When the process of each node was started, by the clock of the SuperLink."""
        return {each.node_id: each.last_activated_at for each in self._grid.get_nodes()}

    def _lost(self, ids: Collection[str]) -> list[Incoming]:
        """Messages whose nodes have been restarted since they were sent."""
        sent = {id: self._open[id] for id in ids if id in self._open}
        if not sent or self._now() - self._looked < LOOK:
            return []
        self._looked, started = self._now(), self._started()
        return [
            Incoming(id, None, "its node was restarted")
            for id, each in sent.items()
            if started.get(each.node, each.started) != each.started
        ]

    def _nudge(self) -> None:
        """Sends one more message to every node that has been silent since its last."""
        now = self._now()
        self._open = {id: sent for id, sent in self._open.items() if now < sent.until}
        silent = {
            sent.node: sent.until - now
            for sent in self._open.values()
            if now - sent.at >= SILENCE and self._nudged.get(sent.node, -inf) < sent.at
        }
        if not silent:
            return
        self._nudged |= dict.fromkeys(silent, now)
        self._grid.push_messages(
            [
                Message(
                    to_record(messages.register(seconds)), node, "query", group_id="0", ttl=seconds
                )
                for node, seconds in silent.items()
            ]
        )

    def _pull(self, id: str) -> list[Incoming]:
        try:
            return [_incoming(message) for message in self._grid.pull_messages([id])]
        except GARBAGE as problem:
            return [Incoming(id, None, f"its answer cannot be read: {one_line(problem)}")]


def _incoming(message: Message) -> Incoming:
    """The answer in Flower's message, or why there is none."""
    id = message.metadata.reply_to_message_id
    if message.has_error():
        lines = (message.error.reason or "").strip().splitlines() or ["no reason was given"]
        return Incoming(id, None, f"error {message.error.code}: {messages.plain(lines[-1][:1000])}")
    try:
        return Incoming(id, from_record(message.content))
    except WireError as problem:
        return Incoming(id, None, str(problem))


def to_record(message: messages.Message) -> RecordDict:
    """A message as a Flower record."""
    head, body = message.packed()
    arrays = {name: _array(data) for name, data in ((HEAD, head), (BODY, body))}
    return RecordDict({RECORD: ArrayRecord(arrays)})


def from_record(content: RecordDict) -> messages.Message:
    """The message in a Flower record; anything else is a `WireError`."""
    record = content.get(RECORD)
    if not isinstance(record, ArrayRecord) or set(record) != {HEAD, BODY}:
        raise WireError("the record holds no message of Gossamer's")
    if any(record[name].stype != STYPE for name in (HEAD, BODY)):
        raise WireError(f"the message is of another version than {STYPE}")
    return messages.Message.parsed(record[HEAD].data, record[BODY].data)


def server_app(
    build: Callable[[], Run],
    out: Path | None = None,
    patience: Patience = Patience(),
    text: str = "",
) -> ServerApp:
    """A ServerApp; its run-config may set `out` and every field of `patience`.

    Args:
        build: Builds what is run.
        out: The folder of the run.
        patience: How long to wait, and for how many.
        text: The configuration, kept in the run's folder.
    """
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        given = {name.replace("-", "_"): value for name, value in context.run_config.items()}
        folder = Path(str(given["out"])) if given.get("out") else out
        if folder is None:
            raise ValueError("name a folder for the run: --run-config 'out=\"/path/of/run\"'")
        run = replace(build(), out=folder)
        serve(GridCarrier(grid), run, configured(patience, given), text=text)

    return app


def client_app(
    build: Callable[[], Run],
    folder: Path | None = None,
    watchdog: bool = True,
) -> ClientApp:
    """A ClientApp for the clients that the node's config names, with their states on disk.

    Node-config: `partition-id` and `num-partitions`, by which clients are dealt to nodes in turn,
    and `state-dir`.

    Args:
        build: Builds what is run.
        folder: For client states, where the node-config has no `state-dir`.
        watchdog: Whether a client that outlives its round ends its process, which would block its
            node otherwise; leave it out where nodes share a process.
    """
    app = ClientApp()
    made = cache(build)
    nodes: dict[tuple[Path, int, int], Node] = {}

    def answer(message: Message, context: Context) -> Message:
        request = from_record(message.content)
        place = where(context.node_config, folder)
        if place not in nodes:
            nodes[place] = node_for(made(), context.node_config, folder)
        with watched(request.head.get("seconds") if watchdog else None):
            reply = nodes[place].answer(request)
        return Message(to_record(reply), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    app.query()(answer)
    return app


def where(config: dict[str, Any], folder: Path | None) -> tuple[Path, int, int]:
    """The folder of a node's states, its index, and the number of nodes."""
    if "partition-id" not in config:
        raise ValueError(
            "the node-config does not name the node's clients; start it with "
            "--node-config 'partition-id=0 num-partitions=1'"
        )
    index, count = int(config["partition-id"]), int(config.get("num-partitions", 1))
    if not 0 <= index < count:
        raise ValueError(f"partition-id is {index}, but there are {count} partitions from 0 up")
    place = Path(str(config["state-dir"])) if "state-dir" in config else folder
    if place is None:
        raise ValueError(
            'the node has no folder for what its clients keep; add state-dir="..." to its '
            "--node-config"
        )
    return place / f"node-{index}", index, count


def node_for(run: Run, config: dict[str, Any], folder: Path | None) -> Node:
    """The node that hosts its share of the clients."""
    place, index, count = where(config, folder)
    clients = [client.id for client in run.federation.pool if client.id % count == index]
    return Node(run, place, clients)


def configured(patience: Patience, given: dict[str, Any]) -> Patience:
    """The patience with the values of a run-config, checked."""
    known = {item.name: item for item in fields.settings(patience)}
    values = {name: fields.convert(known[name], given[name]) for name in known if name in given}
    changed = fields.replace(patience, values)
    fields.check(changed)
    return changed


def _array(data: bytes) -> Array:
    return Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)


@contextmanager
def watched(seconds: object) -> Iterator[None]:
    """Ends the process if its block takes longer."""
    if not isinstance(seconds, int | float) or seconds <= 0:
        yield
        return
    timer = threading.Timer(seconds, os._exit, (STALLED,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
