"""Many clients' parts of a round at once: what a worker of a simulation is given and gives back.

Here a client's state comes along with what it is asked, and goes back with its answer, so that any
worker can play any client and none has to remember one. Equal parts of a bundle travel once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from gossamer.core import Ctx
from gossamer.engine import replay
from gossamer.engine.client import Abandoned, AnyMethod
from gossamer.engine.conversation import Conversations, Reply, Talk
from gossamer.engine.participant import Answer, Ask, Broke, Done, Lacks
from gossamer.engine.transport import Visit
from gossamer.engine.workers import one_torch_thread
from gossamer.flower import messages
from gossamer.flower.messages import Letter
from gossamer.flower.node import Setup
from gossamer.wire import Schema, WireError, dump, fingerprint, load, record_types

Item: TypeAlias = tuple[Mapping[str, Any], Mapping[str, bytes]]
"""A small head that JSON can say, and named bytes."""


Bundle: TypeAlias = Sequence[bytes]


class Errands(Protocol):
    """Takes bundles to workers."""

    def workers(self) -> int:
        """How many bundles are worked on at the same time."""
        ...

    def run(self, bundles: Sequence[Bundle]) -> Iterator[tuple[int, Bundle | str] | None]:
        """Places of bundles with their answers, or why there is none; None while none comes."""
        ...


@dataclass(frozen=True)
class Errand:
    """What a worker is to do for one client."""

    ask: Ask
    kept: bytes | None
    """The client's state."""


@dataclass
class _Open:
    """A conversation that goes on."""

    visit: Visit
    talk: Talk
    ask: Ask


@dataclass(frozen=True)
class Crowd:
    """The engine's transport to workers that play clients; the server has the states."""

    errands: Errands

    def hold(
        self, conversations: Conversations, ctx: Ctx, state: Any, visits: Sequence[Visit]
    ) -> list[Reply]:
        """Everybody at once; who asks for more is answered when all have answered."""
        replies: list[Reply] = []
        open: list[_Open] = []
        for visit in visits:
            talk = visit.begin(conversations, ctx.round)
            try:
                open.append(_Open(visit, talk, talk.send(None)))
            except StopIteration as end:
                replies.append(end.value)
        while open:
            answers = self._answers(conversations, open)
            left = []
            for each in open:
                try:
                    each.ask = each.talk.send(answers[each.ask.client])
                    left.append(each)
                except StopIteration as end:
                    replies.append(end.value)
            open = left
        return replies

    def receipt(self, kept: bytes) -> bytes:
        """As with threads."""
        return fingerprint(kept).encode()

    def figures(
        self, conversations: Conversations, ctx: Ctx, state: Any, clients: Sequence[int]
    ) -> None:
        """As with threads, the server evaluates all models itself."""

    def _answers(self, conversations: Conversations, open: Sequence[_Open]) -> dict[int, Answer]:
        run, method = conversations.run, conversations.method
        dealt = self._deal(conversations, open)
        found: dict[int, Answer] = {}
        for came in self.errands.run([asked(run, each) for each in dealt]):
            if conversations.stop.at_once():
                raise Abandoned
            if came is None:
                continue
            place, bundle = came
            if not isinstance(bundle, str):
                try:
                    answers = read(bundle, run, dealt[place], method)
                except WireError as problem:
                    bundle = str(problem)
            if isinstance(bundle, str):
                answers = [Broke("network", bundle) for _ in dealt[place]]
            for errand, answer in zip(dealt[place], answers, strict=True):
                found[errand.ask.client] = answer
        return found

    def _deal(self, conversations: Conversations, open: Sequence[_Open]) -> list[list[Errand]]:
        """Errands for every worker, the largest clients first, so that all end together."""
        dealt: list[list[Errand]] = [[] for _ in range(self.errands.workers())]
        loads = [0] * len(dealt)
        sizes = {each.ask.client: each.visit.client.examples for each in open}
        for each in sorted(open, key=lambda each: (-sizes[each.ask.client], each.ask.client)):
            least = loads.index(min(loads))
            kept = conversations.store.raw(each.ask.client)
            dealt[least].append(Errand(each.ask, kept))
            loads[least] += sizes[each.ask.client] + 1
        return [errands for errands in dealt if errands]


def pack(items: Iterable[Item]) -> list[bytes]:
    """Heads first, then every part that any of them has, once."""
    places: dict[bytes, int] = {}
    heads = []
    for head, parts in items:
        at = {name: places.setdefault(part, len(places)) for name, part in parts.items()}
        heads.append([head, at])
    return [json.dumps(heads).encode(), *places]


def unpack(bundle: Bundle) -> list[Item]:
    """The items that were packed."""
    heads, *parts = bundle
    return [
        (head, {name: parts[place] for name, place in at.items()}) for head, at in json.loads(heads)
    ]


# the server's side -------------------------------------------------------------------------------


def asked(run: str, errands: Iterable[Errand]) -> list[bytes]:
    """What a worker is sent."""
    items = []
    for errand in errands:
        ask = errand.ask
        head = {"run": run, "round": ask.round, "client": ask.client}
        parts = {"schema": json.dumps(ask.schema.plain()).encode(), "body": ask.data}
        if errand.kept is not None:
            parts["kept"] = errand.kept
        items.append((head, parts))
    return pack(items)


def read(bundle: Bundle, run: str, errands: Sequence[Errand], method: AnyMethod) -> list[Answer]:
    """The answers to errands, in their order."""
    items = unpack(bundle)
    if len(items) != len(errands):
        raise WireError(f"{len(items)} answers came for {len(errands)} clients")
    return [
        _answer(head, parts, run, errand.ask, method)
        for (head, parts), errand in zip(items, errands, strict=True)
    ]


def _answer(
    head: Mapping[str, Any], parts: Mapping[str, bytes], run: str, ask: Ask, method: AnyMethod
) -> Answer:
    answer = messages.read_answer(Letter(head, parts.get("body", b"")), run, ask)
    capsule = replay.unpack(parts["capsule"], method) if "capsule" in parts else None
    match answer:
        case Done():
            return replace(answer, kept=parts.get("kept"))
        case Lacks():
            return replace(answer, failure=replace(answer.failure, capsule=capsule))
        case Broke():
            return replace(answer, capsule=capsule)


# a worker's side ---------------------------------------------------------------------------------


class Bench:
    """A place where any client can be played."""

    def __init__(self, setup: Setup, abandoned: Callable[[], bool] = lambda: False) -> None:
        self._task = setup.task.copy()
        self._types = record_types(setup.method)
        self._participant = replace(setup.participant(), abandoned=abandoned)
        self._schema = lru_cache(64)(self._read_schema)

    def work(self, bundle: Bundle) -> list[bytes]:
        """Plays one client after the other."""
        with one_torch_thread():
            return pack([self._played(head, parts) for head, parts in unpack(bundle)])

    def _played(self, head: Mapping[str, Any], parts: Mapping[str, bytes]) -> Item:
        schema, kept = self._schema(parts["schema"]), parts.get("kept")
        ask = Ask(int(head["round"]), int(head["client"]), schema, parts["body"])
        answer = self._participant.answer(
            self._task, ask, lambda: None if kept is None else load(kept, self._types)
        )
        found: dict[str, bytes] = {}
        match answer:
            case Done():
                found["body"] = answer.data
                if answer.kept is not None:
                    found["kept"] = answer.kept
                answer = replace(answer, kept=None)
            case Broke(capsule=capsule) | Lacks(failure=Broke(capsule=capsule)) if capsule:
                found["capsule"] = dump(capsule)
        return messages.answered(Letter(head), answer, "").head, found

    def _read_schema(self, text: bytes) -> Schema:
        return Schema.read(json.loads(text), self._types)
