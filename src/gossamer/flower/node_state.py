"""What a node's clients keep, on the node's disk: by run, and the last two versions of each.

A state is named by its fingerprint. The server says with which state a round begins, so a round
that is repeated, because its reply was lost or refused, begins with the same state again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gossamer.engine.checkpoint import write_atomically
from gossamer.wire import fingerprint

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,120}")


@dataclass(frozen=True)
class NodeState:
    """The states of a node's clients, and the schemas that the node has received."""

    folder: Path

    def get(self, run: str, client: int, name: str) -> bytes | None:
        """The state with this fingerprint, or None if it is absent or damaged."""
        path = self._place(run, client) / f"{name}.bin"
        data = path.read_bytes() if name and path.exists() else None
        return data if data is not None and fingerprint(data) == name else None

    def put(self, run: str, client: int, data: bytes, began: str) -> str:
        """Keeps a new state and the one it began from; older ones are deleted.

        Returns:
            The fingerprint of the new state.
        """
        place, name = self._place(run, client), fingerprint(data)
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / f"{name}.bin", data)
        for path in place.glob("*.bin"):
            if path.stem not in (name, began):
                path.unlink(missing_ok=True)
        return name

    def schema(self, name: str) -> bytes | None:
        """The schema with this hash as JSON, or None."""
        path = self.folder / "schemas" / f"{name}.json"
        return path.read_bytes() if path.exists() else None

    def learn(self, name: str, schema: bytes) -> None:
        """Remembers a schema."""
        path = self.folder / "schemas" / f"{name}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, schema)

    def forget(self, name: str) -> None:
        """Deletes a schema that cannot be used."""
        (self.folder / "schemas" / f"{name}.json").unlink(missing_ok=True)

    def _place(self, run: str, client: int) -> Path:
        if not _NAME.fullmatch(run) or run.startswith("."):
            raise ValueError(f"{run!r} cannot be the name of a run")
        return self.folder / run / str(int(client))
