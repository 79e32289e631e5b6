"""What a method declares about time: whether its replies may be stale, or cut short.

A method says so by an attribute `timing`. A reply is stale if the server has merged others since it
sent the request. The engine then hands the method's `merge` the reply as if the client had made the
same change to what it would be sent now; that has a meaning if replies are numbers, each a change
of a number that was sent, at places that do not depend on the round.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Which replies a method can merge."""

    refused: str = ""
    """Why no stale ones, as the end of a sentence with the method's name; empty: they may be."""
    partial: bool = True
    """Whether a client that runs out of time may send what it has."""
    first: int = 0
    """Rounds at the start that are synchronous in an asynchronous run, too."""


ANY_TIME = Timing()
WHOLE_JOBS = Timing(partial=False)
MOVING_MASKS = Timing(
    "moves its masks, so a stale reply has weights that the server no longer has; use a method "
    "with fixed masks, such as random_mask or pdst",
    partial=False,
)
UNDECLARED = Timing(
    "does not declare that stale replies can be merged; use a method that does, such as fedavg, "
    "pdst or spafl, or give one of your own an attribute `timing` (docs/devices.md)",
    partial=False,
)


def of_masks(moving: bool, probed: bool) -> Timing:
    """For methods with masks: fixed ones can be stale, once a first round has found them."""
    return MOVING_MASKS if moving else Timing(first=int(probed))


def timing(method: object) -> Timing:
    """What a method declares; nothing is taken for granted."""
    known = getattr(method, "timing", None)
    return known if isinstance(known, Timing) else UNDECLARED
