"""A real small job in a process of its own, to be killed and resumed by tests."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gossamer import Options
from gossamer.core import Key
from gossamer.engine import Run, start
from helpers import Toy, fedavg, normed

ROUNDS = 24

# Made once, before processes are forked: torch imports a lot when a layout is traced first.
torch.set_num_threads(1)
TASK = normed()


ASYNCHRONOUS = {
    "devices": "phone-2024:50%,raspberry-pi-4:30%,mcu:20%",
    "spread": 0.5,
    "failures": 0.1,
    "availability": "duty:0.5s:0.7",
    "asynchronous": "buffer=3,concurrency=6",
}


def job(
    folder: Path, every: int, resume: bool, asynchronous: bool = False, workers: int = 2
) -> None:
    """Stateful clients, two workers, checkpoints every so many rounds (0: by the clock)."""
    warnings.simplefilter("error")
    devices: dict[str, Any] = ASYNCHRONOUS if asynchronous else {}
    start(
        Run(
            replace(fedavg(clients=4, momentum=0.9), buffers="local"),
            TASK,
            Toy(pool=24 if asynchronous else 9),
            rounds=ROUNDS,
            key=Key(11),
            out=folder,
            options=Options(workers=workers, eval_every=5, checkpoint_every=every, **devices),
        ),
        resume=resume,
    )


CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
"""Operations of the file system that the interpreter announces, besides opening for writing."""


def job_killed_at(
    folder: Path,
    every: int,
    resume: bool,
    operation: int,
    asynchronous: bool = False,
    workers: int = 2,
) -> None:
    """The same job; it is killed just before an operation on the files of its folder."""
    count = itertools.count(1)

    def before_operation() -> None:
        if next(count) == operation:
            os.kill(os.getpid(), signal.SIGKILL)

    def announced(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if writes and str(path).startswith(str(folder)):
                before_operation()
        elif event in CHANGES and str(arguments[0]).startswith(str(folder)):
            before_operation()

    sys.addaudithook(announced)
    os.fsync = _counted(os.fsync, before_operation)
    job(folder, every, resume, asynchronous, workers)


def _counted(real: Callable[[Any], None], before: Callable[[], None]) -> Callable[[Any], None]:
    def fsync(descriptor: Any) -> None:
        before()
        real(descriptor)

    return fsync
