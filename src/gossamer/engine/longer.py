"""A run that goes on beyond its end, as if it had been that long from the start."""

from __future__ import annotations

import json
from dataclasses import replace

from gossamer import fields
from gossamer.engine import checkpoint
from gossamer.engine.checkpoint import Unusable, write_atomically
from gossamer.engine.events import plain_line
from gossamer.engine.run_record import Run

LONGER = "events.jsonl.longer"
"""The new log, until the checkpoint fits it."""


def extend(run: Run, rounds: int) -> Run:
    """Turns the folder of a run into that of a longer one, which can then be resumed.

    The log and the newest checkpoint become those of a run that had `rounds` from the start. If
    the process is killed on the way, the same call completes it.

    Args:
        run: As it was started.
        rounds: How many rounds it is to have.

    Returns:
        The longer run.

    Raises:
        Unusable: Settings are spread over all rounds, so that a longer run would have begun
            differently; or the folder cannot be continued.
    """
    folder, longer = run.folder, replace(run, rounds=rounds)
    if rounds <= run.rounds:
        raise Unusable(f"{folder} has {run.rounds} rounds; --rounds {rounds} does not go beyond")
    if reason := fields.spans_rounds(run.method):
        raise Unusable(
            f"{run.name} cannot go beyond its {run.rounds} rounds: {reason} is spread over all "
            f"rounds, so {rounds} of them begin differently; start a new run with --rounds {rounds}"
        )
    with checkpoint.held(folder):
        saved = checkpoint.newest(folder / "rounds")
        if saved is None:
            raise Unusable(f"{folder} has no whole checkpoint to continue from; start it again")
        log, side = folder / "events.jsonl", folder / LONGER
        if saved.run != longer.identity:
            checkpoint.check_continues(saved, folder, run.identity)
            first, _, rest = log.read_bytes()[: saved.events].partition(b"\n")
            started = {**json.loads(first), "rounds": rounds}
            text = plain_line(started).encode() + rest
            write_atomically(side, text)
            saved = replace(saved, events=len(text), run=longer.identity)
            checkpoint.save(folder / "rounds", saved)
        if side.exists():
            side.replace(log)
    return longer
