"""Round directories that are whole or absent: a run continues from the newest whole one.

`rounds/000012/` holds `server.bin` and, written last, `meta.json`. That of an asynchronous run
holds in `past.bin` the states that clients under way were sent, too. Everything is written under
another name and renamed, so that a process killed at any instant leaves a run that can be resumed.
Both have checksums; `gossamer.engine.resuming` chooses the checkpoint that a run continues from.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gossamer._locks import locked
from gossamer.accounting import Cost
from gossamer.engine.files import (
    Damaged,
    content,
    flush,
    private_folder,
    seal,
    seal_json,
    unseal,
    unseal_json,
)
from gossamer.engine.files import write_atomically as write_atomically
from gossamer.engine.store import META, PAST, SERVER, round_folder, written_rounds
from gossamer.trust.limits import Norms

VERSION = 2
FIRST = {"progress", "events", "run", "server"}
"""What the first version had."""
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
    scores: dict[str, float | None] = field(default_factory=dict)
    """Last and best figures of the headline metric."""
    seconds: float = 0.0
    device_seconds: float | None = None
    failed: int = 0
    not_finite: int = 0
    """Replies that were refused because their values were not finite."""
    diverged: str = ""
    """Since which round there is nothing to learn from, and why; empty if there is."""
    norms: Norms = field(default_factory=dict)
    """Median norms of replies in recent rounds, by field."""
    privacy: dict[str, Any] | None = None
    """What `--dp` has spent, and its next clip."""
    seen: dict[str, Any] = field(default_factory=dict)
    """What the server knows of clients, where `--sampling` needs it."""
    underway: list[Any] = field(default_factory=list)
    """Clients that train in an asynchronous run: id, round, and virtual time of their start."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a round directory."""

    progress: Progress
    server: bytes
    events: int
    """Bytes of the event log that belong to it."""
    chain: str
    """The checksum of these events, see `files.chained`."""
    states: Mapping[int, int]
    """The round in which each client's state was written, by client."""
    run: str
    """A hash of what is run: method, settings, rounds and seed."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of the files beside the log, such as the configuration."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The software and hardware that computed it."""
    rounds: int = 0
    """Rounds that the run is to have; 0 if the checkpoint does not say."""
    past: Mapping[int, bytes] = field(default_factory=dict)
    """The server's states that clients under way began with, by the rounds they began for."""


def save(rounds: Path, saved: Checkpoint, also: Iterable[Path] = ()) -> list[int]:
    """Writes a checkpoint atomically.

    Args:
        rounds: The folder of all rounds.
        saved: The checkpoint.
        also: Files that must be on disk before it.

    Returns:
        The rounds whose checkpoints are kept.
    """
    number = saved.progress.round
    folder = round_folder(rounds, number)
    private_folder(folder)
    new = list(also)
    for path in (*new, *sorted({path.parent for path in new}), rounds):
        flush(path)
    server = seal(saved.server, about_server(saved.run, number))
    write_atomically(folder / SERVER, server, private=True)
    if saved.past:
        past = seal(b"".join(saved.past.values()), about_server(saved.run, number))
        write_atomically(folder / PAST, past, private=True)
    meta = {
        "version": VERSION,
        "progress": asdict(saved.progress),
        "events": saved.events,
        "chain": saved.chain,
        "run": saved.run,
        "states": by_round(saved.states),
        "files": dict(saved.files),
        "environment": dict(saved.environment),
        "rounds": saved.rounds,
        **(
            {"past": {round: len(each) for round, each in saved.past.items()}} if saved.past else {}
        ),
    }
    write_atomically(folder / META, seal_json(meta), private=True)
    whole = [r for r in written_rounds(rounds) if (round_folder(rounds, r) / META).exists()]
    for old in whole[:-KEPT]:
        _drop(round_folder(rounds, old))
    return whole[-KEPT:]


def newest(rounds: Path) -> Checkpoint | None:
    """The newest undamaged checkpoint, or None."""
    return next((each for each in candidates(rounds) if isinstance(each, Checkpoint)), None)


def candidates(rounds: Path) -> Iterator[Checkpoint | Damaged]:
    """All checkpoints, from the newest to the oldest; the reason in place of a damaged one.

    Raises:
        Unusable: Another version of Gossamer wrote it.
    """
    for number in reversed(written_rounds(rounds) if rounds.is_dir() else []):
        if (round_folder(rounds, number) / META).exists():
            try:
                yield read(rounds, number)
            except Damaged as problem:
                yield problem


def read(rounds: Path, number: int) -> Checkpoint:
    """The checkpoint of a round.

    Raises:
        Damaged: One of its files is damaged or missing.
        Unusable: Another version of Gossamer wrote it.
    """
    folder = round_folder(rounds, number)
    meta = _meta(folder / META)
    try:
        kept = dict(meta["progress"])
        if "accuracy" in kept:  # its name before there were other metrics
            kept["scores"] = kept.pop("accuracy")
        saved = Checkpoint(
            Progress(**{**kept, "cost": Cost(**kept["cost"])}),
            b"",
            int(meta["events"]),
            str(meta["chain"]),
            {client: int(number) for number, ids in meta["states"].items() for client in ids},
            str(meta["run"]),
            dict(meta["files"]),
            dict(meta["environment"]),
            int(meta.get("rounds", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise Damaged(f"{folder / META} is damaged: it lacks {problem}") from None
    if saved.progress.round != number:
        raise Damaged(f"{folder / META} is not in its place: it is of round {saved.progress.round}")
    server = unseal(folder / SERVER, about_server(saved.run, number))
    past, start = {}, 0
    sizes: dict[str, int] = meta.get("past", {})
    together = unseal(folder / PAST, about_server(saved.run, number)) if sizes else b""
    for word, size in sizes.items():
        past[int(word)], start = together[start : start + size], start + size
    return replace(saved, server=server, past=past)


def about_server(run: str, number: int) -> dict[str, str | int]:
    """What the file of a server's state states."""
    return {"kind": "server", "run": run, "round": number}


def by_round(states: Mapping[int, int]) -> dict[int, list[int]]:
    """Clients by the round in which their states were written."""
    listed: dict[int, list[int]] = {}
    for client in sorted(states):
        listed.setdefault(states[client], []).append(client)
    return listed


def _meta(path: Path) -> dict[str, Any]:
    """The facts of a checkpoint; those of the first version have no checksum."""
    try:
        plain: Any = json.loads(content(path))
    except (ValueError, RecursionError):
        plain = None
    first = isinstance(plain, dict) and plain.get("version") == 1 and plain.keys() >= FIRST
    meta = plain if first else unseal_json(path)
    if (version := meta.get("version")) != VERSION:
        raise Unusable(
            f"{path.parent} was written by version {version} of the checkpoint format, "
            f"this is version {VERSION}; resume it with the Gossamer that wrote it"
        )
    return meta


def ready(out: Path, need: int) -> None:
    """Raises `OSError` if the folder cannot be written or the disk is full, before any work."""
    try:
        private_folder(out)
        probe = out / ".probe"
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
    except OSError as refusal:
        raise OSError(
            f"cannot write to {out} ({refusal.strerror or refusal}); "
            "choose another folder with `out=`"
        ) from refusal
    free = shutil.disk_usage(out).free
    if free < need:
        raise OSError(
            f"{out} has {free / 2**20:.0f} MiB free, but the run needs about "
            f"{need / 2**20:.0f} MiB for its checkpoints; free some space or choose another "
            "folder with `out=`"
        )


def drop_before(rounds: Path, number: int) -> None:
    """Removes all checkpoints before that of a round."""
    for old in written_rounds(rounds):
        if old < number:
            _drop(round_folder(rounds, old))


def _drop(folder: Path) -> None:
    """Removes a checkpoint but not the client states beside it, which may still be current."""
    for name in (META, SERVER, PAST):
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
