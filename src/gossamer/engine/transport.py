"""How a round's requests reach its clients: the one part of the engine that a network replaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gossamer.core import Ctx
from gossamer.engine.conversation import Conversations, Visit
from gossamer.engine.evaluate import Figures
from gossamer.engine.expected import Reply


class Transport(Protocol):
    """Carries messages; the order and the time at which replies arrive do not affect results."""

    def hold(
        self, conversations: Conversations, ctx: Ctx, state: Any, visits: Sequence[Visit]
    ) -> list[Reply]:
        """One reply for each visit, in any order."""
        ...

    def receipt(self, kept: bytes) -> bytes:
        """The fingerprint of a client's state, given what the server's store holds of it."""
        ...

    def figures(
        self, conversations: Conversations, ctx: Ctx, state: Any, clients: Sequence[int]
    ) -> Mapping[int, Figures | None] | None:
        """What clients measured of their own models.

        Returns:
            Figures by client, None for a client whose model is the global one; clients that did not
            answer are left out. None if the server has the clients' states and evaluates itself.
        """
        ...
