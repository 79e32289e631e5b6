"""The server's post: calls the roll, carries a round's conversations, waits no longer than asked.

A client that is away, raises, stalls past the deadline or answers garbage is left out of the round
with its reason, and is asked again when its turn comes. Nothing here trains or merges: the engine's
loop does, and does not notice that its clients are elsewhere.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gossamer.accounting import Entry
from gossamer.core import Ctx
from gossamer.engine.client import Abandoned, ClientError
from gossamer.engine.conversation import Conversations, Reply, Talk
from gossamer.engine.evaluate import Figures
from gossamer.engine.participant import Ask, Broke
from gossamer.engine.transport import Visit
from gossamer.fields import option
from gossamer.flower import messages
from gossamer.flower.messages import Letter
from gossamer.flower.registration import Roll
from gossamer.wire import HEADER, WireError, dump

log = logging.getLogger("gossamer.flower")

SLOWEST = 0.5
"""Seconds between two looks when nothing has come for a while."""
CALL = 60.0
"""Seconds in which a node must answer the roll call of a round."""
AGAIN = 30.0
"""Seconds after which a node that was refused is asked again."""

Purpose = Literal["train", "evaluate", "query"]


@dataclass(frozen=True)
class Patience:
    """How long a server waits, and for how many."""

    deadline: float = option(600.0, "seconds that a round may take", above=0)
    min_replies: int = option(1, "fewest replies of a round; with fewer it is repeated", least=0)
    nodes: int = option(0, "nodes with keys of their own; 0: who has which is not checked", least=0)
    attempts: int = option(10, "how often a round is tried before the run is given up", least=1)
    gather: float = option(300.0, "seconds to wait for nodes before the first round", least=0)
    min_present: int = option(0, "clients that must be there before the first round; 0: all")
    poll: float = 0.02
    """Seconds between two looks at the post, at first."""


@dataclass(frozen=True)
class Parcel:
    """A letter with its address."""

    node: int
    purpose: Purpose
    letter: Letter
    round: int
    seconds: float
    """How long it is of any use."""


@dataclass(frozen=True)
class Arrival:
    """What came back for a parcel: a letter, or why there is none."""

    id: str
    letter: Letter | None
    reason: str = ""


class Carrier(Protocol):
    """A network that takes parcels to nodes and brings what they answer."""

    def nodes(self) -> list[int]:
        """Nodes that are connected now."""
        ...

    def names(self) -> Mapping[int, str]:
        """Under which names the keys of nodes are registered, as far as they are."""
        ...

    def send(self, parcels: Sequence[Parcel]) -> list[str]:
        """Takes parcels; a name for each, empty if it was not accepted."""
        ...

    def collect(self, ids: Sequence[str]) -> list[Arrival]:
        """What has come for these names since the last time."""
        ...


@dataclass
class _Open:
    """A conversation that goes on."""

    visit: Visit
    talk: Talk
    ask: Ask
    node: int = 0
    explained: bool = False


@dataclass
class Tally:
    """Letters of a round: bytes of messages, which the ledger has too, and of all around them."""

    letters: int = 0
    body: int = 0
    head: int = 0

    def add(self, letter: Letter) -> None:
        head, body = letter.packed()
        self.letters += 1
        self.head += len(head)
        self.body += len(body)


@dataclass
class Post:
    """The engine's transport to nodes that a carrier reaches."""

    carrier: Carrier
    roll: Roll
    patience: Patience = Patience()
    now: Callable[[], float] = time.monotonic
    rest: Callable[[float], None] = time.sleep
    _asked: dict[int, float] = field(default_factory=dict)  # when nodes were asked who they are
    _explained: set[tuple[int, bytes]] = field(default_factory=set)
    """Nodes that have seen a form of message, by its eight bytes."""
    _tally: Tally = field(default_factory=Tally)

    # the roll ------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Waits for clients before the first round; an error names those that are missing."""
        until = self.now() + self.patience.gather
        wanted = self.patience.min_present
        if not wanted or self.roll.open:  # sizes of those who come later would never be known
            wanted = len(self.roll.pool)

        def enough() -> bool:
            return len(self.roll.present(self.carrier.nodes())) >= wanted

        while True:
            self.call(min(until, self.now() + self.patience.deadline), enough)
            if enough():
                return
            if self.now() >= until:
                present = self.roll.present(self.carrier.nodes())
                missing = sorted(self.roll.pool.keys() - present)
                told = ", ".join(map(str, missing[:10])) + ", ..." * (len(missing) > 10)
                raise TimeoutError(
                    f"{len(present)} of {wanted} clients came within {self.patience.gather:g} s; "
                    f"missing: {told}; start their nodes, or use --gather or --min-present"
                )
            self.rest(max(self.patience.poll, SLOWEST))

    def call(self, until: float, enough: Callable[[], bool]) -> None:
        """Asks nodes that nobody knows yet who they are, until there are enough.

        One that was refused is asked again after a while: it may have been started anew.
        """
        now = self.now()
        unknown = [
            node
            for node in self.carrier.nodes()
            if not self.roll.knows(node)
            or (self.roll.refused(node) and now - self._asked.get(node, now) >= AGAIN)
        ]
        self._asked |= dict.fromkeys(unknown, now)
        seconds = max(until - now, self.patience.poll)
        parcels = [Parcel(node, "query", messages.hello(seconds), 0, seconds) for node in unknown]
        names = self.carrier.names() if unknown and self.patience.nodes else {}
        for parcel, arrival in self._exchange(parcels, until, enough):
            self.roll.enter(parcel.node, arrival, names.get(parcel.node, ""), self.patience.nodes)

    # the engine's transport ----------------------------------------------------------------------

    def hold(
        self, conversations: Conversations, ctx: Ctx, state: Any, visits: Sequence[Visit]
    ) -> list[Reply]:
        """Asks everybody; those without a good reply again, until there are enough."""
        found: dict[int, Reply] = {}
        wasted: dict[int, Sequence[Entry]] = {}
        open, wanted = list(visits), min(self.patience.min_replies, len(visits))
        self._tally = Tally()
        for _ in range(self.patience.attempts):
            for reply in self._attempt(conversations, ctx.round, open, wasted):
                found[reply.client.id] = reply
            refusals = {id: conversations.refusal(ctx, state, reply) for id, reply in found.items()}
            bad = {id: reason for id, reason in refusals.items() if reason}
            for visit in open:
                if visit.client.id in bad:
                    self._note(conversations, ctx.round, visit.client.id, bad[visit.client.id])
            if len(found) - len(bad) >= wanted:
                self._journal(conversations, {"round": ctx.round, **vars(self._tally)})
                return list(found.values())
            log.warning(
                "round %d has %d of %d replies; it is repeated for the others",
                ctx.round,
                len(found) - len(bad),
                wanted,
            )
            open = [visit for visit in visits if visit.client.id in bad]
            wasted = {id: _spent(found[id]) for id in bad}
        first = min(bad)
        cause = TimeoutError(
            f"{len(found) - len(bad)} of {wanted} replies after {self.patience.attempts} attempts "
            f"({bad[first]}); see to the nodes and resume, or use --min-replies"
        )
        raise ClientError("network", ctx.round, first, cause)

    def receipt(self, kept: bytes) -> bytes:
        """States stay with the clients; what the server keeps is their fingerprint."""
        return kept

    def figures(
        self, conversations: Conversations, ctx: Ctx, state: Any, clients: Sequence[int]
    ) -> Mapping[int, Figures | None]:
        """Asks every node once, for all of its clients that keep something."""
        online = self.carrier.nodes()
        until = self.now() + self.patience.deadline
        groups: dict[int, dict[int, str]] = {}
        for client in clients:
            node = self.roll.node(client, online)
            kept = (conversations.store.raw(client) or b"").decode()
            if node is not None:
                groups.setdefault(node, {})[client] = kept
        body = dump(state) if groups else b""
        parcels = []
        for node, kept_by in groups.items():
            seconds = self.patience.deadline
            what = (conversations.run, ctx.round, ctx.budgets, kept_by, body, seconds)
            parcels.append(Parcel(node, "evaluate", messages.evaluate(*what), ctx.round, seconds))
        found: dict[int, Figures | None] = {}
        for parcel, arrival in self._exchange(parcels, until):
            try:
                if arrival.letter is None:
                    raise WireError(arrival.reason)
                found |= messages.read_measured(arrival.letter, list(groups[parcel.node]))
            except WireError as problem:
                log.warning("node %d did not evaluate: %s", parcel.node, problem)
        if missing := sorted(set(clients) - found.keys()):
            log.warning("round %d: no figures of clients %s", ctx.round, missing)
        return found

    # a round -------------------------------------------------------------------------------------

    def _attempt(
        self,
        conversations: Conversations,
        number: int,
        visits: Sequence[Visit],
        wasted: Mapping[int, Sequence[Entry]],
    ) -> Iterator[Reply]:
        """A reply for every visit, as they come; at the deadline the rest has failed."""
        clients = [visit.client.id for visit in visits]

        def reached() -> bool:
            online = self.carrier.nodes()
            return all(self.roll.node(client, online) is not None for client in clients)

        if not reached():
            self.call(self.now() + min(CALL, self.patience.deadline), reached)
        until = self.now() + self.patience.deadline
        online = self.carrier.nodes()
        open: list[_Open] = []
        for visit in visits:
            talk = visit.begin(conversations, number, wasted.get(visit.client.id, ()))
            try:
                each = _Open(visit, talk, talk.send(None))
            except StopIteration as end:
                yield end.value
                continue
            node = self.roll.node(visit.client.id, online)
            if node is None:
                yield _fail(each, self.roll.reason(visit.client.id), sent=False)
                continue
            each.node = node
            open.append(each)
        waiting: dict[str, _Open] = {}
        pause = self.patience.poll
        while open or waiting:
            if conversations.stop.at_once():
                raise Abandoned
            for each, id in zip(open, self._mail(conversations, open, until), strict=True):
                if id:
                    waiting[id] = each
                else:
                    yield _fail(each, f"node {each.node} was not reached", sent=False)
            open = []
            arrivals = self.carrier.collect(list(waiting))
            for arrival in arrivals:
                each = waiting.pop(arrival.id)
                reply = self._next(conversations, each, arrival)
                if reply is None:
                    open.append(each)
                else:
                    yield reply
            if self.now() >= until:
                for each in (*open, *waiting.values()):
                    yield _fail(each, f"no answer within {self.patience.deadline:g} s")
                return
            pause = self._rest(pause, bool(arrivals))

    def _mail(self, conversations: Conversations, open: Sequence[_Open], until: float) -> list[str]:
        """Sends what conversations have to say next."""
        parcels = []
        seconds = max(until - self.now(), self.patience.poll)
        for each in open:
            ask = each.ask
            known = (each.node, ask.data[:HEADER]) in self._explained
            each.explained = each.explained or not known
            kept = (conversations.store.raw(ask.client) or b"").decode()
            letter = messages.train(ask, conversations.run, kept, each.explained, seconds)
            self._tally.add(letter)
            parcels.append(Parcel(each.node, "train", letter, ask.round, seconds))
        return self.carrier.send(parcels) if parcels else []

    def _next(self, conversations: Conversations, each: _Open, arrival: Arrival) -> Reply | None:
        """Goes on with a conversation; None if there is more to be sent."""
        letter = arrival.letter
        if letter is None:
            return _fail(each, arrival.reason)
        self._tally.add(letter)
        form = (each.node, each.ask.data[:HEADER])
        if letter.kind == "explain" and not each.explained:
            self._explained.discard(form)
            return None
        try:
            answer = messages.read_answer(letter, conversations.run, each.ask)
        except WireError as problem:
            return _fail(each, str(problem))
        self._explained.add(form)
        try:
            each.ask = each.talk.send(answer)
        except StopIteration as end:
            reply: Reply = end.value
            return reply
        each.explained = False
        return None

    def _exchange(
        self, parcels: Sequence[Parcel], until: float, enough: Callable[[], bool] = bool
    ) -> Iterator[tuple[Parcel, Arrival]]:
        """One answer for each parcel, or the reason why there is none."""
        waiting: dict[str, Parcel] = {}
        for parcel, id in zip(parcels, self.carrier.send(parcels) if parcels else [], strict=True):
            if id:
                waiting[id] = parcel
            else:
                yield parcel, Arrival("", None, "it was not reached")
        pause = self.patience.poll
        while waiting:
            arrivals = self.carrier.collect(list(waiting))
            for arrival in arrivals:
                yield waiting.pop(arrival.id), arrival
            if self.now() >= until or (arrivals and enough()):
                break
            pause = self._rest(pause, bool(arrivals))
        for id, parcel in waiting.items():
            yield parcel, Arrival(id, None, "it did not answer in time")

    def _rest(self, pause: float, busy: bool) -> float:
        """Waits unless something came, longer each time; returns how long to wait next."""
        if busy:
            return self.patience.poll
        self.rest(pause)
        return max(self.patience.poll, min(2 * pause, SLOWEST))

    # what is written down ------------------------------------------------------------------------

    def _note(self, conversations: Conversations, number: int, client: int, reason: str) -> None:
        log.warning("round %d goes on without client %d: %s", number, client, reason)
        self._journal(conversations, {"round": number, "client": client, "reason": reason})

    def _journal(self, conversations: Conversations, line: Mapping[str, Any]) -> None:
        """What belongs to the transport and not to the run: `messages.jsonl` beside the log."""
        with (conversations.out / "messages.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _fail(each: _Open, reason: str, sent: bool = True) -> Reply:
    """Ends a conversation that cannot go on."""
    try:
        each.talk.send(Broke("network", reason, sent=sent))
    except StopIteration as end:
        reply: Reply = end.value
        return reply
    raise AssertionError("a conversation went on after it had failed")


def _spent(reply: Reply) -> Sequence[Entry]:
    """The ledger of a conversation that came to nothing."""
    return reply.event.traffic if reply.event is not None else reply.wasted
