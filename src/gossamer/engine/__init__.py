"""Runs methods: the loop, its workers, its checkpoints and its events."""

from gossamer.engine.checks import check, check_run
from gossamer.engine.client import ClientError, Stop
from gossamer.engine.loop import start
from gossamer.engine.one_call import run
from gossamer.engine.options import Options
from gossamer.engine.run_record import Run
from gossamer.engine.summary import Summary

__all__ = [
    "ClientError",
    "Options",
    "Run",
    "Stop",
    "Summary",
    "check",
    "check_run",
    "run",
    "start",
]
