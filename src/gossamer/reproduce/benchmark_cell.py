"""Runs one cell of the benchmark in a folder that does not last, and keeps its figures as a file.

Seconds are processor seconds of the whole process, by round and without evaluation. Unlike those
of a clock on the wall they hardly depend on what else the machine does.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from gossamer import engine, fields
from gossamer.engine.events import CONFIG, ClientFailed, ClientFinished, Clock, Event, RoundFinished
from gossamer.engine.files import seal_text, write_atomically
from gossamer.report import Run, read_run
from gossamer.report.kept import keep
from gossamer.report.runs import Curve
from gossamer.reproduce.benchmark import Cell


class TrainingTime:
    """Adds up the processor time of rounds: training and merging, not evaluation."""

    def __init__(self) -> None:
        self.curve: Curve = {0: 0.0}
        self._total = 0.0
        self._mark = time.process_time()

    def emit(self, event: Event, clock: Clock) -> None:
        if isinstance(event, ClientFinished | ClientFailed):
            return  # within a round
        now = time.process_time()
        if isinstance(event, RoundFinished):
            self._total += now - self._mark
            self.curve[event.round] = self._total
        self._mark = now

    def close(self) -> None:
        """Has nothing to close."""


def run_cell(cell: Cell, command: str, workers: int = 1) -> Run:
    """Trains a cell from its beginning, and writes its file.

    Args:
        cell: What is run.
        command: That started the benchmark; it is kept with the figures.
        workers: Threads that train clients.

    Raises:
        ValueError: a setting or the data are unusable.
        ClientError: a client failed.
    """
    options = fields.replace(cell.config.options, {"workers": workers})
    config = replace(cell.config, options=options)
    with tempfile.TemporaryDirectory(prefix="gossamer-bench-") as place:
        folder = Path(place)
        write_atomically(folder / CONFIG, seal_text(config.toml(command)).encode(), private=True)
        timed = TrainingTime()
        named = replace(config.build_run(folder), name=config.method)
        engine.start(named, sinks=[timed])
        run = read_run(folder)
        run = replace(run, curves={**run.curves, "training_seconds": timed.curve})
        keep(run, cell.path)
    return run
