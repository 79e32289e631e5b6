"""Round directories that are whole or absent: a run continues from the newest whole one.

`rounds/000012/` holds `server.bin` and, written last, `meta.json`. Everything is written under
another name and renamed, so that a process killed at any instant leaves a run that can be resumed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gossamer._locks import locked
from gossamer.accounting import Cost
from gossamer.engine.store import round_folder, written_rounds
from gossamer.wire import fingerprint

VERSION = 1
PARTS = {"progress", "events", "run", "server"}
BEST = "best"
"""The folder of the best round's model, beside `rounds`, where that is kept."""
KEPT = 2
"""Checkpoints kept: the newest, and one more in case it is damaged."""


class Unusable(ValueError):
    """A run that cannot be continued; the message says why."""


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Locks the folder against other processes, where the system has such locks."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(out, wait=False))
        except BlockingIOError:
            raise Unusable(f"{out} is being run by another process; see `gossamer watch`") from None
        yield


@dataclass(frozen=True)
class Progress:
    """How far a run has come, apart from the states of server and clients."""

    round: int = 0
    cost: Cost = Cost()
    density: float = 1.0
    accuracy: dict[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    device_seconds: float | None = None
    failed: int = 0
    diverged: str = ""
    """Since which round there is nothing to learn from, and why; empty if there is."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a round directory."""

    progress: Progress
    server: bytes
    events: int
    """Bytes of the event log that belong to it."""
    clients: int
    """How many clients have a state."""
    run: str
    """A hash of what is run: method, settings, rounds and seed."""


def save(rounds: Path, saved: Checkpoint, also: Iterable[Path] = ()) -> list[int]:
    """Writes a checkpoint atomically.

    Args:
        rounds: The folder of all rounds.
        saved: The checkpoint.
        also: Files that must be on disk before it.

    Returns:
        The rounds whose checkpoints are kept.
    """
    folder = round_folder(rounds, saved.progress.round)
    folder.mkdir(parents=True, exist_ok=True)
    for path in also:
        _flush(path)
    write_atomically(folder / "server.bin", saved.server)
    meta = {
        "version": VERSION,
        "progress": asdict(saved.progress),
        "events": saved.events,
        "run": saved.run,
        "clients": saved.clients,
        "server": fingerprint(saved.server),
    }
    write_atomically(folder / "meta.json", json.dumps(meta).encode())
    whole = [r for r in written_rounds(rounds) if (round_folder(rounds, r) / "meta.json").exists()]
    for old in whole[:-KEPT]:
        _drop(round_folder(rounds, old))
    return whole[-KEPT:]


def newest(rounds: Path) -> Checkpoint | None:
    """The newest complete checkpoint, or None."""
    if not rounds.is_dir():
        return None
    for round in reversed(written_rounds(rounds)):
        if (saved := _read(round_folder(rounds, round))) is not None:
            return saved
    return None


def check_continues(saved: Checkpoint, out: Path, run: str) -> None:
    """Raises `Unusable` for a checkpoint of another run, or one whose log has lost lines."""
    if saved.run != run:
        raise Unusable(
            f"{out} is a run of another method, other settings, rounds or seed; "
            "resume it with its own, or choose another folder"
        )
    log = out / "events.jsonl"
    size = log.stat().st_size if log.exists() else 0
    if size < saved.events:
        raise Unusable(
            f"{log} has {size} bytes, but its run had written {saved.events}; put the whole log "
            "back, or begin again in another folder"
        )


def check_states(saved: Checkpoint, out: Path, clients: int) -> None:
    """Raises `Unusable` if files of client states are missing."""
    if clients != saved.clients:
        raise Unusable(
            f"{saved.clients} clients had a state, but {out / 'rounds'} has those of {clients}; "
            "put the missing files back, or begin again in another folder"
        )


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that it has all of `data`, or is as it was before."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    _flush(partial)
    partial.replace(path)


def ready(out: Path, need: int) -> None:
    """Raises `OSError` if the folder cannot be written or the disk is full, before any work."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".probe"
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
    except OSError as refusal:
        raise OSError(
            f"cannot write to {out} ({refusal.strerror or refusal}); "
            "choose another folder with --out"
        ) from refusal
    free = shutil.disk_usage(out).free
    if free < need:
        raise OSError(
            f"{out} has {free / 2**20:.0f} MiB free, but the run needs about "
            f"{need / 2**20:.0f} MiB for its checkpoints; free some space or choose another "
            "folder with --out"
        )


def _read(folder: Path) -> Checkpoint | None:
    try:
        meta: dict[str, Any] = json.loads((folder / "meta.json").read_bytes())
        server = (folder / "server.bin").read_bytes()
    except (OSError, ValueError):
        return None
    if not isinstance(meta, dict) or "version" not in meta:
        return None
    if meta["version"] != VERSION:
        raise Unusable(
            f"{folder} was written by version {meta['version']} of the checkpoint format, "
            f"this is version {VERSION}; resume it with the Gossamer that wrote it"
        )
    if not meta.keys() >= PARTS or meta["server"] != fingerprint(server):
        return None
    saved = meta["progress"]
    progress = Progress(**{**saved, "cost": Cost(**saved["cost"])})
    return Checkpoint(progress, server, meta["events"], meta["clients"], meta["run"])


def _drop(folder: Path) -> None:
    """Removes a checkpoint but not the client states beside it, which may still be current."""
    for name in ("meta.json", "server.bin"):
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def _flush(path: Path) -> None:
    if not path.exists():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
