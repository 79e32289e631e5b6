"""Runs methods: the loop, its workers, its checkpoints and its events."""

from gossamer.engine.client import ClientError
from gossamer.engine.loop import Options, Stop, Summary, run

__all__ = ["ClientError", "Options", "Stop", "Summary", "run"]
