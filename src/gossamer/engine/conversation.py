"""A conversation with one client: down over the wire, local training, up over the wire."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from gossamer.accounting import Entry, ledger_rows
from gossamer.core import Client, Ctx
from gossamer.engine import replay
from gossamer.engine.acceptance import Merged, Merging, Rebased, bounded
from gossamer.engine.client import (
    Abandoned,
    Account,
    Answer,
    ClientError,
    Completed,
    Failed,
    MissingState,
    Participant,
    RemoteError,
    Request,
    Stop,
    one_line,
)
from gossamer.engine.events import ClientFailed, ClientFinished
from gossamer.engine.expected import Expected, Replies, Reply
from gossamer.engine.privacy import Guard
from gossamer.engine.run_record import Run
from gossamer.engine.sharing import MESSAGES, Outbox
from gossamer.engine.store import Store
from gossamer.task import Task
from gossamer.trust.limits import Norms
from gossamer.wire import HEADER, WireError, Written, decode, held, whole

REPORT = Entry("up", "Missing", "header", 8.0 * HEADER, 0.0, 0.0)
"""The cost of a client's report that it lacks something: a message without content."""

Conversation: TypeAlias = Generator[Request, Answer | None, Reply]
"""The server's side of a conversation; its driver carries the messages to the client and back."""


@dataclass(frozen=True)
class Visit:
    """A conversation to be held with a client in a round."""

    client: Client
    down: Any
    charged: float = 1.0
    """How many times a paper counts what goes down, such as to clients that take no part."""
    resend: Callable[[], Any] | None = None
    """Returns the record for a client that lost its state."""
    steps: int | None = None
    """After which the client sends what it has; None: those of its job."""


@dataclass(frozen=True)
class Conversations:
    """What all conversations of a run share."""

    run: Run
    store: Store
    stop: Stop
    guard: Guard | None = None
    """What stands between replies and the merge under differential privacy."""
    expected: Expected = field(init=False)
    participant: Participant = field(init=False)
    outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", Expected(self.run.method))
        object.__setattr__(self, "outbox", Outbox(self.run.wire, self.run.options.ledger))
        object.__setattr__(
            self, "participant", Participant(self.run, self.stop.at_once, remembers=MESSAGES)
        )

    def begin(self, number: int, visit: Visit, before: Sequence[Entry] = ()) -> Conversation:
        """The server's side: yields requests, is sent the answers, and returns the reply.

        A client that lost its state is sent what `visit.resend` returns; one that lacks only the
        mask which a message revises is sent the whole mask. A paper counts one message: the one
        that was understood.

        Args:
            number: The round.
            visit: With whom, and about what.
            before: The ledger of a failed conversation that this one repeats.

        Raises:
            ClientError: The client failed, and failures are not to be skipped.
        """
        started = time.perf_counter()
        entries = [replace(entry, paper=0.0) for entry in before]
        client, sent, resent, complete = visit.client, visit.down, False, False
        while True:
            try:
                message = self.outbox.write(number, sent)
            except Exception as cause:
                failure = Failed("decode", one_line(cause), cause)
                self._report(failure, number, client.id)
                return self._left_out(failure, number, visit, sent, entries, started)
            answer = yield Request(number, client.id, message.schema, message.data, visit.steps)
            assert answer is not None
            match answer:
                case MissingState("mask") if not complete:
                    entries += [*self._rows(message, sent, 0.0), REPORT]
                    sent, complete = whole(sent), True
                case MissingState("state") if visit.resend is not None and not resent:
                    # The message that was of no use is paid for, but no paper counts it.
                    entries = [replace(entry, paper=0.0) for entry in entries]
                    entries += [*self._rows(message, sent, 0.0), REPORT]
                    sent, resent, complete = visit.resend(), True, False
                case Completed():
                    received = answer.received
                    if received is None:
                        wire = self.run.wire
                        received = decode(message.data, message.schema, wire, held=held(sent))
                    entries += self._rows(message, received, visit.charged)
                    try:
                        account = bounded(self.run, client, answer.account)
                    except WireError as problem:
                        claim = Failed("claim", str(problem))
                        return self._left_out(claim, number, visit, sent, entries, started)
                    entries += account.up
                    event = self._finished(number, client, account, entries)
                    return Reply(
                        client,
                        received,
                        _since(started),
                        schema=answer.schema,
                        data=answer.data,
                        local=answer.kept,
                        event=event,
                    )
                case MissingState(failure=failure) | (Failed() as failure):
                    if failure.sent:
                        entries += self._rows(message, sent, visit.charged)
                    self._report(failure, number, client.id)
                    return self._left_out(failure, number, visit, sent, entries, started)

    def hold(self, task: Task, number: int, visit: Visit) -> Reply:
        """Both sides of a conversation, in this process."""
        if self.stop.at_once():
            raise Abandoned
        conversation = self.begin(number, visit)
        kept = partial(self.kept, visit.client.id)
        answer = None
        while True:
            try:
                request = conversation.send(answer)
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            answer = self.participant.answer(task, request, kept)

    def kept(self, client: int) -> Any:
        """The state that a client of this process kept, or None; not to be changed."""
        data = self.store.raw(client)
        return None if data is None else self.participant.states.read(data)

    def refusal(self, ctx: Ctx, state: Any, reply: Reply) -> str:
        """Why a reply will not be merged, as far as reading it shows; empty if it will."""
        if reply.failure is not None:
            return f"{reply.failure.stage}: {reply.failure.reason}"
        refused: dict[int, ClientFailed] = {}
        list(Replies(self.run, self.expected, ctx, state, [reply], refused))
        return refused[reply.client.id].reason if refused else ""

    def merge(
        self,
        ctx: Ctx,
        state: Any,
        replies: Sequence[Reply],
        recent: Norms,
        rebased: Rebased | None = None,
    ) -> Merged:
        """Merges the replies of a round.

        A reply that is malformed or outside the limits costs its client the round, whether reading
        or merging it shows that; the client then keeps the state it had.

        Args:
            ctx: Where the server stands.
            state: Its state before the round.
            replies: Of the round's clients.
            recent: Norms of replies in recent rounds.
            rebased: Makes exchanges fit the server's state, if they may be stale.

        Returns:
            The server's next state, the replies that were refused, and the norms to remember.
        """

        def read(some: Sequence[Reply], refused: dict[int, ClientFailed]) -> Replies:
            return Replies(self.run, self.expected, ctx, state, some, refused)

        merging = Merging(self.run, read, ctx, state, self.guard, rebased)
        merged = merging.merged(replies, recent)
        refused = {event.client for event in merged.refused}
        for reply in replies:
            if reply.local is not None and reply.client.id not in refused:
                self.store.put(reply.client.id, ctx.round, reply.local)
        self.store.drop_staged()
        return merged

    def _rows(self, message: Written, record: Any, charged: float) -> list[Entry]:
        """The ledger's rows of what was sent down."""
        accounting, detail = self.run.accounting, self.run.options.ledger
        return ledger_rows(message, record, "down", accounting, detail, charged)

    def _finished(
        self, number: int, client: Client, account: Account, entries: Sequence[Entry]
    ) -> ClientFinished:
        up, down = (_total(entries, direction) for direction in ("up", "down"))
        flops = account.flops
        fleet = self.run.fleet
        seconds = fleet.of(client.id).seconds(up[0], down[0], flops) if fleet else None
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

    def _report(self, failure: Failed, number: int, client: int) -> None:
        """Keeps what is needed to replay a client that failed; raises unless that is skipped."""
        command = ""
        if failure.capsule is not None:
            folder = self.run.folder
            replay.write(folder / "rounds", failure.capsule, self.run.identity)
            where = shlex.quote(str(folder))
            command = f"gossamer replay {where} --round {number} --client {client}"
        if self.run.options.on_client_error == "stop":
            cause = failure.cause or RemoteError(failure.reason)
            error = ClientError(failure.stage, number, client, cause)
            error.replay = command
            raise error from failure.cause

    @staticmethod
    def _left_out(
        failure: Failed,
        number: int,
        visit: Visit,
        sent: Any,
        entries: Sequence[Entry],
        started: float,
    ) -> Reply:
        """The reply of a client that costs it the round."""
        client = visit.client
        bits, _, paper = _total(entries, "down")
        event = ClientFailed(number, client.id, failure.stage, failure.reason, bits, paper)
        return Reply(client, sent, _since(started), failure=event, wasted=tuple(entries))


def _total(entries: Sequence[Entry], direction: str) -> tuple[int, float, int]:
    """Bits sent, information, and bits as the paper counts, in one direction."""
    chosen = [entry for entry in entries if entry.direction == direction]
    return (
        round(sum(entry.sent for entry in chosen)),
        sum(entry.information for entry in chosen),
        round(sum(entry.paper for entry in chosen)),
    )


def _since(started: float) -> float:
    return time.perf_counter() - started
