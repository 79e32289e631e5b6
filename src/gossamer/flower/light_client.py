"""The client of a project: it imports no PyTorch where the node has a process that did.

Flower starts a process for every message. Where `gossamer join` keeps a warm one, this hands the
message over and gives back what comes; elsewhere it is the whole client. It is copied into every
project, beside the configuration of the run, and imports Gossamer only if it has to.
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
    """Answers by the warm process, or, without one, here."""
    warm = reached(str(context.node_config.get("keeper", "")))
    if warm is None:
        return whole(message, context)
    record = message.content.array_records[RECORD]
    about = json.dumps({"config": str(CONFIG), "node": dict(context.node_config)}).encode()
    with warm:
        put(warm, about, *(record[name].data for name in PARTS))
        problem, head, body = (get(warm) for _ in range(3))
    if problem:
        raise RuntimeError(problem.decode())
    arrays = {
        name: Array("uint8", (len(data),), STYPE, data)
        for name, data in zip(PARTS, (head, body), strict=True)
    }
    return Message(RecordDict({RECORD: ArrayRecord(arrays)}), reply_to=message)


def reached(path: str) -> socket.socket | None:
    """A connection to the warm process, if there is one."""
    if not path or not hasattr(socket, "AF_UNIX"):
        return None
    warm = socket.socket(socket.AF_UNIX)
    try:
        warm.connect(path)
    except OSError:
        warm.close()
        return None
    return warm


def whole(message: Message, context: Context) -> Message:
    """The client in this process."""
    from gossamer.config import read
    from gossamer.flower.apps import client_app
    from gossamer.flower.server import at_node

    client = client_app(lambda: at_node(read(CONFIG), context.node_config))
    found: Message = client(message, context)
    return found


def put(stream: socket.socket, *parts: bytes) -> None:
    """Sends parts with their lengths before them."""
    for part in parts:
        stream.sendall(struct.pack("<Q", len(part)) + part)


def get(stream: socket.socket) -> bytes:
    """Receives one part."""
    return take(stream, struct.unpack("<Q", take(stream, 8))[0])


def take(stream: socket.socket, count: int) -> bytes:
    """Exactly so many bytes; an error if the other side ends before."""
    found = bytearray()
    while len(found) < count:
        more = stream.recv(min(count - len(found), 1 << 20))
        if not more:
            raise ConnectionError("the client's process ended without an answer")
        found += more
    return bytes(found)


app = ClientApp()
for purpose in (app.train, app.evaluate, app.query):
    purpose()(answer)
