"""Records on disk: encoded as on the wire, preceded by their schema."""

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
    """Encodes a record together with its schema; `load` decodes it.

    The reader of a file holds no masks, so all masks are stored completely.
    """
    record = whole(record)
    schema = Schema.of(record)
    plain = json.dumps(schema.plain()).encode()
    return b"".join([MAGIC, struct.pack("<I", len(plain)), plain, encode(record, schema)])


def load(data: bytes, types: Types) -> Any:
    """Decodes a record from `dump`; only the given record types are instantiated."""
    start = len(MAGIC) + 4
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise WireError("the file is not a Gossamer record, or is truncated")
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
    """A 16-byte hash of byte strings, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
