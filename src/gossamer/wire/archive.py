"""Records on disk: the same bytes as on the wire, behind the schema they were written with."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

from gossamer.wire.codec import decode, encode
from gossamer.wire.errors import WireError
from gossamer.wire.kinds import whole
from gossamer.wire.schema import Schema, Types

MAGIC = b"GOSSAMER1\n"


def dump(record: object) -> bytes:
    """A record as bytes that explain themselves; `load` reads them.

    Whoever reads a file holds no masks, so masks are whole in it.
    """
    record = whole(record)
    schema = Schema.of(record)
    plain = json.dumps(schema.plain()).encode()
    return b"".join([MAGIC, struct.pack("<I", len(plain)), plain, encode(record, schema)])


def load(data: bytes, types: Types) -> Any:
    """The record written by `dump`; only the given record types are made."""
    start = len(MAGIC) + 4
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise WireError("the file is no record of Gossamer's, or is cut short")
    end = start + struct.unpack("<I", data[len(MAGIC) : start])[0]
    try:
        plain = json.loads(data[start:end])
    except (ValueError, RecursionError) as damage:
        raise WireError("the schema of the record is damaged") from damage
    try:
        schema = Schema.read(plain, types)
    except ValueError as refusal:
        raise WireError(str(refusal)) from refusal
    return decode(data[end:], schema, finite=False)


def fingerprint(*parts: bytes) -> str:
    """A short hash of some bytes, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
