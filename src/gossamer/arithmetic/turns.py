"""Threads that take turns: one of them at a time runs Python, the others wait or are in a kernel.

Torch gives up the interpreter's lock in each of its operations, however small. Threads that wait
for the lock are then woken and put to sleep again all the time, which takes longer than the work
of a small client. A turn is given up only while a kernel computes.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import AbstractContextManager

from gossamer.arithmetic.library import Library, library

_mine = threading.local()


class Turns:
    """Turns of any number of threads; used as a context by the one that takes its turn."""

    def __init__(self, kernels: Library) -> None:
        self._kernels = kernels
        self._handle: int = kernels.turns()
        weakref.finalize(self, kernels.free_turns, self._handle)

    def __enter__(self) -> None:
        self._kernels.take_turn(self._handle)  # ctypes gives up the interpreter's lock meanwhile
        _mine.handle = self._handle

    def __exit__(self, *failure: object) -> None:
        _mine.handle = None
        self._kernels.end_turn(self._handle)


def turns() -> AbstractContextManager[object]:
    """New turns; without kernels, work that is done in turns is done one after another."""
    kernels = library()
    return Turns(kernels) if kernels else threading.Lock()


def mine() -> int | None:
    """The turns that this thread takes part in, if it has its turn: what a kernel gives up."""
    handle: int | None = getattr(_mine, "handle", None)
    return handle
