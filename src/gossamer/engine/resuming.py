"""Where a run continues: every file that it needs is checked before anything is changed.

Rounds are repeated bit for bit, so an older checkpoint is as good as a newer one that is damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gossamer.engine import checkpoint
from gossamer.engine.checkpoint import Checkpoint, Unusable
from gossamer.engine.events import CONFIG, LogReader
from gossamer.engine.files import Damaged, content
from gossamer.engine.store import (
    META,
    PAST,
    SERVER,
    clients_in,
    read_state,
    round_folder,
    state_path,
    written_rounds,
)
from gossamer.wire import fingerprint

LOG, ROUNDS, SIZES = "events.jsonl", "rounds", "sizes.json"
BESIDE = (CONFIG, SIZES)
"""Files beside the log that a run depends on and that do not change."""
COMPUTES = ("gossamer", "torch", "numpy", "machine", "cpu", "kernels")
"""What the bits of a result may depend on."""
MOST = 3
"""Strays and clients that are named in a sentence."""

_FIRST = b'{"event":"started",'


@dataclass(frozen=True)
class Found:
    """A checkpoint to continue from."""

    saved: Checkpoint | None = None
    """None: the run begins."""
    lost: Mapping[int, str] = field(default_factory=dict)
    """Clients whose states are lost, with the reason."""
    notices: tuple[str, ...] = ()


def find(out: Path, run: str, replaceable: bool) -> Found:
    """Finds the newest checkpoint that is intact with its log and its clients' states.

    Args:
        out: The folder of the run.
        run: The run's identity.
        replaceable: Whether the method can continue with clients that lost their states.

    Raises:
        Damaged: The run has begun, but cannot be continued; the message names the files.
        Unusable: The folder is of another run, or of another version.
    """
    problems: list[str] = []
    second: Found | None = None
    for each in checkpoint.candidates(out / ROUNDS):
        if isinstance(each, Damaged):
            problems.append(str(each))
            continue
        _check_same(each, out, run)
        problem, cut = log_state(out / LOG, each)
        if problem:
            problems.append(problem)
            continue
        number = each.progress.round
        lost = lost_states(out / ROUNDS, each)
        if lost and second is None:
            second = Found(each, lost, (*problems, *cut))
        problems += lost.values()
        if not lost:
            notices = [*problems, *cut, *strays(out, each)]
            if problems:
                notices.append(f"the run continues from its checkpoint of round {number}")
            return Found(each, {}, tuple(notices))
    if second is not None and replaceable:
        return second
    if problems or (problem := _begun(out)):
        reasons = _few(dict.fromkeys(problems)) if problems else [problem]
        raise Damaged(
            f"{out} cannot be continued: {'; '.join(reasons)}; "
            "nothing was changed; put the files back from a copy, or begin again in another folder"
        )
    return Found()


def begun(out: Path) -> bool:
    """Whether a folder holds anything of a run's progress."""
    return any((out / name).exists() for name in (LOG, ROUNDS))


def beside(out: Path) -> dict[str, str]:
    """Fingerprints of the files beside the log."""
    return {name: fingerprint(content(out / name)) for name in BESIDE if (out / name).exists()}


def log_state(log: Path, saved: Checkpoint) -> tuple[str, list[str]]:
    """Compares a log with a checkpoint of its run.

    Returns:
        What is wrong with the events that belong to the checkpoint, empty if nothing is; and a
        sentence if there are others, which are of no use.
    """
    if not log.exists():
        return f"{log} is missing", []
    reader = LogReader(log, (saved.events,))
    later = 0
    for _, event in reader:
        later += reader.position > saved.events and event.get("event") != "finished"
    if problem := judged(reader, saved):
        return problem, []
    if reader.problem or reader.torn or later:
        cause = f"{reader.problem}; " if reader.problem else ""
        number = saved.progress.round
        return "", [f"{cause}{log} is cut back to the checkpoint of round {number}"]
    return "", []


def judged(reader: LogReader, saved: Checkpoint) -> str:
    """What is wrong with the events of a checkpoint, in a log that was read; empty: nothing."""
    if reader.seen.get(saved.events) == saved.chain:
        return ""
    if not reader.path.exists():
        return f"{reader.path} is missing"
    if reader.position >= saved.events:
        return f"{reader.path} is not the log of this run: its checksums differ"
    return reader.problem or (
        f"{reader.path} is cut: it has {reader.path.stat().st_size} bytes, but its run had written "
        f"{saved.events} by round {saved.progress.round}"
    )


def other_environment(saved: Checkpoint, now: Mapping[str, str]) -> list[str]:
    """A sentence if a checkpoint was computed by other software or hardware."""
    names = [name for name in COMPUTES if saved.environment.get(name) != now.get(name)]
    before = ", ".join(f"{name} {saved.environment.get(name)}" for name in names)
    after = ", ".join(f"{name} {now.get(name)}" for name in names)
    text = (
        f"the run began with {before} and continues with {after}: results may differ from those of "
        "an uninterrupted run"
    )
    return [text] if names else []


def lost_states(rounds: Path, saved: Checkpoint) -> dict[int, str]:
    """Clients whose states at a checkpoint are damaged or missing, with the reason."""
    lost = {}
    for client, number in sorted(saved.states.items()):
        try:
            read_state(rounds, saved.run, client, number)
        except Damaged as problem:
            lost[client] = str(problem)
    return lost


def strays(out: Path, saved: Checkpoint) -> list[str]:
    """A sentence about files among the rounds that are none of the run's."""
    rounds = out / ROUNDS
    known = {"failed", *(f"{number:06d}" for number in written_rounds(rounds))}
    odd = [path for path in sorted(rounds.iterdir()) if path.name not in known]
    for number in written_rounds(rounds):
        folder = round_folder(rounds, number)
        names = {SERVER, META, PAST, "local"}
        odd += [path for path in sorted(folder.iterdir()) if path.name not in names]
        states = {state_path(rounds, client, number) for client in clients_in(folder / "local")}
        if (folder / "local").is_dir():
            odd += [path for path in sorted((folder / "local").iterdir()) if path not in states]
        for client in sorted(clients_in(folder / "local")):
            if saved.states.get(client, -1) < number <= saved.progress.round:
                odd.append(state_path(rounds, client, number))
    odd = [path for path in odd if path.suffix != ".partial"]
    return [f"not files of the run, and ignored: {', '.join(_few(map(str, odd)))}"] if odd else []


def check_beside(saved: Checkpoint, out: Path) -> None:
    """Raises `Damaged` unless the configuration is the one that the run began with."""
    now = beside(out)
    for name, wanted in saved.files.items():
        if name not in now:
            raise Damaged(f"{out / name} is missing; put it back from a copy")
        if now[name] != wanted:
            raise Damaged(
                f"{out / name} is not the file that the run began with; put it back from a copy"
            )


def check_rounds(saved: Checkpoint, out: Path, rounds: int) -> None:
    """Raises `Unusable` if a run is to be continued with another number of rounds."""
    if saved.rounds not in (0, rounds):
        longer = f"`gossamer resume {out} --rounds {rounds}` makes it longer"
        hint = longer if rounds > saved.rounds else "resume it with its own"
        raise Unusable(f"{out} is a run of {saved.rounds} rounds, not of {rounds}; {hint}")


def _check_same(saved: Checkpoint, out: Path, run: str) -> None:
    """Raises unless a checkpoint is of this run and its configuration is unchanged."""
    check_beside(saved, out)
    if saved.run != run:
        raise Unusable(
            f"{out} is a run of another method, other devices, other settings, rounds, seed or "
            "first weights; resume it with its own, or choose another folder"
        )


def _begun(out: Path) -> str:
    """Why a folder without checkpoints cannot be used for a new run; empty if it can.

    A process may have ended before its first checkpoint; then nothing but the first events and
    parts of that checkpoint exist.
    """
    rounds, log = out / ROUNDS, out / LOG
    if rounds.is_dir():
        for number in written_rounds(rounds):
            if number or (round_folder(rounds, number) / "local").exists():
                return f"{rounds} has files, but no checkpoint in it can be read"
    if log.exists():
        reader = LogReader(log)
        events = [event for _, event in reader]
        if reader.problem:
            return f"{reader.problem}, and there is no checkpoint"
        if any(not isinstance(event, dict) or event.get("round", 0) for event in events):
            return f"{log} has events, but no checkpoint can be read"
        if reader.torn and not events and not _FIRST.startswith(content(log)[: len(_FIRST)]):
            return f"{log} cannot be read, and there is no checkpoint"
    return ""


def _few(texts: Iterable[str]) -> list[str]:
    listed = list(texts)
    return listed[:MOST] + [f"{len(listed) - MOST} more"] * (len(listed) > MOST)
