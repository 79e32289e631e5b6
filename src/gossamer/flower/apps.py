"""Flower's ServerApp and ClientApp around a method; nothing but this file knows Flower.

A letter is an ArrayRecord of two arrays of bytes. They are apart because Flower sends equal objects
once: what goes to everybody is uploaded once, whatever stands in the heads.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from google.protobuf.message import DecodeError

from gossamer import fields
from gossamer.engine.participant import one_line
from gossamer.flower.messages import Letter, hello, plain
from gossamer.flower.node import Node, Setup
from gossamer.flower.server import serve
from gossamer.flower.server_transport import Arrival, Parcel, Patience
from gossamer.wire import WireError

RECORD, HEAD, BODY = "gossamer", "head", "body"
STYPE = "gossamer/1"
STALLED = 75
"""Exit code of a client that outlived its round."""
SILENCE = 15.0
"""Seconds after which a node that has not answered is sent one more message."""

GARBAGE = (DecodeError, ValueError, TypeError, LookupError, AttributeError)
"""What Flower raises over a message that its sender made up."""


@dataclass(frozen=True)
class Sent:
    """A message on its way."""

    node: int
    at: float
    until: float


class Carriage:
    """Flower's grid as a carrier.

    A SuperNode sends an answer for every message that it receives. One that was cut off within a
    message, as by the end of a server, answers that message too, and from then on is one behind:
    it sends an answer only when the next message comes, to all appearances too late. So a node
    that is silent for a while is sent one more.
    """

    def __init__(self, grid: Grid, now: Callable[[], float] = time.monotonic) -> None:
        self._grid = grid
        self._now = now
        self._open: dict[str, Sent] = {}
        self._nudged: dict[int, float] = {}

    def nodes(self) -> list[int]:
        """Nodes that the SuperLink has heard of lately."""
        return list(self._grid.get_node_ids())

    def names(self) -> dict[int, str]:
        """Names of keys, as they were registered."""
        return {each.node_id: each.name for each in self._grid.get_nodes()}

    def send(self, parcels: Sequence[Parcel]) -> list[str]:
        """Pushes messages; those that the SuperLink did not take have no name."""
        messages = [
            Message(
                enclosed(parcel.letter),
                parcel.node,
                parcel.purpose,
                group_id=str(parcel.round),
                ttl=parcel.seconds,
            )
            for parcel in parcels
        ]
        taken = {id for id in self._grid.push_messages(messages) if id}
        names = [message.metadata.message_id for message in messages]
        now = self._now()
        self._open |= {
            name: Sent(parcel.node, now, now + parcel.seconds)
            for name, parcel in zip(names, parcels, strict=True)
            if name in taken
        }
        return [name if name in taken else "" for name in names]

    def collect(self, ids: Sequence[str]) -> list[Arrival]:
        """Pulls answers; one that is no letter is a reason."""
        if not ids:
            return []
        try:
            found = [_arrival(message) for message in self._grid.pull_messages(list(ids))]
        except GARBAGE:  # somebody's: so ask for each alone
            found = [arrival for id in ids for arrival in self._alone(id)]
        for arrival in found:
            self._open.pop(arrival.id, None)
        self._nudge()
        return found

    def _nudge(self) -> None:
        """One message more for every node that has been silent since its last."""
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
                Message(enclosed(hello(seconds)), node, "query", group_id="0", ttl=seconds)
                for node, seconds in silent.items()
            ]
        )

    def _alone(self, id: str) -> list[Arrival]:
        try:
            return [_arrival(message) for message in self._grid.pull_messages([id])]
        except GARBAGE as problem:
            return [Arrival(id, None, f"its answer cannot be read: {one_line(problem)}")]


def _arrival(message: Message) -> Arrival:
    """What came; anything but a letter is a reason."""
    id = message.metadata.reply_to_message_id
    if message.has_error():
        lines = (message.error.reason or "").strip().splitlines() or ["no reason was given"]
        return Arrival(id, None, f"error {message.error.code}: {plain(lines[-1][:1000])}")
    try:
        return Arrival(id, unclosed(message.content))
    except WireError as problem:
        return Arrival(id, None, str(problem))


def enclosed(letter: Letter) -> RecordDict:
    """A letter as Flower carries it."""
    head, body = letter.packed()
    arrays = {name: _array(data) for name, data in ((HEAD, head), (BODY, body))}
    return RecordDict({RECORD: ArrayRecord(arrays)})


def unclosed(content: RecordDict) -> Letter:
    """The letter in a message; whatever else it holds is a `WireError`."""
    record = content.get(RECORD)
    if not isinstance(record, ArrayRecord) or set(record) != {HEAD, BODY}:
        raise WireError("the message holds no letter of Gossamer's")
    if any(record[name].stype != STYPE for name in (HEAD, BODY)):
        raise WireError(f"the letter is of another version than {STYPE}")
    return Letter.opened(record[HEAD].data, record[BODY].data)


def server_app(
    build: Callable[[], Setup], out: Path | None = None, patience: Patience = Patience()
) -> ServerApp:
    """A ServerApp that runs what `build` makes; run-config may name `out` and any patience."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        told = {name.replace("-", "_"): value for name, value in context.run_config.items()}
        folder = Path(str(told["out"])) if told.get("out") else out
        if folder is None:
            raise ValueError("name a folder for the run: --run-config 'out=\"/path/of/run\"'")
        serve(Carriage(grid), build(), folder, asked(patience, told))

    return app


def client_app(
    build: Callable[[], Setup],
    folder: Path | None = None,
    watchdog: bool = True,
) -> ClientApp:
    """A ClientApp for the clients that the node's config names, with their states on disk.

    Node-config: `partition-id` and `num-partitions`, by which clients are dealt to nodes in turn,
    and `state-dir`. A client that outlives its round would block its node for ever, so a watchdog
    ends the process; leave it out where nodes share one.
    """
    app = ClientApp()
    made = cache(build)
    nodes: dict[tuple[Path, int, int], Node] = {}

    def answer(message: Message, context: Context) -> Message:
        letter = unclosed(message.content)
        who = where(context.node_config, folder)
        if who not in nodes:
            nodes[who] = stand(made(), context.node_config, folder)
        with watched(letter.head.get("seconds") if watchdog else None):
            found = nodes[who].answer(letter)
        return Message(enclosed(found), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    app.query()(answer)
    return app


def where(config: dict[str, Any], folder: Path | None) -> tuple[Path, int, int]:
    """Where a node keeps states, which share of the clients it has, and of how many shares."""
    if "partition-id" not in config:
        raise ValueError(
            "the node does not know its clients; start it with "
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


def stand(setup: Setup, config: dict[str, Any], folder: Path | None) -> Node:
    """The node that stands for its share of the clients."""
    place, index, count = where(config, folder)
    clients = [client.id for client in setup.federation.pool if client.id % count == index]
    return Node(setup, place, clients)


def asked(patience: Patience, told: dict[str, Any]) -> Patience:
    """The patience with what a run's configuration says of it."""
    known = {item.name: item for item in fields.settings(patience)}
    values = {name: fields.convert(known[name], told[name]) for name in known if name in told}
    found = fields.replace(patience, values)
    fields.check(found)
    return found


def _array(data: bytes) -> Array:
    return Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)


@contextmanager
def watched(seconds: object) -> Iterator[None]:
    """Ends the process if what is inside takes longer."""
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
