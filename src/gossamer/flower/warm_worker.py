"""A warm worker at a node: PyTorch is imported and the data are open before a message arrives.

Flower starts a process for every message, which spends most of its time importing and opening data.
The warm worker has done both and forks for every message, so a client that dies or outlives its
round takes nothing with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

from gossamer.config import read
from gossamer.engine.client import one_line
from gossamer.engine.run_record import Run
from gossamer.flower.apps import node_for, watched
from gossamer.flower.light_client import get, put
from gossamer.flower.messages import Message
from gossamer.flower.server import at_node

PAUSE = 0.2
"""Seconds between two checks of the process that is waited for."""
PATIENCE = 60.0
"""Seconds in which a connection must have sent its request."""


class WarmWorker:
    """Answers the light clients that connect to its socket."""

    def __init__(self, listening: socket.socket, path: Path) -> None:
        self.path = path
        self._listening = listening
        self._children: set[int] = set()
        self._built: dict[tuple[bytes, str], Run] = {}
        """The run that was requested last."""

    def wait(
        self, process: subprocess.Popen[bytes], enough: Callable[[], bool] = lambda: False
    ) -> int:
        """Answers until a process ends, or there is nothing left to wait for.

        Returns:
            The exit code of the process, 0 if it has not ended.
        """
        while (code := process.poll()) is None and not enough():
            self._reap()
            ready, _, _ = select.select([self._listening], [], [], PAUSE)
            if ready:
                stream, _ = self._listening.accept()
                with stream:
                    stream.settimeout(PATIENCE)
                    self._begin(stream)
        return code or 0

    def _begin(self, stream: socket.socket) -> None:
        """Forks for one message; errors in it do not end this process."""
        try:
            about = json.loads(get(stream))
            config = Path(about["config"])
            node = dict(about["node"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        run, problem = None, ""
        try:
            run = self._run(config, node)
        except Exception as cause:
            problem = one_line(cause)
        child = os.fork()
        if child:
            self._children.add(child)
            return
        _answer(stream, run, node, problem)

    def _run(self, config: Path, node: Mapping[str, Any]) -> Run:
        key = (config.read_bytes(), json.dumps(node))
        if key not in self._built:
            torch.set_num_threads(1)  # threads do not survive a fork
            self._built = {key: at_node(read(config, shipped=True), node)}
        return self._built[key]

    def _reap(self) -> None:
        for child in list(self._children):
            if os.waitpid(child, os.WNOHANG)[0]:
                self._children.remove(child)

    def end(self) -> None:
        """Ends all children."""
        self._reap()
        for child in self._children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@contextmanager
def warm_worker() -> Iterator[WarmWorker | None]:
    """A warm worker whose socket only this user can reach; None where processes cannot fork."""
    if not hasattr(os, "fork") or torch.cuda.is_available():  # CUDA does not survive a fork
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="gossamer-") as folder:
        path = Path(folder) / "worker"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            worker = WarmWorker(listening, path)
            try:
                yield worker
            finally:
                worker.end()


def _answer(stream: socket.socket, run: Run | None, node: dict[str, Any], problem: str) -> NoReturn:
    """The life of a child: it answers one message."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        message = Message.parsed(get(stream), get(stream))
        stream.settimeout(None)
        head, body = b"", b""
        if run is not None:
            try:
                with watched(message.head.get("seconds")):
                    head, body = node_for(run, node, None).answer(message).packed()
            except Exception as cause:
                problem = one_line(cause)
        put(stream, problem.encode(), head, body)
        code = 0
    except OSError:  # the light client is gone
        pass
    finally:
        os._exit(code)
