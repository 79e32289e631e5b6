"""Replays one client's part in a round from what was kept when it failed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.core import Key
from gossamer.data.federation import Federation
from gossamer.engine.checkpoint import write_atomically
from gossamer.engine.client import AnyMethod, Trained, client_ctx, train
from gossamer.engine.workers import one_torch_thread
from gossamer.task import Task
from gossamer.wire import dump, load, record_types
from gossamer.wire.schema import type_name


@dataclass(frozen=True)
class Capsule:
    """All that a client's computation depends on, besides its data."""

    round: int
    rounds: int
    seed: int
    client: int
    down: Any
    local: Any


def path(rounds: Path, round: int, client: int) -> Path:
    """Where the capsule of a client that failed lies."""
    return rounds / "failed" / f"round-{round}-client-{client}.bin"


def write(rounds: Path, capsule: Capsule) -> None:
    """Keeps a capsule beside the checkpoints."""
    target = path(rounds, capsule.round, capsule.client)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, dump(capsule))


def read(rounds: Path, round: int, client: int, method: AnyMethod) -> Capsule:
    """The capsule of a client that failed; an error that lists those there are."""
    target = path(rounds, round, client)
    if not target.exists():
        kept = sorted(found.stem for found in (rounds / "failed").glob("*.bin"))
        raise FileNotFoundError(
            f"client {client} did not fail in round {round}; "
            f"failures kept: {', '.join(kept) or 'none'}"
        )
    return unpack(target.read_bytes(), method)


def unpack(data: bytes, method: AnyMethod) -> Capsule:
    """The capsule that was dumped."""
    found = load(data, {**record_types(method), type_name(Capsule): Capsule})
    assert isinstance(found, Capsule)
    return found


def again(method: AnyMethod, task: Task, federation: Federation, capsule: Capsule) -> Trained:
    """Does what the client did, with a plain traceback and working breakpoints."""
    with one_torch_thread():
        ctx = client_ctx(
            Key(capsule.seed), task, federation, capsule.client, capsule.round, capsule.rounds
        )
        return train(method, ctx, capsule.down, capsule.local, augment=federation.augment)
