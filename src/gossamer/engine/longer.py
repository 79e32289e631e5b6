"""A run that goes on beyond its end, as if it had been that long from the start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from gossamer.engine import checkpoint, resuming
from gossamer.engine.checkpoint import Checkpoint, Unusable
from gossamer.engine.events import CONFIG, LogReader, plain_line
from gossamer.engine.files import chained, unchained, write_atomically
from gossamer.engine.run_record import Run
from gossamer.wire import fingerprint

LONGER = "events.jsonl.longer"
"""The new log, until the checkpoint describes it."""


def extend(run: Run, rounds: int, config: bytes = b"") -> Run:
    """Turns the folder of a run into that of a longer one, which can then be resumed.

    The log and the newest checkpoint become those of a run that had `rounds` from the start. If
    the process is killed on the way, the same call completes it.

    Args:
        run: As it was started.
        rounds: How many rounds it is to have.
        config: The configuration of the longer run, if the folder has one.

    Returns:
        The longer run.

    Raises:
        Unusable: Settings are spread over all rounds, so that a longer run would have begun
            differently; or the folder is of another run.
        Damaged: Files of the run are damaged or missing.
    """
    folder = run.folder
    if rounds <= run.rounds:
        raise Unusable(f"{folder} has {run.rounds} rounds; `rounds={rounds}` does not go beyond")
    if run.spans_rounds:
        raise Unusable(
            f"{run.name} cannot go beyond its {run.rounds} rounds: {run.spans_rounds} is spread "
            f"over all rounds, so {rounds} of them begin differently; start a new run with "
            f"`rounds={rounds}`"
        )
    with checkpoint.held(folder):
        saved = checkpoint.newest(folder / resuming.ROUNDS)
        log, side = folder / resuming.LOG, folder / LONGER
        if saved is not None and saved.rounds == rounds:  # killed before the last steps
            if side.exists() and _describes(saved, side):
                side.replace(log)
        else:
            _rewrite(run, rounds, config)
        if config:
            write_atomically(folder / CONFIG, config, private=True)
    return replace(run, rounds=rounds)


def _rewrite(run: Run, rounds: int, config: bytes) -> None:
    """Writes the log and the newest checkpoint of the longer run."""
    folder = run.folder
    saved = resuming.find(folder, run.identity, replaceable=False).saved
    if saved is None:
        raise Unusable(f"{folder} has no checkpoint to continue from; start it again")
    log, side = folder / resuming.LOG, folder / LONGER
    parts, chain = [], ""
    for number, line in enumerate(log.read_bytes()[: saved.events].splitlines(keepends=True)):
        plain = unchained(line)
        if not number:
            plain = plain_line({**json.loads(plain), "rounds": rounds}).encode()
        linked, chain = chained(chain, plain)
        parts.append(linked)
    text = b"".join(parts)
    write_atomically(side, text, private=True)
    files = {**saved.files, **({CONFIG: fingerprint(config)} if CONFIG in saved.files else {})}
    place = folder / resuming.ROUNDS
    longer = replace(saved, events=len(text), chain=chain, files=files, rounds=rounds)
    checkpoint.save(place, longer)
    checkpoint.drop_before(place, saved.progress.round)
    side.replace(log)


def _describes(saved: Checkpoint, log: Path) -> bool:
    reader = LogReader(log, (saved.events,))
    for _ in reader:
        pass
    return reader.position == saved.events and reader.seen.get(saved.events) == saved.chain
