"""What is known about the costs of a method before it is run; `gossamer cost` asks for it.

A method may have three functions for this, all optional. Those of the methods in the package are
in `gossamer.accounting.forecasts`.

`alike(ctx, last)` returns a label for the message to a client and one for its reply, where `last`
is the round in which the client took part before, or 0. While nothing is trained, messages with
equal labels cost the same, so that one of each is enough. A round that changes what later rounds
cost has a label of its own. A method without this function is priced round by round, and so is one
whose attribute `priced_by_round` is true.

`forwarded(ctx, state)` is the server's state at the beginning of a round, where rounds before it
were left out. It is for a method whose state counts rounds.

`learned(ctx)` says which parts of messages depend on training, and within which bounds; None if
none do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from gossamer.core import AnyMethod, Ctx

Labels = tuple[Hashable, Hashable]
"""Of the message to a client, and of its reply."""


@dataclass(frozen=True)
class Repeated:
    """A label of messages whose costs grow by the same amount with every repetition."""

    label: Hashable
    times: int


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
    levels: tuple[str, ...] = ()
    """Numbers of few levels, or fields that contain some, in the messages that have them."""
    least: float = 0.0
    """The lowest density that training may lead to."""
    most: float = 1.0
    """The highest one."""
    flops: bool = False
    """Whether operations depend on it too."""


def same(method: Any, ctx: Ctx, last: int) -> Labels:
    """Labels of a method whose rounds all cost the same."""
    return "", ""


def nothing(method: Any, ctx: Ctx) -> Learned | None:
    """Of a method whose messages do not depend on training."""
    return None


def unchanged(method: Any, ctx: Ctx, state: Any) -> Any:
    """The state of a method that counts no rounds."""
    return state


@dataclass(frozen=True)
class Forecast:
    """The three functions for a class of methods; each is called with the method first."""

    alike: Callable[[Any, Ctx, int], Labels] | None = same
    """None: it is not known which messages are alike."""
    learned: Callable[[Any, Ctx], Learned | None] = nothing
    forwarded: Callable[[Any, Ctx, Any], Any] = unchanged


def own(method: AnyMethod) -> Forecast | None:
    """The forecast of a method that has such functions itself."""
    kind: Any = type(method)
    alike, learned = getattr(kind, "alike", None), getattr(kind, "learned", nothing)
    if alike is None and learned is nothing:
        return None
    if getattr(method, "priced_by_round", False):
        alike = None
    return Forecast(alike, learned, getattr(kind, "forwarded", unchanged))
