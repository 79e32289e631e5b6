"""What travels: records, their schemas, and their bytes."""

from gossamer.wire.archive import dump, fingerprint, load
from gossamer.wire.codec import HEADER, WireError, decode, encode
from gossamer.wire.schema import Schema, flatten, record_types

__all__ = [
    "HEADER",
    "Schema",
    "WireError",
    "decode",
    "dump",
    "encode",
    "fingerprint",
    "flatten",
    "load",
    "record_types",
]
