"""How long a server on a network waits, and for how many clients."""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.fields import option


@dataclass(frozen=True)
class Patience:
    """How long a server waits, and for how many clients."""

    deadline: float = option(600.0, "deadline of a round in seconds", above=0)
    oversample: float = option(
        1.0, "ask for so many times more clients; the first that answer count", least=1
    )
    partial: bool = option(
        False, "nodes that would miss the deadline send what they have by four fifths of it"
    )
    min_replies: int = option(1, "fewest replies; a round with fewer is repeated", least=0)
    nodes: int = option(0, "number of nodes with own keys; 0: keys are not checked", least=0)
    attempts: int = option(10, "attempts at a round before the run is given up", least=1)
    gather: float = option(300.0, "seconds to wait for nodes before the first round", least=0)
    min_present: int = option(0, "clients that must be online before the first round; 0: all")
    poll: float = 0.02
    """Seconds between two polls, at first."""
