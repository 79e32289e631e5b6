"""What happens between a server and its nodes, in sentences that `serve` and `join` show.

`network.jsonl` lies beside a server's event log and beside the states of a node's clients. It holds
names, counts and reasons, never an example.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE = "network.jsonl"
EVENT = {"event": True}
"""Marks a line of a logger that the event log has too."""


def note(folder: Path, text: str, over: bool = False) -> None:
    """Appends a sentence.

    Args:
        folder: Of a run, or of a node.
        text: The sentence.
        over: Whether it says that a run has ended.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = json.dumps({"time": round(time.time(), 3), "text": text, "over": over}) + "\n"
    place = os.open(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(place, line.encode())
    finally:
        os.close(place)


class _Noted(logging.Handler):
    """Writes what a logger is told, but for that which the event log has too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.INFO)
        self._folder = folder
        self.addFilter(lambda record: not getattr(record, "event", False))

    def emit(self, record: logging.LogRecord) -> None:
        note(self._folder, record.getMessage())


@contextmanager
def noted(log: logging.Logger, folder: Path) -> Iterator[None]:
    """What the logger is told inside is in the journal of a folder too."""
    handler, level = _Noted(folder), log.level
    log.addHandler(handler)
    log.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
