"""How fine the ledger of a run is: by field, unless somebody asks for tensors.

The event log has a row for each field of a message. Rows for each tensor would multiply its length,
so they are made only where they are added up at once, as by `gossamer cost --by tensor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gossamer.wire import Detail

_asked: ContextVar[Detail] = ContextVar("detail of the ledger", default="field")


def detail() -> Detail:
    """What is asked for here."""
    return _asked.get()


@contextmanager
def by(wanted: Detail) -> Iterator[None]:
    """Inside, runs that begin keep their ledger in this detail."""
    before = _asked.set(wanted)
    try:
        yield
    finally:
        _asked.reset(before)
