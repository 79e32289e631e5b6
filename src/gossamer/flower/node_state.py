"""What a node's clients keep, on the node's disk: by run, and the last two versions of each.

A state is named by its fingerprint. The server says with which state a round begins, so a round
that is repeated, because its reply was lost or refused, begins with the same state again. Files
state what they are and have checksums; a damaged one counts as absent, and the server is told.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from gossamer.engine.files import (
    Damaged,
    opened,
    private_folder,
    seal,
    seal_json,
    unseal_json,
    write_atomically,
)
from gossamer.wire import fingerprint

log = logging.getLogger("gossamer.flower")

SCHEMAS = "schemas"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,120}")


@dataclass(frozen=True)
class NodeState:
    """The states of a node's clients, and the schemas that the node has received."""

    folder: Path

    def get(self, run: str, client: int, name: str) -> bytes | None:
        """The state with this fingerprint, or None if it is absent or damaged."""
        path = self._place(run, client) / f"{name}.bin"
        if not name or not path.exists():
            return None
        try:
            return read_state(path)
        except Damaged as problem:
            log.warning("client %d lost what it kept: %s", client, problem)
            return None

    def put(self, run: str, client: int, round: int, data: bytes, began: str) -> str:
        """Keeps a new state and the one it began from; older ones are deleted.

        Returns:
            The fingerprint of the new state.
        """
        place, name = self._place(run, client), fingerprint(data)
        for folder in (self.folder, place.parent, place):
            private_folder(folder)
        sealed = seal(data, {"kind": "kept", "run": run, "client": client, "round": round})
        write_atomically(place / f"{name}.bin", sealed, private=True)
        for path in place.glob("*.bin"):
            if path.stem not in (name, began):
                path.unlink(missing_ok=True)
        return name

    def schema(self, name: str) -> bytes | None:
        """The schema with this hash as JSON, or None if it is absent or damaged."""
        path = self._schema(name)
        if not path.exists():
            return None
        try:
            return json.dumps(read_schema(path)).encode()
        except Damaged as problem:
            log.warning("a schema is asked for again: %s", problem)
            self.forget(name)
            return None

    def learn(self, name: str, schema: bytes) -> None:
        """Remembers a schema."""
        path = self._schema(name)
        if not path.exists():
            for folder in (self.folder, path.parent):
                private_folder(folder)
            plain = {"name": name, "schema": json.loads(schema)}
            write_atomically(path, seal_json(plain), private=True)

    def forget(self, name: str) -> None:
        """Deletes a schema that cannot be used."""
        self._schema(name).unlink(missing_ok=True)

    def _schema(self, name: str) -> Path:
        return self.folder / SCHEMAS / f"{name}.json"

    def _place(self, run: str, client: int) -> Path:
        if not _NAME.fullmatch(run) or run.startswith("."):
            raise ValueError(f"{run!r} cannot be the name of a run")
        return self.folder / run / str(int(client))


def read_state(path: Path) -> bytes:
    """What a client kept, by the path `RUN/CLIENT/FINGERPRINT.bin`.

    Raises:
        Damaged: The file is damaged, or of another run, client or fingerprint.
    """
    data, about = opened(path)
    run, client = path.parent.parent.name, path.parent.name
    if (about.get("run"), str(about.get("client"))) != (run, client):
        raise Damaged(
            f"{path} is not in its place: it is of client {about.get('client')} "
            f"in {about.get('run')}"
        )
    if fingerprint(data) != path.stem:
        raise Damaged(f"{path} is not in its place: it holds another state")
    return data


def read_schema(path: Path) -> object:
    """A schema, by the path `HASH.json`.

    Raises:
        Damaged: The file is damaged, or of another hash.
    """
    plain = unseal_json(path)
    if plain.get("name") != path.stem or "schema" not in plain:
        raise Damaged(f"{path} is not in its place: it holds another schema")
    return plain["schema"]
