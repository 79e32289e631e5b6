"""A lock on a folder, which ends with its process, where the system has such locks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Nobody else has it inside; yields whether somebody had it before.

    Without `wait` that is a `BlockingIOError`. A file system without locks lets everybody in.
    """
    if fcntl is None:
        yield False
        return
    place, waited = os.open(folder, os.O_RDONLY), False
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise
            waited = True
            fcntl.flock(place, fcntl.LOCK_EX)
        except OSError:
            pass
        yield waited
    finally:
        os.close(place)
