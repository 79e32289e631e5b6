"""Checks every file of a run's folder against its checksum; changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gossamer.engine import checkpoint
from gossamer.engine.checkpoint import Checkpoint, about_server
from gossamer.engine.events import CONFIG, PROJECT, LogReader
from gossamer.engine.files import Damaged, check_text, follows, opened, unseal, unseal_json
from gossamer.engine.resuming import LOG, ROUNDS, SIZES, check_beside, judged
from gossamer.engine.store import (
    META,
    PAST,
    SERVER,
    about_state,
    clients_in,
    round_folder,
    state_path,
    written_rounds,
)

MESSAGES, NETWORK, FAILED = "messages.jsonl", "network.jsonl", "failed"


@dataclass(frozen=True)
class Finding:
    """A file, what it is, and what is wrong with it."""

    path: Path
    what: str
    problem: str = ""
    """Empty: nothing is wrong."""
    ignored: bool = False
    """Whether the file is none of the run's."""


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return any((folder / name).exists() for name in (CONFIG, PROJECT, LOG, ROUNDS))


def run_files(folder: Path) -> list[Finding]:
    """All files of a run's folder, those that are missing included."""
    rounds = folder / ROUNDS
    numbers = written_rounds(rounds) if rounds.is_dir() else []
    whole = [number for number in numbers if (round_folder(rounds, number) / META).exists()]
    found: list[Finding] = []
    saved: dict[int, Checkpoint] = {}
    for number in whole:
        found += _checkpoint(rounds, number, saved)
    newest = saved[max(saved)] if saved else None
    for number, each in saved.items():
        if newest and (each.run, each.rounds) != (newest.run, newest.rounds):
            path = round_folder(rounds, number) / META
            reason = f"{path} is of a run of {each.rounds} rounds, not of {newest.rounds}"
            found = [finding for finding in found if finding.path != path]
            found.append(Finding(path, f"checkpoint of round {number}", reason))
    states = [finding for number in numbers for finding in _states(rounds, number, newest)]
    missing = [finding for each in saved.values() for finding in _missing(rounds, each)]
    everything = [
        *_settings(folder, newest),
        *_logs(folder, newest),
        *found,
        *states,
        *{finding.path: finding for finding in missing}.values(),
        *capsules(rounds, newest.run if newest else ""),
    ]
    if (problem := _older(folder)) and not any(each.problem for each in found):
        everything.append(Finding(rounds, "checkpoints", problem))
    return [*everything, *others(rounds, (each.path for each in everything))]


def checked(path: Path, what: str, check: Callable[[], object]) -> Finding:
    """The finding about one file."""
    try:
        check()
    except Damaged as problem:
        return Finding(path, what, str(problem))
    return Finding(path, what)


def capsules(folder: Path, run: str) -> Iterator[Finding]:
    """What is needed to replay failed clients."""
    for path in sorted((folder / FAILED).glob("*.bin")):

        def check(path: Path = path) -> None:
            about = opened(path)[1]
            name = f"round-{about.get('round')}-client-{about.get('client')}"
            if name != path.stem or (run and about.get("run") != run):
                raise Damaged(f"{path} is not in its place: it is of {name}")

        yield checked(path, "a failed client", check)


def network_journal(folder: Path) -> Iterator[Finding]:
    """Sentences about the network, each line with a checksum of its own."""
    path = folder / NETWORK
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    bad = [number for number, line in enumerate(whole, 1) if follows("", line) is None]
    problem = f"line {bad[0]} of {path} is damaged" if bad else ""
    if not problem and len(lines) > len(whole) and b"\0" in lines[-1]:
        problem = f"{path} is damaged: it has zeros in place of text"
    yield Finding(path, f"journal of the network, {len(whole)} lines", problem)


def others(folder: Path, known: Iterable[Path]) -> Iterator[Finding]:
    """Files that nobody reads."""
    listed = set(known)
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file() and path not in listed:
            what = "not a file of Gossamer's"
            if path.suffix == ".partial" or path.name == SERVER:
                what = "of an unfinished write"
            yield Finding(path, what, ignored=True)


def _settings(folder: Path, newest: Checkpoint | None) -> Iterator[Finding]:
    name = PROJECT if (folder / PROJECT).exists() else CONFIG
    finding = checked(folder / name, "configuration", lambda: check_text(folder / name))
    if newest and not finding.problem and name in newest.files:
        finding = checked(finding.path, finding.what, lambda: check_beside(newest, folder))
    yield finding
    if (folder / SIZES).exists() or (newest and SIZES in newest.files):
        path = folder / SIZES
        yield checked(path, "sizes of clients", lambda: unseal_json(path))


def _logs(folder: Path, newest: Checkpoint | None) -> Iterator[Finding]:
    path = folder / LOG
    if path.exists() or newest:
        reader = LogReader(path, (newest.events,) if newest else ())
        count = sum(1 for _ in reader) if path.exists() else 0
        problem = (judged(reader, newest) if newest and path.exists() else "") or reader.problem
        if not path.exists():
            problem = f"{path} is missing"
        elif count and not reader.chained:
            problem = problem or f"{path} has no checksums: an older version wrote it"
        yield Finding(path, f"log, {count} events" + ", cut in the last" * reader.torn, problem)
    path = folder / MESSAGES
    if path.exists():
        reader = LogReader(path)
        count = sum(1 for _ in reader)
        yield Finding(path, f"journal of messages, {count} lines", reader.problem)
    yield from network_journal(folder)


def _checkpoint(rounds: Path, number: int, saved: dict[int, Checkpoint]) -> Iterator[Finding]:
    """The files of a checkpoint, which is added to `saved` if they are whole."""
    folder, what = round_folder(rounds, number), f"checkpoint of round {number}"
    try:
        saved[number] = checkpoint.read(rounds, number)
        problem = ""
    except (Damaged, checkpoint.Unusable) as refusal:
        problem = str(refusal)
    paths = [folder / SERVER, *([folder / PAST] if (folder / PAST).exists() else [])]
    if str(folder / PAST) in problem and folder / PAST not in paths:
        paths.append(folder / PAST)
    named = [path for path in paths if str(path) in problem]
    yield Finding(folder / META, what, "" if named else problem)
    about = {**about_server("", number)}
    del about["run"]
    for path in paths:
        if path in named:
            yield Finding(path, what, problem)
        else:
            yield checked(path, what, lambda path=path: unseal(path, about))  # type: ignore[misc]


def _states(rounds: Path, number: int, newest: Checkpoint | None) -> Iterator[Finding]:
    folder = round_folder(rounds, number) / "local"
    for client in sorted(clients_in(folder)):
        path = state_path(rounds, client, number)
        about = about_state(newest.run if newest else "", client, number)
        what = f"state of client {client} in round {number}"
        yield checked(path, what, lambda path=path, about=about: unseal(path, about))  # type: ignore[misc]


def _missing(rounds: Path, saved: Checkpoint) -> Iterator[Finding]:
    for client, number in saved.states.items():
        path = state_path(rounds, client, number)
        if not path.exists():
            yield Finding(path, f"state of client {client} in round {number}", f"{path} is missing")


def _older(folder: Path) -> str:
    """Whether the log goes further than any checkpoint that exists."""
    log, rounds = folder / LOG, folder / ROUNDS
    try:
        if checkpoint.newest(rounds) is not None or not log.exists():
            return ""
    except checkpoint.Unusable:
        return ""
    for line in log.read_bytes().splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return ""
        if isinstance(event, dict) and event.get("round"):
            return f"{rounds} has no checkpoint, but the log has later rounds"
    return ""
