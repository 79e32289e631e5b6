"""What a method knows about its costs before it is run; `gossamer cost` asks for it.

Three functions of a method are for this alone, and optional.

`alike(ctx, last)` returns a label for the message to a client and one for its reply, where `last`
is the round in which the client took part before, or 0. While nothing is trained, messages with
equal labels cost the same, so that one of each is enough. A round that changes what later rounds
cost has a label of its own. A method without this function is priced round by round.

`forwarded(ctx, state)` is the server's state at the beginning of a round, where rounds before it
were left out. It is for a method whose state counts rounds.

`learned(ctx)` says which parts of messages depend on training, and within which bounds;
None if none do.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from gossamer.core import Ctx

Labels = tuple[Hashable, Hashable]
"""Of the message to a client, and of its reply."""


@dataclass(frozen=True)
class Repeated:
    """A label of messages whose costs grow by the same amount with every repetition."""

    label: Hashable
    times: int


def same_costs(self: object, ctx: Ctx, last: int) -> Labels:
    """The `alike` of a method whose rounds all cost the same."""
    return "", ""


@dataclass(frozen=True)
class Learned:
    """The parts of messages whose size depends on training."""

    what: str
    """One line for the reader of a price."""
    values: tuple[str, ...] = ()
    """Weights without zeros, as many as are active: fields such as `Up.model.values`."""
    masks: tuple[str, ...] = ()
    """Masks that any message of the type may contain, such as `Down.mask`."""
    moves: tuple[str, ...] = ()
    """Masks of unknown size, in the messages that contain them anyway."""
    least: float = 0.0
    """The lowest density that training may lead to."""
    most: float = 1.0
    """The highest one."""
    flops: bool = False
    """Whether operations depend on it too."""
