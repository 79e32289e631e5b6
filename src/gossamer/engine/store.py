"""What clients keep between rounds: written to disk at once, and cached in memory up to a limit.

A state is stored under the round in which it was written, `rounds/000012/local/17.bin`. The state
of a client at a checkpoint is its newest file up to that round, so an unfinished round leaves no
trace. A file states its run, client and round, and has a checksum that is checked when it is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer.engine.files import Damaged, private_folder, seal, unseal, write
from gossamer.wire import load
from gossamer.wire.schema import Types

SERVER, META, PAST = "server.bin", "meta.json", "past.bin"
"""The files of a checkpoint, `meta.json` written last; the third in asynchronous runs only."""
MEMORY = 256 * 2**20
"""Bytes of client state kept in memory by default."""


def round_folder(rounds: Path, round: int) -> Path:
    """Where everything written in a round lies."""
    return rounds / f"{round:06d}"


def state_path(rounds: Path, client: int, round: int) -> Path:
    """The file of a state that a client kept in a round."""
    return round_folder(rounds, round) / "local" / f"{client}.bin"


def about_state(run: str, client: int, round: int) -> dict[str, str | int]:
    """What the file of a client's state states; without `run`, of any run."""
    place: dict[str, str | int] = {"kind": "state", "client": client, "round": round}
    return {**place, "run": run} if run else place


def written_rounds(rounds: Path) -> list[int]:
    """Rounds that have a folder, in order."""
    folders = (path.name for path in rounds.iterdir() if path.is_dir())
    return sorted(int(name) for name in folders if name.isdecimal() and name == f"{int(name):06d}")


class Store:
    """Local states by client; cost depends on who takes part, not on how many are registered."""

    def __init__(self, rounds: Path, types: Types, memory: int = MEMORY, *, run: str = "") -> None:
        self._rounds = rounds
        self._run = run
        self._types = types
        self._memory = memory
        self._lock = threading.Lock()
        self._written: dict[int, int] = {}
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._cached = 0
        self._superseded: list[tuple[int, int, int]] = []
        """Client, round written, round of the state that took its place."""
        self._new: list[Path] = []
        self._staged: dict[int, tuple[int, bytes]] = {}
        """Client, round and state of files that are written already."""

    def get(self, client: int) -> Any:
        """The state a client kept, or None if it never kept one."""
        data = self.raw(client)
        return None if data is None else load(data, self._types)

    def raw(self, client: int) -> bytes | None:
        """The bytes of a client's state.

        Raises:
            Damaged: The file is not what was written.
        """
        with self._lock:
            if client not in self._written:
                return None
            if client in self._cache:
                self._cache.move_to_end(client)
                return self._cache[client]
            round = self._written[client]
        data = read_state(self._rounds, self._run, client, round)
        self._remember(client, data)
        return data

    def stage(self, client: int, round: int, data: bytes) -> None:
        """Writes a state that `put` may make the client's; `drop_staged` deletes the others."""
        if self._cache.get(client) is not data:
            self._write(client, round, data)
            self._staged[client] = (round, data)

    def drop_staged(self) -> None:
        """Deletes the states of clients whose replies were not merged; theirs stay as they are."""
        for client in list(self._staged):
            self._unstage(client)

    def _unstage(self, client: int) -> None:
        if staged := self._staged.pop(client, None):
            self._delete(client, staged[0])

    def put(self, client: int, round: int, data: bytes) -> None:
        """Replaces a client's state; the old one stays until no checkpoint needs it.

        Bytes that are the very object of the old state change nothing.
        """
        if self._cache.get(client) is data:
            self._unstage(client)
            return
        staged = self._staged.get(client)
        if staged is not None and staged[0] == round and staged[1] is data:
            del self._staged[client]
        else:
            self._unstage(client)
            self._write(client, round, data)
        with self._lock:
            if client in self._written and self._written[client] != round:
                self._superseded.append((client, self._written[client], round))
            self._written[client] = round
            self._new.append(self._path(client, round))
        self._remember(client, data)

    def _write(self, client: int, round: int, data: bytes) -> None:
        path = self._path(client, round)
        for folder in (path.parent.parent, path.parent):
            private_folder(folder)
        write(path, seal(data, about_state(self._run, client, round)))

    def _delete(self, client: int, round: int) -> None:
        path = self._path(client, round)
        path.unlink(missing_ok=True)
        for folder in (path.parent, path.parent.parent):
            _drop_empty(folder)

    def clients(self) -> list[int]:
        """Everyone who keeps a state, in the order of ids."""
        return sorted(self._written)

    def states(self, round: int | None = None) -> dict[int, int]:
        """The round in which each state was written, by client: now, or at the end of a round."""
        with self._lock:
            states = dict(self._written)
            for client, old, new in reversed(self._superseded):
                if round is not None and new > round and states.get(client) == new:
                    states[client] = old
        if round is None:
            return states
        return {client: written for client, written in states.items() if written <= round}

    def forget(self, client: int) -> None:
        """Drops a state that is lost; its file, if any, is no longer used."""
        with self._lock:
            self._written.pop(client, None)
            self._cached -= len(self._cache.pop(client, b""))

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
            self._delete(client, old)
        self._superseded = needed
        self._new.clear()

    def rollback(self, round: int, states: Mapping[int, int] | None = None) -> None:
        """Goes back to the end of a round; what was written later is deleted.

        Args:
            round: The round.
            states: The round in which each client's state was written; None: as the files say.
        """
        for later in written_rounds(self._rounds):
            if later > round:
                _clear(round_folder(self._rounds, later))
        self.look(round, states)
        self._new = [path for path in self._new if path.exists()]

    def look(self, round: int, states: Mapping[int, int] | None = None) -> None:
        """Reads which states were kept at the end of a round; changes nothing on disk."""
        self._written.clear()
        self._cache.clear()
        self._cached = 0
        self._superseded.clear()
        self._staged.clear()
        files: dict[int, list[int]] = {}
        for written in written_rounds(self._rounds):
            if written <= round:
                for client in clients_in(round_folder(self._rounds, written) / "local"):
                    files.setdefault(client, []).append(written)
        if states is None:
            states = {client: rounds[-1] for client, rounds in files.items()}
        self._written.update(states)
        for client, rounds in files.items():
            older = [each for each in rounds if each < states.get(client, -1)]
            later = [*older[1:], states.get(client, -1)]
            self._superseded += [(client, *pair) for pair in zip(older, later, strict=False)]

    def _path(self, client: int, round: int) -> Path:
        return state_path(self._rounds, client, round)

    def _remember(self, client: int, data: bytes) -> None:
        with self._lock:
            self._cached += len(data) - len(self._cache.pop(client, b""))
            self._cache[client] = data
            while self._cached > self._memory and self._cache:
                _, dropped = self._cache.popitem(last=False)
                self._cached -= len(dropped)


def read_state(rounds: Path, run: str, client: int, round: int) -> bytes:
    """What a client kept in a round.

    Raises:
        Damaged: The file is not what was written; the message names it and the client.
    """
    try:
        return unseal(state_path(rounds, client, round), about_state(run, client, round))
    except Damaged as problem:
        raise Damaged(f"what client {client} kept in round {round} is lost: {problem}") from None


def _clear(folder: Path) -> None:
    """Deletes the files of a round, the one that makes it a checkpoint first, but no others."""
    for name in (part for each in (META, SERVER, PAST) for part in (each, f"{each}.partial")):
        (folder / name).unlink(missing_ok=True)
    for client in list(clients_in(folder / "local")):
        (folder / "local" / f"{client}.bin").unlink()
    for each in (folder / "local", folder):
        _drop_empty(each)


def _drop_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def clients_in(folder: Path) -> Iterator[int]:
    """Clients whose states were written in a round; other files in the folder are left alone."""
    if folder.is_dir():
        for path in folder.glob("*.bin"):
            if path.stem.isdecimal() and path.stem == str(int(path.stem)) and path.is_file():
                yield int(path.stem)
