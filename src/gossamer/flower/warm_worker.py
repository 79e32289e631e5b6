"""A warm process at a node: PyTorch is imported and the data are open before a message comes.

Flower starts a process for every message, and most of what such a process does is to import and to
open. Here one process has done both, and forks for a message: a client that dies or outlives its
round takes nothing along.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

from gossamer.config import read
from gossamer.engine.participant import one_line
from gossamer.flower.apps import stand, watched
from gossamer.flower.light_client import get, put
from gossamer.flower.messages import Letter
from gossamer.flower.node import Setup
from gossamer.flower.server import at_node

PAUSE = 0.2
"""Seconds between two looks at the process that is waited for."""
PATIENCE = 60.0
"""Seconds in which whoever connects must have said what it wants."""


class Keeper:
    """Answers whoever connects to its socket."""

    def __init__(self, listening: socket.socket, path: Path) -> None:
        self.path = path
        self._listening = listening
        self._children: set[int] = set()
        self._built: dict[tuple[bytes, str], Setup] = {}
        """The run that was asked for last."""

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Answers until a process ends; returns its code."""
        while (code := process.poll()) is None:
            self._reap()
            ready, _, _ = select.select([self._listening], [], [], PAUSE)
            if ready:
                stream, _ = self._listening.accept()
                with stream:
                    stream.settimeout(PATIENCE)
                    self._begin(stream)
        return code

    def _begin(self, stream: socket.socket) -> None:
        """Forks for what comes next; nothing that is wrong with it ends this process."""
        try:
            about = json.loads(get(stream))
            config = Path(about["config"])
            node = dict(about["node"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        setup, problem = None, ""
        try:
            setup = self._setup(config, node)
        except Exception as cause:
            problem = one_line(cause)
        child = os.fork()
        if child:
            self._children.add(child)
            return
        _answer(stream, setup, node, problem)

    def _setup(self, config: Path, node: Mapping[str, Any]) -> Setup:
        what = (config.read_bytes(), json.dumps(node))
        if what not in self._built:
            torch.set_num_threads(1)  # threads do not survive a fork
            self._built = {what: at_node(read(config), node)}
        return self._built[what]

    def _reap(self) -> None:
        for child in list(self._children):
            if os.waitpid(child, os.WNOHANG)[0]:
                self._children.remove(child)

    def end(self) -> None:
        """Nobody is waited for any more."""
        self._reap()
        for child in self._children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@contextmanager
def keeping() -> Iterator[Keeper | None]:
    """A keeper with a socket that only this user can reach; none where processes cannot fork."""
    if not hasattr(os, "fork") or torch.cuda.is_available():  # CUDA does not survive a fork
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="gossamer-") as folder:
        path = Path(folder) / "keeper"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            keeper = Keeper(listening, path)
            try:
                yield keeper
            finally:
                keeper.end()


def _answer(
    stream: socket.socket, setup: Setup | None, node: dict[str, Any], problem: str
) -> NoReturn:
    """A whole life: it answers one letter."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        letter = Letter.opened(get(stream), get(stream))
        stream.settimeout(None)
        head, body = b"", b""
        if setup is not None:
            try:
                with watched(letter.head.get("seconds")):
                    head, body = stand(setup, node, None).answer(letter).packed()
            except Exception as cause:
                problem = one_line(cause)
        put(stream, problem.encode(), head, body)
        code = 0
    except OSError:  # whoever asked is gone
        pass
    finally:
        os._exit(code)
