"""The server's transport: registers nodes and carries a round's messages, within a deadline.

A client that is offline, fails, misses the deadline or answers garbage is left out of the round,
with the reason, and is asked again in a later round. The engine trains and merges: its loop is the
same as in a simulation.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gossamer.accounting import Entry
from gossamer.core import Ctx
from gossamer.engine.client import Abandoned, ClientError, Failed, Request
from gossamer.engine.conversation import Conversation, Conversations, Visit
from gossamer.engine.evaluate import Figures
from gossamer.engine.expected import Reply
from gossamer.engine.files import append
from gossamer.flower import messages
from gossamer.flower.carrier import Carrier, Incoming, Outgoing
from gossamer.flower.journal import EVENT
from gossamer.flower.messages import Message
from gossamer.flower.patience import Patience as Patience
from gossamer.flower.registration import Registry
from gossamer.wire import HEADER, WireError, dump

log = logging.getLogger("gossamer.flower")

SLOWEST = 0.5
"""Longest time between two polls, in seconds."""
REGISTRATION = 60.0
"""Seconds in which a new node must register: before the first round at least, later at most."""
FAREWELL = 10.0
"""Seconds in which nodes must confirm a notice; an idle one polls every three."""
AGAIN = 30.0
"""Seconds after which a refused node is asked to register again."""


@dataclass
class _Open:
    """A conversation in progress."""

    visit: Visit
    conversation: Conversation
    request: Request
    node: int = 0
    explained: bool = False


@dataclass
class Traffic:
    """The messages of a round: bytes of bodies, which the ledger has too, and of heads."""

    messages: int = 0
    body: int = 0
    head: int = 0

    def add(self, message: Message) -> None:
        head, body = message.packed()
        self.messages += 1
        self.head += len(head)
        self.body += len(body)


@dataclass
class ServerTransport:
    """The engine's transport to the nodes that a carrier reaches."""

    carrier: Carrier
    registry: Registry
    patience: Patience = Patience()
    now: Callable[[], float] = time.monotonic
    rest: Callable[[float], None] = time.sleep
    _asked: dict[int, float] = field(default_factory=dict)  # when nodes were asked to register
    _told: dict[int, str] = field(default_factory=dict)  # why nodes were refused
    _explained: set[tuple[int, bytes]] = field(default_factory=set)
    """Nodes that know a schema, by the hash in the header."""
    _traffic: Traffic = field(default_factory=Traffic)

    # registration --------------------------------------------------------------------------------

    def gather(self) -> None:
        """Waits for clients before the first round.

        Raises:
            TimeoutError: Too few came; the message says who was refused and who is missing.
        """
        until = self.now() + self.patience.gather
        wanted = self.patience.min_present
        if not wanted or self.registry.open:  # sizes of clients that come later would be unknown
            wanted = len(self.registry.pool)

        def enough() -> bool:
            return len(self.registry.present(self.carrier.nodes())) >= wanted

        while True:
            # A node that has just started may need longer than a short round lasts.
            seconds = max(self.patience.deadline, REGISTRATION)
            self.register(min(until, self.now() + seconds), enough)
            if enough():
                return
            if self.now() >= until:
                present = self.registry.present(self.carrier.nodes())
                raise TimeoutError(
                    f"{len(present)} of {wanted} clients came within {self.patience.gather:g} s; "
                    f"{self.registry.absence(present)}; mend that, or use --gather or --min-present"
                )
            self.rest(max(self.patience.poll, SLOWEST))

    def register(self, until: float, enough: Callable[[], bool]) -> None:
        """Asks unknown nodes to register, until there are enough.

        A refused node is asked again after a while: it may have been restarted.
        """
        now = self.now()
        unknown = [
            node
            for node in self.carrier.nodes()
            if not self.registry.knows(node)
            or (self.registry.refused(node) and now - self._asked.get(node, now) >= AGAIN)
        ]
        self._asked |= dict.fromkeys(unknown, now)
        seconds = max(until - now, self.patience.poll)
        outgoing = [
            Outgoing(node, "query", messages.register(seconds), 0, seconds) for node in unknown
        ]
        names = self.carrier.names() if unknown and self.patience.nodes else {}
        for sent, incoming in self._exchange(outgoing, until, enough):
            name = names.get(sent.node, "")
            reason = self.registry.enter(sent.node, incoming, name, self.patience.nodes)
            if reason and self._told.get(sent.node) != reason:
                self._told[sent.node] = reason
                text = f"the server refuses this node: {reason}"
                self.carrier.send([self._notice(sent.node, text, over=False)])

    def farewell(self, text: str) -> None:
        """Tells all nodes how the run has ended; those that do not listen are not waited for."""
        outgoing = [self._notice(node, text, over=True) for node in self.carrier.nodes()]
        for _ in self._exchange(outgoing, self.now() + FAREWELL):
            pass

    def _notice(self, node: int, text: str, over: bool) -> Outgoing:
        return Outgoing(node, "query", messages.notice(text, over, FAREWELL), 0, FAREWELL)

    # the engine's transport ----------------------------------------------------------------------

    def hold(
        self, conversations: Conversations, ctx: Ctx, state: Any, visits: Sequence[Visit]
    ) -> list[Reply]:
        """Asks every client; those without a valid reply again, until there are enough replies."""
        replies: dict[int, Reply] = {}
        wasted: dict[int, Sequence[Entry]] = {}
        open, wanted = list(visits), min(self.patience.min_replies, len(visits))
        self._traffic = Traffic()
        for _ in range(self.patience.attempts):
            for reply in self._attempt(conversations, ctx.round, open, wasted):
                replies[reply.client.id] = reply
            refusals = {
                id: conversations.refusal(ctx, state, reply) for id, reply in replies.items()
            }
            bad = {id: reason for id, reason in refusals.items() if reason}
            for visit in open:
                if visit.client.id in bad:
                    self._note(conversations, ctx.round, visit.client.id, bad[visit.client.id])
            if len(replies) - len(bad) >= wanted:
                self._journal(conversations, {"round": ctx.round, **vars(self._traffic)})
                return list(replies.values())
            log.warning(
                "round %d has %d of %d replies; it is repeated for the other clients",
                ctx.round,
                len(replies) - len(bad),
                wanted,
            )
            open = [visit for visit in visits if visit.client.id in bad]
            wasted = {id: _spent(replies[id]) for id in bad}
        first = min(bad)
        cause = TimeoutError(
            f"{len(replies) - len(bad)} of {wanted} replies after {self.patience.attempts} "
            f"attempts ({bad[first]}); repair the nodes and resume, or use --min-replies"
        )
        raise ClientError("network", ctx.round, first, cause)

    def receipt(self, kept: bytes) -> bytes:
        """What the server keeps of a state is its fingerprint already."""
        return kept

    def figures(
        self, conversations: Conversations, ctx: Ctx, state: Any, clients: Sequence[int]
    ) -> Mapping[int, Figures | None]:
        """Asks every node once, for all of its clients that have a state."""
        online = self.carrier.nodes()
        until = self.now() + self.patience.deadline
        groups: dict[int, dict[int, str]] = {}
        for client in clients:
            node = self.registry.node(client, online)
            kept = (conversations.store.raw(client) or b"").decode()
            if node is not None:
                groups.setdefault(node, {})[client] = kept
        body = dump(state) if groups else b""
        outgoing = []
        for node, kept_by in groups.items():
            seconds = self.patience.deadline
            what = (conversations.run.label, ctx.round, ctx.budgets, kept_by, body, seconds)
            outgoing.append(
                Outgoing(node, "evaluate", messages.evaluate(*what), ctx.round, seconds)
            )
        figures: dict[int, Figures | None] = {}
        bounds = ctx.task.goal.headline.bounds
        for sent, incoming in self._exchange(outgoing, until):
            try:
                if incoming.message is None:
                    raise WireError(incoming.reason)
                figures |= messages.read_measured(incoming.message, [*groups[sent.node]], bounds)
            except WireError as problem:
                log.warning("node %d did not evaluate: %s", sent.node, problem)
        if missing := sorted(set(clients) - figures.keys()):
            log.warning("round %d: no figures of clients %s", ctx.round, missing)
        return figures

    # a round -------------------------------------------------------------------------------------

    def _attempt(
        self,
        conversations: Conversations,
        number: int,
        visits: Sequence[Visit],
        wasted: Mapping[int, Sequence[Entry]],
    ) -> Iterator[Reply]:
        """A reply for every visit, as they arrive; clients that miss the deadline have failed."""
        clients = [visit.client.id for visit in visits]

        def reached() -> bool:
            online = self.carrier.nodes()
            return all(self.registry.node(client, online) is not None for client in clients)

        if not reached():
            self.register(self.now() + min(REGISTRATION, self.patience.deadline), reached)
        until = self.now() + self.patience.deadline
        overdue = f"no answer within {self.patience.deadline:g} s"
        online = self.carrier.nodes()
        open: list[_Open] = []
        for visit in visits:
            conversation = conversations.begin(number, visit, wasted.get(visit.client.id, ()))
            try:
                each = _Open(visit, conversation, conversation.send(None))
            except StopIteration as end:
                yield end.value
                continue
            node = self.registry.node(visit.client.id, online)
            if node is None:
                yield _fail(each, self.registry.reason(visit.client.id), sent=False)
                continue
            each.node = node
            open.append(each)
        waiting: dict[str, _Open] = {}
        pause, came = self.patience.poll, 0
        enough = math.floor(len(visits) / self.patience.oversample + 1e-9)
        while open or waiting:
            if conversations.stop.at_once():
                raise Abandoned
            for each, id in zip(open, self._send(conversations, open, until), strict=True):
                if id:
                    waiting[id] = each
                else:
                    yield _fail(each, f"node {each.node} was not reached", sent=False)
            open = []
            received = self.carrier.collect(list(waiting))
            for incoming in received:
                if came >= enough:
                    break
                each = waiting.pop(incoming.id)
                if incoming.message is None and self.now() >= until:
                    yield _fail(each, overdue)  # the network has dropped the request by then
                    continue
                reply = self._next(conversations, each, incoming)
                if reply is None:
                    open.append(each)
                else:
                    came += reply.event is not None
                    yield reply
            if came >= enough:
                for each in (*open, *waiting.values()):
                    yield _fail(each, "enough others had answered")
                return
            if self.now() >= until:
                for each in (*open, *waiting.values()):
                    yield _fail(each, overdue)
                return
            pause = self._rest(pause, bool(received))

    def _send(self, conversations: Conversations, open: Sequence[_Open], until: float) -> list[str]:
        """Sends the next message of each conversation."""
        outgoing = []
        seconds = max(until - self.now(), self.patience.poll)
        for each in open:
            request = each.request
            known = (each.node, request.data[:HEADER]) in self._explained
            each.explained = each.explained or not known
            kept = (conversations.store.raw(request.client) or b"").decode()
            what = (request, conversations.run.label, kept, each.explained, seconds)
            message = messages.train(*what, self.patience.partial)
            self._traffic.add(message)
            outgoing.append(Outgoing(each.node, "train", message, request.round, seconds))
        return self.carrier.send(outgoing) if outgoing else []

    def _next(self, conversations: Conversations, each: _Open, incoming: Incoming) -> Reply | None:
        """Continues a conversation; None if there is more to send."""
        message = incoming.message
        if message is None:
            return _fail(each, incoming.reason)
        self._traffic.add(message)
        schema = (each.node, each.request.data[:HEADER])
        if message.kind == "explain" and not each.explained:
            self._explained.discard(schema)
            return None
        try:
            answer = messages.read_answer(message, conversations.run.label, each.request)
        except WireError as problem:
            return _fail(each, str(problem))
        self._explained.add(schema)
        kept = (conversations.store.raw(each.request.client) or b"").decode()
        try:
            each.request = each.conversation.send(answer)
        except StopIteration as end:
            reply: Reply = end.value
            lost = messages.lost_state(message, kept)
            if lost:
                log.warning("client %d lost what it kept: %s", each.request.client, lost)
            return replace(reply, lost=lost)
        each.explained = False
        return None

    def _exchange(
        self, outgoing: Sequence[Outgoing], until: float, enough: Callable[[], bool] = bool
    ) -> Iterator[tuple[Outgoing, Incoming]]:
        """One answer for each message, or the reason why there is none."""
        waiting: dict[str, Outgoing] = {}
        for sent, id in zip(outgoing, self.carrier.send(outgoing) if outgoing else [], strict=True):
            if id:
                waiting[id] = sent
            else:
                yield sent, Incoming("", None, "it was not reached")
        pause = self.patience.poll
        while waiting:
            received = self.carrier.collect(list(waiting))
            for incoming in received:
                yield waiting.pop(incoming.id), incoming
            if self.now() >= until or (received and enough()):
                break
            pause = self._rest(pause, bool(received))
        for id, sent in waiting.items():
            yield sent, Incoming(id, None, "it did not answer in time")

    def _rest(self, pause: float, busy: bool) -> float:
        """Waits unless something arrived, longer each time.

        Returns:
            How long to wait next.
        """
        if busy:
            return self.patience.poll
        self.rest(pause)
        return max(self.patience.poll, min(2 * pause, SLOWEST))

    # the log -------------------------------------------------------------------------------------

    def _note(self, conversations: Conversations, number: int, client: int, reason: str) -> None:
        text = "round %d continues without client %d: %s"
        log.warning(text, number, client, reason, extra=EVENT)
        self._journal(conversations, {"round": number, "client": client, "reason": reason})

    def _journal(self, conversations: Conversations, line: Mapping[str, Any]) -> None:
        """Logs what concerns the transport alone to `messages.jsonl`, beside the event log."""
        append(conversations.run.folder / "messages.jsonl", line)


def _fail(each: _Open, reason: str, sent: bool = True) -> Reply:
    """Ends a conversation with a failure."""
    try:
        each.conversation.send(Failed("network", reason, sent=sent))
    except StopIteration as end:
        reply: Reply = end.value
        return reply
    raise AssertionError("a conversation continued after it had failed")


def _spent(reply: Reply) -> Sequence[Entry]:
    """The ledger of a failed conversation."""
    return reply.event.traffic if reply.event is not None else reply.wasted
