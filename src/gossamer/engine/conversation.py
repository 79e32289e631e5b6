"""A conversation with one client: down over the wire, local training, up over the wire."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gossamer import cost
from gossamer.core import Client, Ctx, Exchange, Key, Missing, Result
from gossamer.cost import Accounting, Entry, Network
from gossamer.data.federation import Federation
from gossamer.engine import replay
from gossamer.engine.client import (
    Abandoned,
    AnyMethod,
    ClientError,
    Stage,
    Trained,
    client_ctx,
    train,
)
from gossamer.engine.events import ClientFailed, ClientFinished
from gossamer.engine.expected import Expected
from gossamer.engine.options import Options, Stop
from gossamer.engine.store import Store
from gossamer.task import Task
from gossamer.wire import (
    HEADER,
    Detail,
    Mode,
    Schema,
    UnknownMask,
    WireError,
    Written,
    choose,
    decode,
    dump,
    held,
    whole,
    write,
)

ASKED = Entry("up", "Missing", "header", 8.0 * HEADER, 0.0, 0.0)
"""What it costs a client to say that it lacks something: a message without content."""


@dataclass(frozen=True)
class Reply:
    """A client's answer as it came over the wire, or its failure."""

    client: Client
    down: Any
    """What the client received, which need not be quite what the server meant to send."""
    schema: Schema | None
    """The client's own, to say what is wrong with a reply; none is read with it."""
    data: bytes
    local: bytes | None
    """What the client will keep, once its reply is accepted."""
    event: ClientFinished | None
    failure: ClientFailed | None
    seconds: float


@dataclass(frozen=True)
class Conversations:
    """All that conversations of a run have in common."""

    method: AnyMethod
    federation: Federation
    store: Store
    key: Key
    rounds: int
    out: Path
    options: Options
    stop: Stop
    mode: Mode
    accounting: Accounting
    network: Network | None
    dry: bool
    expected: Expected = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", Expected(self.method))

    @property
    def detail(self) -> Detail:
        """Of the ledger: a row for each field of a message, or for each tensor."""
        return self.options.ledger

    def hold(
        self,
        task: Task,
        number: int,
        client: Client,
        down: Any,
        charged: float = 1.0,
        again: Callable[[], Any] | None = None,
    ) -> Reply:
        """Sends, trains, receives; a failure becomes part of the reply, or is raised.

        A paper may charge what goes down to clients that take no part: `charged` times. A client
        that asks for what it lacks is sent what `again` returns.
        """
        if self.stop.at_once():
            raise Abandoned
        started = time.perf_counter()
        stage: list[Stage] = ["decode"]
        local, received = None, down
        entries: list[Entry] = []
        try:
            local = self.store.get(client.id)
            received, entries = self._deliver(down, local, charged)
            stage.append("data")
            ctx = client_ctx(self.key, task, self.federation, client.id, number, self.rounds)
            try:
                done = self._train(ctx, received, local, stage)
            except Missing:
                if again is None:
                    raise
                # The message that was of no use is paid for, but no paper counts it.
                entries = [replace(entry, paper=0.0) for entry in entries]
                entries.append(ASKED)
                received, more = self._deliver(again(), local, charged)
                entries += more
                done = self._train(ctx, received, local, stage)
            stage.append("encode")
            answer = Schema.of(done.result.up)
            up = write(done.result.up, answer, self.mode, received, self.detail)
            entries += self._entries("up", up, done.result.up, 1.0)
            event = self._finished(ctx, client, done, entries)
            stage.append("store")
            kept = None if done.result.local is None else dump(done.result.local)
        except Abandoned:
            raise
        except Exception as cause:
            error = ClientError(stage[-1], number, client.id, cause)
            failure = self._failed(error, client, received, local, entries)
            return Reply(client, received, None, b"", None, None, failure, _since(started))
        return Reply(client, received, answer, up.data, kept, event, None, _since(started))

    def merge(
        self, ctx: Ctx, state: Any, replies: Sequence[Reply]
    ) -> tuple[Any, list[ClientFailed]]:
        """The server's next state, and the replies that were refused.

        A reply that cannot be what it claims to be costs its client the round, whether that shows
        in reading it or in merging it; the client then keeps what it had.
        """
        refused: dict[int, ClientFailed] = {}
        while True:
            reader = _Exchanges(self.expected, self.mode, ctx, state, replies, refused)
            try:
                merged = self.method.merge(ctx, state, iter(reader))
                break
            except WireError as problem:
                if reader.last is None:
                    raise
                refused[reader.last.client.id] = _refusal(reader.last, problem)
        for reply in replies:
            if reply.local is not None and reply.client.id not in refused:
                self.store.put(reply.client.id, ctx.round, reply.local)
        return merged, list(refused.values())

    def _train(self, ctx: Ctx, down: Any, local: Any, stage: list[Stage]) -> Trained:
        return train(
            self.method,
            ctx,
            down,
            local,
            augment=self.federation.augment,
            abandoned=self.stop.at_once,
            at=stage.append,
            dry=self.dry,
        )

    def _deliver(self, down: Any, local: Any, charged: float) -> tuple[Any, list[Entry]]:
        """What the client receives, and the rows of the ledger of all that was sent for it.

        A client that lacks the mask which a message builds on asks, and is sent the whole mask; a
        paper counts one message, the one that was understood.
        """
        schema = Schema.of(down)
        first = write(down, schema, self.mode, detail=self.detail)
        known = held(local) if schema.revises else {}
        try:
            received = decode(first.data, schema, self.mode, held=known)
            return received, self._entries("down", first, received, charged)
        except UnknownMask:
            second = write(whole(down), schema, self.mode, detail=self.detail)
            received = decode(second.data, schema, self.mode)
            entries = self._entries("down", first, received, 0.0)
            return received, [*entries, ASKED, *self._entries("down", second, received, charged)]

    def _entries(
        self, direction: Literal["up", "down"], message: Written, record: Any, charged: float
    ) -> list[Entry]:
        """A message's rows of the ledger."""
        paper: dict[str, float] = {}
        count = cost.paper_rows if self.detail == "field" else cost.paper_tensors
        for leaf, bits in count(record, self.accounting):
            paper[leaf] = paper.get(leaf, 0) + charged * bits
        return [
            Entry(
                direction,
                message.message,
                row.leaf,
                row.sent,
                row.information,
                paper.get(row.leaf, 0),
            )
            for row in message.rows
        ]

    def _finished(
        self, ctx: Ctx, client: Client, done: Trained, entries: Sequence[Entry]
    ) -> ClientFinished:
        result: Result[Any, Any] = done.result
        layout = ctx.task.layout
        densities = cost.densities(result.masks)
        effort = cost.Effort(
            layout,
            densities,
            done.examples,
            done.steps,
            done.per_epoch,
            cost.densities(result.trained),
        )
        flops = round(cost.FLOPS[self.options.flops_model](effort))
        up, down = (_total(entries, direction) for direction in ("up", "down"))
        seconds = self.network.seconds(up[0], down[0], flops) if self.network else None
        return ClientFinished(
            round=ctx.round,
            client=client.id,
            examples=done.examples,
            steps=done.steps,
            density=cost.density(layout, result.masks),
            up=up[0],
            down=down[0],
            information_up=up[1],
            information_down=down[1],
            paper_up=up[2],
            paper_down=down[2],
            flops=flops,
            device_seconds=seconds,
            metrics=dict(result.metrics),
            traffic=entries,
        )

    def _failed(
        self,
        error: ClientError,
        client: Client,
        down: Any,
        local: Any,
        entries: Sequence[Entry],
    ) -> ClientFailed:
        """Keeps what is needed to replay the client; raises unless failures are to be skipped."""
        if error.stage != "decode":
            seed = self.key.seed
            capsule = replay.Capsule(error.round, self.rounds, seed, client.id, down, local)
            replay.write(self.out / "rounds", capsule)
            run = shlex.quote(str(self.out))
            error.replay = f"gossamer replay {run} --round {error.round} --client {client.id}"
        if self.options.on_client_error == "stop":
            raise error from error.cause
        bits, _, paper = _total(entries, "down")
        return ClientFailed(error.round, client.id, error.stage, error.reason, bits, paper)


def _total(entries: Sequence[Entry], direction: str) -> tuple[int, float, int]:
    """Bits sent, their limit, and what the paper counts, in one direction."""
    chosen = [entry for entry in entries if entry.direction == direction]
    return (
        round(sum(entry.sent for entry in chosen)),
        sum(entry.information for entry in chosen),
        round(sum(entry.paper for entry in chosen)),
    )


class _Exchanges:
    """Conversations in the order of client ids, decoded one at a time from nothing but bytes."""

    def __init__(
        self,
        expected: Expected,
        mode: Mode,
        ctx: Ctx,
        state: Any,
        replies: Sequence[Reply],
        refused: dict[int, ClientFailed],
    ) -> None:
        self.last: Reply | None = None
        """The one whose exchange was handed out last."""
        self._expected = expected
        self._mode = mode
        self._ctx = ctx
        self._state = state
        self._replies = replies
        self._refused = refused

    def __iter__(self) -> Iterator[Exchange[Any, Any]]:
        for reply in self._replies:
            if reply.event is None or reply.client.id in self._refused:
                continue
            forms = self._expected(self._ctx, reply.down)
            try:
                schema = choose(reply.data, forms, self._mode, reply.schema)
                known = held(reply.down, self._state) if schema.revises else {}
                up = decode(reply.data, schema, self._mode, reply.down, known)
            except WireError as problem:
                self._refused[reply.client.id] = _refusal(reply, problem)
                continue
            self.last = reply
            yield Exchange(reply.client, reply.down, up)


def _refusal(reply: Reply, problem: WireError) -> ClientFailed:
    """The event of a reply that was not accepted; its costs are in the client's own event."""
    assert reply.event is not None
    reason = f"{type(problem).__name__}: {problem}"
    return ClientFailed(reply.event.round, reply.client.id, "wire", reason, 0, 0)


def _since(started: float) -> float:
    return time.perf_counter() - started
