"""The wire format: records, their schemas, and their encoding."""

from gossamer.wire.archive import dump, fingerprint, load
from gossamer.wire.codec import Row, Written, choose, decode, difference, encode, write
from gossamer.wire.drawn import Drawn
from gossamer.wire.errors import UnknownMask, WireError
from gossamer.wire.format import HEADER, Detail, longest, room
from gossamer.wire.kinds import (
    EXACT,
    Levels,
    Packed,
    Revision,
    held,
    pack,
    unpack,
    whole,
)
from gossamer.wire.mode import PLAIN, Mode
from gossamer.wire.schema import Schema, flatten, record_types

__all__ = [
    "EXACT",
    "HEADER",
    "PLAIN",
    "Detail",
    "Drawn",
    "Levels",
    "Mode",
    "Packed",
    "Revision",
    "Row",
    "Schema",
    "UnknownMask",
    "WireError",
    "Written",
    "choose",
    "decode",
    "difference",
    "dump",
    "encode",
    "fingerprint",
    "flatten",
    "held",
    "load",
    "longest",
    "pack",
    "record_types",
    "room",
    "unpack",
    "whole",
    "write",
]
