"""Replies: the schemas that the server expects, and how replies are read by them.

A message does not contain its schema, so the receiver must know it in advance. The server derives
the schemas of replies from a dry client without state: the method's own `begin` and `finish` on
blank data, without a step in between. A method with several kinds of replies, or whose `begin`
needs the client's state, provides examples:

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        ...  # one example of each kind, whatever its values
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gossamer.accounting import Entry
from gossamer.core import AnyMethod, Client, Ctx, Data, Examples, Exchange
from gossamer.engine.events import ClientFailed, ClientFinished
from gossamer.engine.run_record import Run
from gossamer.wire import (
    Drawn,
    Packed,
    Revision,
    Schema,
    WireError,
    choose,
    decode,
    flatten,
    held,
)

EXAMPLES = 2
"""Of the blank client: the fewest that batch normalisation accepts."""
NOBODY = -1
"""The id in the randomness of the blank client."""
KEPT = 256
"""Kinds of requests whose reply schemas are remembered."""


@dataclass(frozen=True)
class Reply:
    """A client's reply as it came over the wire, or its failure."""

    client: Client
    down: Any
    """What the client received, which rounding may have changed on the way."""
    seconds: float
    schema: Schema | None = None
    """The client's own, for error messages; replies are never read with it."""
    data: bytes = b""
    local: bytes | None = None
    """The state that the client will keep once its reply is accepted, or its fingerprint."""
    event: ClientFinished | None = None
    failure: ClientFailed | None = None
    wasted: tuple[Entry, ...] = ()
    """The ledger of a failure."""
    lost: str = ""
    """Why the client did not begin with the state that it had kept; empty: it did."""


class Expected:
    """The schemas of replies to a request; derived once a round for requests of the same kind."""

    def __init__(self, method: AnyMethod) -> None:
        self._method = method
        self._known: dict[Hashable, tuple[Schema, ...]] = {}
        self._last: tuple[int, Any, tuple[Schema, ...]] = (-1, None, ())
        """Round, request and schemas: clients of one process share a request."""

    def __call__(self, ctx: Ctx, down: Any) -> tuple[Schema, ...]:
        """The schema of every possible reply to `down` in this round."""
        number, request, schemas = self._last
        if request is down and number == ctx.round:
            return schemas
        kind = (ctx.round, *_traits(down))
        if kind not in self._known:
            while len(self._known) >= KEPT:
                del self._known[next(iter(self._known))]
            self._known[kind] = self._derive(ctx, down)
        self._last = (ctx.round, down, self._known[kind])
        return self._known[kind]

    def _derive(self, ctx: Ctx, down: Any) -> tuple[Schema, ...]:
        blank = replace(ctx, key=ctx.key.fold("client", NOBODY), data=_nothing(ctx))
        examples = getattr(self._method, "replies", None)
        try:
            if examples is not None:
                replies = examples(blank, down)
            else:
                # A client does not know the pool's budgets, and this one represents any client.
                blank = replace(blank, budgets=(1.0,), pool=0)
                job = self._method.begin(blank, down, None)
                replies = [self._method.finish(blank, job.work).up]
            schemas = tuple(dict.fromkeys(Schema.of(up) for up in replies))
            if not schemas:
                raise ValueError("there is none")
            return schemas
        except Exception as problem:
            method, sent = type(self._method).__name__, type(down).__name__
            cause = f"{type(problem).__name__}: {problem}".splitlines()[0]
            tried = "its replies" if examples else "begin and finish for a client without state"
            raise RuntimeError(
                f"the server cannot derive how {method} replies to a {sent}: {tried} raised "
                f"{cause}; let replies(self, ctx, down) return an example of each kind of reply"
            ) from problem


def _nothing(ctx: Ctx) -> Data:
    """Blank data of the model's shape."""
    x = ctx.task.layout.input.blank(EXAMPLES)
    blank = Examples(x, ctx.task.blank_labels(x))
    return Data(blank, blank, blank)


def _traits(record: Any) -> Iterator[Hashable]:
    """What the schema of a reply may depend on: shapes, numbers, and how many weights are kept."""
    yield Schema.of(record)
    for leaf in flatten(record):
        match leaf:
            case bool() | int() | float() | str():
                yield leaf
            case Packed():
                yield tuple(values.numel() for values in leaf.values.values())
            case Drawn():
                yield tuple(leaf.kept.values())
            case Revision():
                yield tuple(int(mask.sum()) for mask in leaf.masks.values())
            case dict():
                yield tuple(int(mask.sum()) for mask in leaf.values())
            case Tensor() if leaf.dtype == torch.bool:
                yield int(leaf.sum())
            case _:
                pass


class Replies:
    """Exchanges in the order of client ids, decoded one at a time from bytes alone.

    A reply that cannot be read is left out and added to `refused`. Masks may come as revisions of
    those in the request or in the server's state.
    """

    def __init__(
        self,
        run: Run,
        expected: Expected,
        ctx: Ctx,
        state: Any,
        replies: Sequence[Reply],
        refused: dict[int, ClientFailed],
    ) -> None:
        self.last: Reply | None = None
        """The one whose exchange was handed out last."""
        self._run = run
        self._expected = expected
        self._ctx = ctx
        self._state = state
        self._replies = replies
        self._refused = refused

    def __iter__(self) -> Iterator[Exchange[Any, Any]]:
        wire = self._run.wire
        for reply in self._replies:
            if reply.event is None or reply.client.id in self._refused:
                continue
            schemas = self._expected(self._ctx, reply.down)
            try:
                schema = choose(reply.data, schemas, wire, reply.schema)
                known = held(reply.down, self._known(reply.client)) if schema.revises else {}
                up = decode(reply.data, schema, wire, reply.down, known)
            except WireError as problem:
                self._refused[reply.client.id] = refusal(reply, problem)
                continue
            self.last = reply
            yield Exchange(reply.client, reply.down, up)

    def _known(self, client: Client) -> object:
        """A record with the masks that the server holds of a client."""
        holds = getattr(self._run.method, "holds", None)
        return holds(self._ctx, self._state, client) if holds else self._state


def refusal(reply: Reply, problem: WireError) -> ClientFailed:
    """The event of a refused reply; its costs are in the client's own event."""
    assert reply.event is not None
    reason = f"{type(problem).__name__}: {problem}"
    return ClientFailed(reply.event.round, reply.client.id, "wire", reason, 0, 0)
