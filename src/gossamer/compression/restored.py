"""Replies of a compressed method as the method would have had them without compression.

A client changes the copy that it holds, which lacks what requests have lost so far. The method is
given the same change of the server's own model: so what a request lost stays in that model, and is
in the next request's difference. Otherwise averaging would replace the model by changed copies.
"""

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
        self._exact: Params = {}
        self.payload: Payload | None = None

    def __iter__(self) -> Iterator[Exchange[Any, Any]]:
        self.clients = []
        for each in self._exchanges:
            held, exact = self._downs(each)
            up = self._up(each, held, exact)
            self.clients.append(each.client.id)
            yield Exchange(each.client, exact, up, each.age)

    def _downs(self, each: Exchange[Any, CompressedUp]) -> tuple[Any, Any]:
        """The request as the client has it, and with the server's own numbers."""
        if not isinstance(each.down, CompressedDown):
            return each.down, each.down
        if self.copy is None:
            inner = self._compressed.method.down(self._ctx, self._state.inner, each.client)
            self.copy, self.payload = self._compressed._next(self._ctx, self._state, inner)
            self._exact = numbers.compressible(self._ctx, inner)
        record = each.down.record
        return numbers.filled(record, self.copy), numbers.filled(record, self._exact)

    def _up(self, each: Exchange[Any, CompressedUp], held: Any, exact: Any) -> Any:
        up, spec = each.up, self._compressed._up
        if spec is None or up.payload is None:
            if exact is held:
                return up.record
            change = numbers.change(self._ctx, held, up.record)
            record = numbers.filled(up.record, change)
            return numbers.restored(exact, record, change, self._compressed.method)
        change = spec.compressor.restore(up.payload, numbers.like(up.record))
        if spec.feedback == "ef21":
            known = self._state.estimates.get(each.client.id, {})
            if known.keys() == change.keys() and not up.fresh:
                change = {place: known[place] + tensor for place, tensor in change.items()}
            self.estimates[each.client.id] = change
        return numbers.restored(exact, up.record, change, self._compressed.method)
