"""Batched messages: many clients' parts of a round at once, for the workers of a simulation.

A client's state travels with its request and returns with its answer, so that any worker can play
any client and none keeps state. Equal parts of a batch travel once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from gossamer.core import AnyMethod, Ctx
from gossamer.engine import replay
from gossamer.engine.client import (
    Abandoned,
    Answer,
    Completed,
    Failed,
    MissingState,
    Participant,
    Request,
)
from gossamer.engine.conversation import Conversation, Conversations, Visit
from gossamer.engine.expected import Reply
from gossamer.engine.processor import one_torch_thread
from gossamer.engine.run_record import Run
from gossamer.flower import messages
from gossamer.flower.messages import Message
from gossamer.wire import Schema, WireError, dump, fingerprint, load, record_types

Item: TypeAlias = tuple[Mapping[str, Any], Mapping[str, bytes]]
"""A small head for JSON, and named bytes."""
Batched: TypeAlias = Sequence[bytes]
"""Heads of all items, then every distinct part."""


class WorkerPool(Protocol):
    """Carries batches to workers."""

    def workers(self) -> int:
        """How many batches are processed at the same time."""
        ...

    def run(self, batches: Sequence[Batched]) -> Iterator[tuple[int, Batched | str] | None]:
        """Yields indices of batches with their answers or a reason; None while waiting."""
        ...


@dataclass(frozen=True)
class ClientTask:
    """One client's part of a round."""

    request: Request
    kept: bytes | None
    """The client's state."""


@dataclass
class _Open:
    """A conversation in progress."""

    visit: Visit
    conversation: Conversation
    request: Request


@dataclass(frozen=True)
class BatchedTransport:
    """The engine's transport to workers that play clients; the server keeps the states."""

    pool: WorkerPool

    def hold(
        self, conversations: Conversations, ctx: Ctx, state: Any, visits: Sequence[Visit]
    ) -> list[Reply]:
        """Holds all conversations in parallel; follow-up requests wait until all have answered."""
        replies: list[Reply] = []
        open: list[_Open] = []
        for visit in visits:
            conversation = conversations.begin(ctx.round, visit)
            try:
                open.append(_Open(visit, conversation, conversation.send(None)))
            except StopIteration as end:
                replies.append(end.value)
        while open:
            answers = self._answers(conversations, open)
            left = []
            for each in open:
                try:
                    each.request = each.conversation.send(answers[each.request.client])
                    left.append(each)
                except StopIteration as end:
                    replies.append(end.value)
            open = left
        return replies

    def receipt(self, kept: bytes) -> bytes:
        """The fingerprint of a client's state."""
        return fingerprint(kept).encode()

    def figures(
        self, conversations: Conversations, ctx: Ctx, state: Any, clients: Sequence[int]
    ) -> None:
        """None: the server has the states."""

    def _answers(self, conversations: Conversations, open: Sequence[_Open]) -> dict[int, Answer]:
        run = conversations.run
        dealt = self._deal(conversations, open)
        by_client: dict[int, Answer] = {}
        for came in self.pool.run([asked(run.label, each) for each in dealt]):
            if conversations.stop.at_once():
                raise Abandoned
            if came is None:
                continue
            place, batch = came
            if not isinstance(batch, str):
                try:
                    answers = read(batch, run.label, dealt[place], run.method)
                except WireError as problem:
                    batch = str(problem)
            if isinstance(batch, str):
                answers = [Failed("network", batch) for _ in dealt[place]]
            for task, answer in zip(dealt[place], answers, strict=True):
                by_client[task.request.client] = answer
        return by_client

    def _deal(self, conversations: Conversations, open: Sequence[_Open]) -> list[list[ClientTask]]:
        """Tasks for every worker, the largest clients first, so that all end together."""
        dealt: list[list[ClientTask]] = [[] for _ in range(self.pool.workers())]
        loads = [0] * len(dealt)
        sizes = {each.request.client: each.visit.client.examples for each in open}
        for each in sorted(
            open, key=lambda each: (-sizes[each.request.client], each.request.client)
        ):
            least = loads.index(min(loads))
            kept = conversations.store.raw(each.request.client)
            dealt[least].append(ClientTask(each.request, kept))
            loads[least] += sizes[each.request.client] + 1
        return [tasks for tasks in dealt if tasks]


def pack(items: Iterable[Item]) -> list[bytes]:
    """Packs items: heads first, then every distinct part once."""
    places: dict[bytes, int] = {}
    heads = []
    for head, parts in items:
        at = {name: places.setdefault(part, len(places)) for name, part in parts.items()}
        heads.append([head, at])
    return [json.dumps(heads).encode(), *places]


def unpack(batch: Batched) -> list[Item]:
    """The items that `pack` packed."""
    heads, *parts = batch
    return [
        (head, {name: parts[place] for name, place in at.items()}) for head, at in json.loads(heads)
    ]


# the server's side -------------------------------------------------------------------------------


def asked(run: str, tasks: Iterable[ClientTask]) -> list[bytes]:
    """What a worker is sent."""
    items = []
    for task in tasks:
        request = task.request
        head = {"run": run, "round": request.round, "client": request.client}
        parts = {"schema": json.dumps(request.schema.plain()).encode(), "body": request.data}
        if task.kept is not None:
            parts["kept"] = task.kept
        items.append((head, parts))
    return pack(items)


def read(batch: Batched, run: str, tasks: Sequence[ClientTask], method: AnyMethod) -> list[Answer]:
    """The answers to tasks, in the same order; anything else is a `WireError`."""
    items = unpack(batch)
    if len(items) != len(tasks):
        raise WireError(f"{len(items)} answers came for {len(tasks)} clients")
    return [
        _answer(head, parts, run, task.request, method)
        for (head, parts), task in zip(items, tasks, strict=True)
    ]


def _answer(
    head: Mapping[str, Any],
    parts: Mapping[str, bytes],
    run: str,
    request: Request,
    method: AnyMethod,
) -> Answer:
    answer = messages.read_answer(Message(head, parts.get("body", b"")), run, request)
    capsule = replay.unpack(parts["capsule"], method) if "capsule" in parts else None
    match answer:
        case Completed():
            return replace(answer, kept=parts.get("kept"))
        case MissingState():
            return replace(answer, failure=replace(answer.failure, capsule=capsule))
        case Failed():
            return replace(answer, capsule=capsule)


# a worker's side ---------------------------------------------------------------------------------


class ClientWorker:
    """Plays any client of a run."""

    def __init__(self, run: Run, abandoned: Callable[[], bool] = lambda: False) -> None:
        self._task = run.task.copy()
        self._types = record_types(run.method)
        self._participant = Participant(run, abandoned)
        self._schema = lru_cache(64)(self._read_schema)

    def work(self, batch: Batched) -> list[bytes]:
        """Plays the clients of a batch, one after the other."""
        with one_torch_thread():
            return pack([self._played(head, parts) for head, parts in unpack(batch)])

    def _played(self, head: Mapping[str, Any], parts: Mapping[str, bytes]) -> Item:
        schema, kept = self._schema(parts["schema"]), parts.get("kept")
        request = Request(int(head["round"]), int(head["client"]), schema, parts["body"])
        answer = self._participant.answer(
            self._task, request, lambda: None if kept is None else load(kept, self._types)
        )
        answered: dict[str, bytes] = {}
        match answer:
            case Completed():
                answered["body"] = answer.data
                if answer.kept is not None:
                    answered["kept"] = answer.kept
                answer = replace(answer, kept=None)
            case Failed(capsule=capsule) | MissingState(failure=Failed(capsule=capsule)) if capsule:
                answered["capsule"] = dump(capsule)
        return messages.answered(Message(head), answer, "").head, answered

    def _read_schema(self, text: bytes) -> Schema:
        return Schema.read(json.loads(text), self._types)
