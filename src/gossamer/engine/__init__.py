"""Runs methods: the loop, its workers, its checkpoints and its events."""

from gossamer.engine.client import ClientError
from gossamer.engine.loop import check, run
from gossamer.engine.options import Options, Stop
from gossamer.engine.summary import Summary

__all__ = ["ClientError", "Options", "Stop", "Summary", "check", "run"]
