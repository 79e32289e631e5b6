"""A conversation with one client: down over the wire, local training, up over the wire."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from gossamer.accounting import Accounting, Entry, Network
from gossamer.core import Client, Ctx, Exchange, Key
from gossamer.data.federation import Federation
from gossamer.engine import replay
from gossamer.engine.client import Abandoned, AnyMethod, ClientError, Elsewhere
from gossamer.engine.events import ClientFailed, ClientFinished
from gossamer.engine.expected import Expected
from gossamer.engine.options import Options, Stop
from gossamer.engine.outbox import Outbox
from gossamer.engine.participant import (
    Account,
    Answer,
    Ask,
    Broke,
    Done,
    Lacks,
    Participant,
    one_line,
    rows,
)
from gossamer.engine.store import Store
from gossamer.task import Task
from gossamer.wire import (
    HEADER,
    Detail,
    Mode,
    Schema,
    WireError,
    Written,
    choose,
    decode,
    held,
    whole,
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
    """What the client will keep once its reply is accepted, or what stands for it."""
    event: ClientFinished | None
    failure: ClientFailed | None
    seconds: float
    wasted: tuple[Entry, ...] = ()
    """The ledger of a failure."""


Talk: TypeAlias = Generator[Ask, Answer | None, Reply]
"""A conversation as the server leads it; whoever drives it carries messages to the client."""


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
    run: str = ""
    """A name by which clients tell this run from others."""
    expected: Expected = field(init=False)
    participant: Participant = field(init=False)
    outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", Expected(self.method))
        object.__setattr__(self, "outbox", Outbox(self.mode, self.detail))
        participant = Participant(
            self.method,
            self.federation,
            self.key,
            self.rounds,
            self.mode,
            self.accounting,
            self.detail,
            self.options.flops_model,
            self.stop.at_once,
            self.dry,
        )
        object.__setattr__(self, "participant", participant)

    @property
    def detail(self) -> Detail:
        """Of the ledger: a row for each field of a message, or for each tensor."""
        return self.options.ledger

    def talk(
        self,
        number: int,
        client: Client,
        down: Any,
        charged: float = 1.0,
        again: Callable[[], Any] | None = None,
        before: Sequence[Entry] = (),
    ) -> Talk:
        """The server's side: yields what to send, is sent the answers, and returns the reply.

        A failure becomes part of the reply, or is raised. A paper may charge what goes down to
        clients that take no part: `charged` times. A client that asks for what it lacks is sent
        what `again` returns; one that lacks only the mask which a message builds on is sent the
        whole mask. A paper counts one message, the one that was understood. `before` is the ledger
        of a conversation that came to nothing and is repeated by this one.
        """
        started = time.perf_counter()
        entries = [replace(entry, paper=0.0) for entry in before]
        sent, asked, complete = down, False, False
        while True:
            try:
                message = self.outbox.write(number, sent)
                schema = message.schema
            except Exception as cause:
                failure = Broke("decode", one_line(cause), cause)
                return self._failed(failure, number, client, sent, entries, started)
            answer = yield Ask(number, client.id, schema, message.data)
            assert answer is not None
            match answer:
                case Lacks("mask") if not complete:
                    entries += [*self._rows(message, sent, 0.0), ASKED]
                    sent, complete = whole(sent), True
                case Lacks("state") if again is not None and not asked:
                    # The message that was of no use is paid for, but no paper counts it.
                    entries = [replace(entry, paper=0.0) for entry in entries]
                    entries += [*self._rows(message, sent, 0.0), ASKED]
                    sent, asked, complete = again(), True, False
                case Done():
                    received = answer.received
                    if received is None:
                        received = decode(message.data, schema, self.mode, held=held(sent))
                    entries += [*self._rows(message, received, charged), *answer.account.up]
                    event = self._finished(number, client, answer.account, entries)
                    since = _since(started)
                    data, kept = answer.data, answer.kept
                    return Reply(client, received, answer.schema, data, kept, event, None, since)
                case Lacks(failure=failure) | (Broke() as failure):
                    if failure.sent:
                        entries += self._rows(message, sent, charged)
                    return self._failed(failure, number, client, sent, entries, started)

    def hold(
        self,
        task: Task,
        number: int,
        client: Client,
        down: Any,
        charged: float = 1.0,
        again: Callable[[], Any] | None = None,
    ) -> Reply:
        """Both sides of a conversation, in this process."""
        if self.stop.at_once():
            raise Abandoned
        talk = self.talk(number, client, down, charged, again)
        answer = None
        while True:
            try:
                ask = talk.send(answer)
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            answer = self.participant.answer(task, ask, lambda: self.store.get(client.id))

    def refusal(self, ctx: Ctx, state: Any, reply: Reply) -> str:
        """Why a reply will not be merged, as far as that shows in reading it; empty if it will."""
        if reply.failure is not None:
            return f"{reply.failure.stage}: {reply.failure.reason}"
        refused: dict[int, ClientFailed] = {}
        list(self._exchanges(ctx, state, [reply], refused))
        return refused[reply.client.id].reason if refused else ""

    def merge(
        self, ctx: Ctx, state: Any, replies: Sequence[Reply]
    ) -> tuple[Any, list[ClientFailed]]:
        """The server's next state, and the replies that were refused.

        A reply that cannot be what it claims to be costs its client the round, whether that shows
        in reading it or in merging it; the client then keeps what it had.
        """
        refused: dict[int, ClientFailed] = {}
        while True:
            reader = self._exchanges(ctx, state, replies, refused)
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

    def _exchanges(
        self, ctx: Ctx, state: Any, replies: Sequence[Reply], refused: dict[int, ClientFailed]
    ) -> _Exchanges:
        """A reader of replies, which builds on masks that the server holds."""
        holds = getattr(self.method, "holds", None)

        def known(client: Client) -> object:
            return holds(ctx, state, client) if holds else state

        return _Exchanges(self.expected, self.mode, ctx, known, replies, refused)

    def _rows(self, message: Written, record: Any, charged: float) -> list[Entry]:
        """What was sent down, as rows of the ledger."""
        return rows(message, record, "down", self.accounting, self.detail, charged)

    def _finished(
        self, number: int, client: Client, account: Account, entries: Sequence[Entry]
    ) -> ClientFinished:
        up, down = (_total(entries, direction) for direction in ("up", "down"))
        flops = account.flops
        seconds = self.network.seconds(up[0], down[0], flops) if self.network else None
        return ClientFinished(
            round=number,
            client=client.id,
            examples=account.examples,
            steps=account.steps,
            density=account.density,
            up=up[0],
            down=down[0],
            information_up=up[1],
            information_down=down[1],
            paper_up=up[2],
            paper_down=down[2],
            flops=flops,
            device_seconds=seconds,
            metrics=account.metrics,
            traffic=list(entries),
        )

    def _failed(
        self,
        failure: Broke,
        number: int,
        client: Client,
        sent: Any,
        entries: Sequence[Entry],
        started: float,
    ) -> Reply:
        """Keeps what is needed to replay the client; raises unless failures are to be skipped."""
        replayed = ""
        if failure.capsule is not None:
            replay.write(self.out / "rounds", failure.capsule)
            run = shlex.quote(str(self.out))
            replayed = f"gossamer replay {run} --round {number} --client {client.id}"
        if self.options.on_client_error == "stop":
            cause = failure.cause or Elsewhere(failure.reason)
            error = ClientError(failure.stage, number, client.id, cause)
            error.replay = replayed
            raise error from failure.cause
        bits, _, paper = _total(entries, "down")
        told = ClientFailed(number, client.id, failure.stage, failure.reason, bits, paper)
        since = _since(started)
        return Reply(client, sent, None, b"", None, None, told, since, tuple(entries))


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
        known: Callable[[Client], object],
        replies: Sequence[Reply],
        refused: dict[int, ClientFailed],
    ) -> None:
        self.last: Reply | None = None
        """The one whose exchange was handed out last."""
        self._expected = expected
        self._mode = mode
        self._ctx = ctx
        self._known = known
        self._replies = replies
        self._refused = refused

    def __iter__(self) -> Iterator[Exchange[Any, Any]]:
        for reply in self._replies:
            if reply.event is None or reply.client.id in self._refused:
                continue
            forms = self._expected(self._ctx, reply.down)
            try:
                schema = choose(reply.data, forms, self._mode, reply.schema)
                known = held(reply.down, self._known(reply.client)) if schema.revises else {}
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
