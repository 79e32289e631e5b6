"""The light client of a project: it need not import PyTorch where the node has a warm worker.

Flower starts a process for every message. Where `gossamer join` runs a warm worker, this process
only relays the message to it; elsewhere it is the whole client. The file is copied into every
project, beside the run's configuration, and imports Gossamer only if it has to.
"""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

RECORD, PARTS, STYPE = "gossamer", ("head", "body"), "gossamer/1"
CONFIG = Path(__file__).with_name("config.toml")


def answer(message: Message, context: Context) -> Message:
    """Answers through the warm worker, or, without one, in this process."""
    worker = connect(str(context.node_config.get("warm-worker", "")))
    if worker is None:
        return whole(message, context)
    record = message.content.array_records[RECORD]
    about = json.dumps({"config": str(CONFIG), "node": dict(context.node_config)}).encode()
    with worker:
        put(worker, about, *(record[name].data for name in PARTS))
        problem, head, body = (get(worker) for _ in range(3))
    if problem:
        raise RuntimeError(problem.decode())
    arrays = {
        name: Array("uint8", (len(data),), STYPE, data)
        for name, data in zip(PARTS, (head, body), strict=True)
    }
    return Message(RecordDict({RECORD: ArrayRecord(arrays)}), reply_to=message)


def connect(path: str) -> socket.socket | None:
    """A connection to the warm worker, or None."""
    if not path or not hasattr(socket, "AF_UNIX"):
        return None
    worker = socket.socket(socket.AF_UNIX)
    try:
        worker.connect(path)
    except OSError:
        worker.close()
        return None
    return worker


def whole(message: Message, context: Context) -> Message:
    """The whole client, in this process."""
    from gossamer.config import read
    from gossamer.flower.apps import client_app
    from gossamer.flower.server import at_node

    client = client_app(lambda: at_node(read(CONFIG, shipped=True), context.node_config))
    reply: Message = client(message, context)
    return reply


def put(stream: socket.socket, *parts: bytes) -> None:
    """Sends parts, each preceded by its length."""
    for part in parts:
        stream.sendall(struct.pack("<Q", len(part)) + part)


def get(stream: socket.socket) -> bytes:
    """Receives one part."""
    return take(stream, struct.unpack("<Q", take(stream, 8))[0])


def take(stream: socket.socket, count: int) -> bytes:
    """Receives exactly `count` bytes; an error if the other side ends before."""
    data = bytearray()
    while len(data) < count:
        more = stream.recv(min(count - len(data), 1 << 20))
        if not more:
            raise ConnectionError("the client's process ended without an answer")
        data += more
    return bytes(data)


app = ClientApp()
for purpose in (app.train, app.evaluate, app.query):
    purpose()(answer)
