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
def locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """Nobody else has it inside; without `wait`, a `BlockingIOError` if somebody has.

    A file system without locks lets everybody in.
    """
    if fcntl is None:
        yield
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as problem:
            if isinstance(problem, BlockingIOError):
                raise
        yield
    finally:
        os.close(place)
