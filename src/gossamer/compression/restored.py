"""Replies of a compressed method as the method would have had them without compression."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gossamer.compression import exchange as numbers
from gossamer.compression.compressors import Payload
from gossamer.compression.records import CompressedDown, CompressedServer, CompressedUp
from gossamer.core import Ctx, Exchange, Params

if TYPE_CHECKING:
    from gossamer.compression.method import Compressed


class Restored:
    """Exchanges as the method would have had them without compression, one at a time."""

    def __init__(
        self,
        compressed: Compressed,
        ctx: Ctx,
        state: CompressedServer,
        exchanges: Iterable[Exchange[Any, CompressedUp]],
    ) -> None:
        self._compressed = compressed
        self._ctx = ctx
        self._state = state
        self._exchanges = exchanges
        self.clients: list[int] = []
        self.estimates: dict[int, Params] = {}
        self.copy: Params | None = None
        self.payload: Payload | None = None

    def __iter__(self) -> Iterator[Exchange[Any, Any]]:
        self.clients = []
        for each in self._exchanges:
            down = self._down(each)
            up = self._up(each, down)
            self.clients.append(each.client.id)
            yield Exchange(each.client, down, up, each.age)

    def _down(self, each: Exchange[Any, CompressedUp]) -> Any:
        if not isinstance(each.down, CompressedDown):
            return each.down
        if self.copy is None:
            inner = self._compressed.method.down(self._ctx, self._state.inner, each.client)
            self.copy, self.payload = self._compressed._next(self._ctx, self._state, inner)
        return numbers.filled(each.down.record, self.copy)

    def _up(self, each: Exchange[Any, CompressedUp], down: Any) -> Any:
        up, spec = each.up, self._compressed._up
        if spec is None or up.payload is None:
            return up.record
        change = spec.compressor.restore(up.payload, numbers.like(up.record))
        if spec.feedback == "ef21":
            known = self._state.estimates.get(each.client.id, {})
            if known.keys() == change.keys() and not up.fresh:
                change = {place: known[place] + tensor for place, tensor in change.items()}
            self.estimates[each.client.id] = change
        return numbers.restored(down, up.record, change, self._compressed.method)
