"""What clients of a node keep, on the node's disk: by run, and the last two versions of each.

A state is named by its fingerprint. The server says which one a round begins with, so a round that
is repeated, by a server that lost it or refused its reply, begins where it began before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gossamer.engine.checkpoint import write_atomically
from gossamer.wire import fingerprint

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,120}")


@dataclass(frozen=True)
class Shelf:
    """States of clients, and what else a node should not be told twice."""

    folder: Path

    def get(self, run: str, client: int, name: str) -> bytes | None:
        """The state of that fingerprint, or None if it is not here or is damaged."""
        path = self._place(run, client) / f"{name}.bin"
        data = path.read_bytes() if name and path.exists() else None
        return data if data is not None and fingerprint(data) == name else None

    def put(self, run: str, client: int, data: bytes, began: str) -> str:
        """Keeps a new state beside the one it came from; all others go. Returns its name."""
        place, name = self._place(run, client), fingerprint(data)
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / f"{name}.bin", data)
        for path in place.glob("*.bin"):
            if path.stem not in (name, began):
                path.unlink(missing_ok=True)
        return name

    def schema(self, name: str) -> bytes | None:
        """The schema of messages that begin with these eight bytes, as text."""
        path = self.folder / "schemas" / f"{name}.json"
        return path.read_bytes() if path.exists() else None

    def learn(self, name: str, schema: bytes) -> None:
        """Remembers a schema."""
        path = self.folder / "schemas" / f"{name}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, schema)

    def forget(self, name: str) -> None:
        """Drops a schema that is of no use."""
        (self.folder / "schemas" / f"{name}.json").unlink(missing_ok=True)

    def _place(self, run: str, client: int) -> Path:
        if not _NAME.fullmatch(run) or run.startswith("."):
            raise ValueError(f"{run!r} cannot be the name of a run")
        return self.folder / run / str(int(client))
