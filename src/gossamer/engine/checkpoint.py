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
KEPT = 2
"""Checkpoints kept: the newest, and one more in case it is damaged."""


class Unusable(ValueError):
    """A run that cannot go on from where it stands; the message says why."""


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keeps other processes from running the same run, where the system has such locks."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(out, wait=False))
        except BlockingIOError:
            raise Unusable(f"{out} is being run by another process; see `gossamer watch`") from None
        yield


@dataclass(frozen=True)
class Progress:
    """How far a run has come, besides the states of server and clients."""

    round: int = 0
    cost: Cost = Cost()
    density: float = 1.0
    accuracy: dict[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    device_seconds: float | None = None
    failed: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """A whole round directory, read back."""

    progress: Progress
    server: bytes
    events: int
    """Bytes of the event log that belong to it."""
    clients: int
    """How many clients have a state."""
    run: str
    """A hash of what is run: method, settings, rounds and seed."""


def save(
    rounds: Path,
    progress: Progress,
    server: bytes,
    events: int,
    run: str,
    also: Iterable[Path] = (),
    clients: int = 0,
) -> list[int]:
    """Writes a checkpoint so that it either is there or is not; tells which rounds are kept."""
    folder = round_folder(rounds, progress.round)
    folder.mkdir(parents=True, exist_ok=True)
    for path in also:
        _flush(path)
    write_atomically(folder / "server.bin", server)
    meta = {
        "version": VERSION,
        "progress": asdict(progress),
        "events": events,
        "run": run,
        "clients": clients,
        "server": fingerprint(server),
    }
    write_atomically(folder / "meta.json", json.dumps(meta).encode())
    whole = [r for r in written_rounds(rounds) if (round_folder(rounds, r) / "meta.json").exists()]
    for old in whole[:-KEPT]:
        _drop(round_folder(rounds, old))
    return whole[-KEPT:]


def newest(rounds: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None if there is none."""
    if not rounds.is_dir():
        return None
    for round in reversed(written_rounds(rounds)):
        if (found := _read(round_folder(rounds, round))) is not None:
            return found
    return None


def check_continues(found: Checkpoint, out: Path, run: str) -> None:
    """Refuses a checkpoint of another run, or one whose log has lost lines."""
    if found.run != run:
        raise Unusable(
            f"{out} is a run of another method, other settings, rounds or seed; "
            "resume it with its own, or choose another folder"
        )
    log = out / "events.jsonl"
    size = log.stat().st_size if log.exists() else 0
    if size < found.events:
        raise Unusable(
            f"{log} has {size} bytes, but its run had written {found.events}; put the whole log "
            "back, or begin again in another folder"
        )


def check_states(found: Checkpoint, out: Path, clients: int) -> None:
    """Refuses to go on where files of client states are missing."""
    if clients != found.clients:
        raise Unusable(
            f"{found.clients} clients had a state, but {out / 'rounds'} has those of {clients}; "
            "put the missing files back, or begin again in another folder"
        )


def write_atomically(path: Path, data: bytes) -> None:
    """The file is there with all of `data`, or as it was before."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    _flush(partial)
    partial.replace(path)


def ready(out: Path, need: int) -> None:
    """Refuses a folder that cannot be written or a disk without room, before any work."""
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
