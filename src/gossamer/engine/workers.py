"""Worker threads in one process, one torch thread each: nothing to pickle, nothing to start.

PyTorch releases the interpreter lock inside its kernels, so threads are as fast here as processes;
only pieces of a few milliseconds, most of them Python, are faster without. Results never depend on
the number of workers.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

from gossamer.task import Task

Item = TypeVar("Item")
Out = TypeVar("Out")

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 1 << 28


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Inside, torch computes with one thread and treats denormal numbers as zero."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Asks glibc not to return freed blocks to the system at every step; elsewhere nothing."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class Workers:
    """Runs independent pieces of work, each thread with its own copy of the task.

    One worker means no thread at all: tracebacks are plain and `breakpoint()` works.
    """

    def __init__(self, task: Task, count: int) -> None:
        self.count = count
        self._task = task
        self._mine = threading.local()
        self._pool = ThreadPoolExecutor(count, "gossamer", self._start) if count > 1 else None

    def map(
        self, work: Callable[[Task, Item], Out], items: Sequence[Item], *, alone: bool = False
    ) -> list[Out]:
        """`work` on every item, results in the order of the items; `alone`: in this thread.

        The first error is raised when nothing runs any more, so that its handler may clean up.
        """
        if self._pool is None or alone:
            return [work(self._task, item) for item in items]
        futures = [self._pool.submit(self._run, work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            wait(futures)
            raise

    def close(self) -> None:
        """Waits for running work and ends the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        self._mine.task = self._task.copy()

    def _run(self, work: Callable[[Task, Item], Out], item: Item) -> Out:
        return work(self._mine.task, item)
