"""Compressed files that are unpacked once: the next process finds what this one has unpacked.

Unpacking is most of what it takes to open Fashion-MNIST, and a node on a network starts a process
for every message. What is kept lies in the user's cache and may be deleted at any time. Whoever
asks for it proves what it gets, as with any file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

Unpack = Callable[[bytes], bytes]
STALE = 3600.0
"""Seconds after which a file that is still being written was given up."""


def folder() -> Path:
    """Where unpacked files are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "gossamer" / "unpacked"


def unpacked(path: Path, unpack: Unpack, identity: str = "", *, anew: bool = False) -> bytes:
    """The content of a compressed file; `anew` does not look at what was kept of it.

    Another file, or the same after a change, is unpacked for itself, unless it has an `identity`.
    A cache that cannot be used is no reason to stop.
    """
    kept = None
    with contextlib.suppress(OSError, RuntimeError):  # there may be no home
        kept = folder() / f"{path.stem}-{_short(identity or _seen(path))}"
        if not anew:
            return kept.read_bytes()
    content = unpack(path.read_bytes())
    if kept is not None:
        with contextlib.suppress(OSError):
            _keep(content, kept)
    return content


def _seen(path: Path) -> str:
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _keep(content: bytes, place: Path) -> None:
    """Whole or not at all, whoever else writes the same."""
    place.parent.mkdir(parents=True, exist_ok=True)
    for part in place.parent.glob(".part-*"):
        if time.time() - part.stat().st_mtime > STALE:
            part.unlink()
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(place)
    except BaseException:
        Path(temporary).unlink()
        raise
