"""Replays one client's part of a round from the capsule that was kept when it failed."""

from __future__ import annotations

from pathlib import Path

from gossamer.core import AnyMethod, Key
from gossamer.data.federation import Federation
from gossamer.engine.client import Capsule, Trained, client_ctx, train
from gossamer.engine.files import private_folder, seal, unseal, write_atomically
from gossamer.engine.processor import one_torch_thread
from gossamer.task import Task
from gossamer.wire import dump, load, record_types
from gossamer.wire.schema import type_name


def path(rounds: Path, round: int, client: int) -> Path:
    """The file of a failed client's capsule."""
    return rounds / "failed" / f"round-{round}-client-{client}.bin"


def about(run: str, round: int, client: int) -> dict[str, str | int]:
    """What the file of a capsule states; without `run`, of any run."""
    place: dict[str, str | int] = {"kind": "capsule", "client": client, "round": round}
    return {**place, "run": run} if run else place


def write(rounds: Path, capsule: Capsule, run: str) -> None:
    """Keeps a capsule beside the checkpoints of a run."""
    target = path(rounds, capsule.round, capsule.client)
    private_folder(target.parent)
    sealed = seal(dump(capsule), about(run, capsule.round, capsule.client))
    write_atomically(target, sealed, private=True)


def read(rounds: Path, round: int, client: int, method: AnyMethod, run: str = "") -> Capsule:
    """The capsule of a failed client, in the run with this identity if one is given.

    Raises:
        FileNotFoundError: The client did not fail in this round; the message lists who did.
        Damaged: The file is damaged, or of another run, round or client.
    """
    target = path(rounds, round, client)
    if not target.exists():
        kept = sorted(file.stem for file in (rounds / "failed").glob("*.bin"))
        raise FileNotFoundError(
            f"client {client} did not fail in round {round}, or {target} was removed; "
            f"failures kept: {', '.join(kept) or 'none'}"
        )
    return unpack(unseal(target, about(run, round, client)), method)


def unpack(data: bytes, method: AnyMethod) -> Capsule:
    """The capsule that was dumped."""
    capsule = load(data, {**record_types(method), type_name(Capsule): Capsule})
    assert isinstance(capsule, Capsule)
    return capsule


def again(method: AnyMethod, task: Task, federation: Federation, capsule: Capsule) -> Trained:
    """Repeats what the client did, with a plain traceback and working breakpoints."""
    with one_torch_thread():
        ctx = client_ctx(
            Key(capsule.seed), task, federation, capsule.client, capsule.round, capsule.rounds
        )
        return train(method, ctx, capsule.down, capsule.local, augment=federation.augment)
