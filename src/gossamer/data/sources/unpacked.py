"""Compressed files that are unpacked once: the next process finds what this one has unpacked.

Fashion-MNIST takes a third of a second to unpack, and a node on a network starts a process for
every message. What is kept lies in the user's cache, may be deleted at any time, and is shared in
memory by all processes that read it. Whoever asks for it proves what it gets, as with any file.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

Unpack = Callable[[bytes], bytes]


def folder() -> Path:
    """Where unpacked files are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "gossamer" / "unpacked"


def unpacked(path: Path, unpack: Unpack, *, anew: bool = False) -> memoryview:
    """The content of a compressed file; `anew` does not look at what was kept of it."""
    kept = _place(path)
    if not anew:
        with contextlib.suppress(OSError, ValueError), kept.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    content = unpack(path.read_bytes())
    with contextlib.suppress(OSError):  # a cache that cannot be written is no reason to stop
        _keep(content, kept)
    return memoryview(content)


def _place(path: Path) -> Path:
    """Another file, or the same after a change, has another place."""
    seen = path.stat()
    identity = f"{path.resolve()} {seen.st_size} {seen.st_mtime_ns}"
    return folder() / f"{path.stem}-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}"


def _keep(content: bytes, place: Path) -> None:
    """Whole or not at all, whoever else writes the same."""
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, place)  # noqa: PTH105
    except BaseException:
        Path(temporary).unlink()
        raise
