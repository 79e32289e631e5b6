"""What clients keep between rounds: written to disk at once, and cached in memory up to a limit.

A state is stored under the round in which it was written, `rounds/000012/local/17.bin`. The state
of a client at a checkpoint is its newest file up to that round, so an unfinished round leaves no
trace.
"""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gossamer.wire import load
from gossamer.wire.schema import Types

MEMORY = 256 * 2**20
"""Bytes of client state kept in memory by default."""


def round_folder(rounds: Path, round: int) -> Path:
    """Where everything written in a round lies."""
    return rounds / f"{round:06d}"


def written_rounds(rounds: Path) -> list[int]:
    """Rounds that have a folder, in order."""
    folders = (path for path in rounds.iterdir() if path.name.isdecimal() and path.is_dir())
    return sorted(int(path.name) for path in folders)


class Store:
    """Local states by client; cost depends on who takes part, not on how many are registered."""

    def __init__(self, rounds: Path, types: Types, memory: int = MEMORY) -> None:
        self._rounds = rounds
        self._types = types
        self._memory = memory
        self._lock = threading.Lock()
        self._written: dict[int, int] = {}
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._cached = 0
        self._superseded: list[tuple[int, int, int]] = []
        """Client, round written, round of the state that took its place."""
        self._new: list[Path] = []

    def get(self, client: int) -> Any:
        """The state a client kept, or None if it never kept one."""
        data = self.raw(client)
        return None if data is None else load(data, self._types)

    def raw(self, client: int) -> bytes | None:
        """The bytes of a client's state."""
        with self._lock:
            if client not in self._written:
                return None
            if client in self._cache:
                self._cache.move_to_end(client)
                return self._cache[client]
            path = self._path(client, self._written[client])
        data = path.read_bytes()
        self._remember(client, data)
        return data

    def put(self, client: int, round: int, data: bytes) -> None:
        """Replaces a client's state; the old one stays until no checkpoint needs it."""
        path = self._path(client, round)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        with self._lock:
            if client in self._written and self._written[client] != round:
                self._superseded.append((client, self._written[client], round))
            self._written[client] = round
            self._new.append(path)
        self._remember(client, data)

    def clients(self) -> list[int]:
        """Everyone who keeps a state, in the order of ids."""
        return sorted(self._written)

    def new(self) -> list[Path]:
        """Files written since the last checkpoint."""
        return list(self._new)

    def commit(self, kept: Sequence[int]) -> None:
        """Deletes the states that none of the checkpointed rounds `kept` needs."""
        needed = []
        for client, old, new in self._superseded:
            if any(old <= round < new for round in kept):
                needed.append((client, old, new))
                continue
            path = self._path(client, old)
            path.unlink(missing_ok=True)
            for folder in (path.parent, path.parent.parent):
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()
        self._superseded = needed
        self._new.clear()

    def rollback(self, round: int) -> None:
        """Goes back to the end of a round; what was written later is deleted."""
        for later in written_rounds(self._rounds):
            if later > round:
                shutil.rmtree(round_folder(self._rounds, later))
        self.look(round)
        self._new = [path for path in self._new if path.exists()]

    def look(self, round: int) -> None:
        """Reads which states were kept at the end of a round; changes nothing on disk."""
        self._written.clear()
        self._cache.clear()
        self._cached = 0
        self._superseded.clear()
        for written in written_rounds(self._rounds):
            if written > round:
                break
            for client in _clients_in(round_folder(self._rounds, written) / "local"):
                if client in self._written:
                    self._superseded.append((client, self._written[client], written))
                self._written[client] = written

    def _path(self, client: int, round: int) -> Path:
        return round_folder(self._rounds, round) / "local" / f"{client}.bin"

    def _remember(self, client: int, data: bytes) -> None:
        with self._lock:
            self._cached += len(data) - len(self._cache.pop(client, b""))
            self._cache[client] = data
            while self._cached > self._memory and self._cache:
                _, dropped = self._cache.popitem(last=False)
                self._cached -= len(dropped)


def _clients_in(folder: Path) -> Iterator[int]:
    if folder.is_dir():
        yield from (int(path.stem) for path in folder.glob("*.bin"))
