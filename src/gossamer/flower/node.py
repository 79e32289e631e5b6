"""A node: it hosts one or more clients and answers messages; nothing here knows the network."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer.engine import replay
from gossamer.engine.client import (
    Answer,
    Completed,
    Failed,
    MissingState,
    Participant,
    Request,
    TimeUp,
    server_ctx,
)
from gossamer.engine.evaluate import Evaluator, Figures
from gossamer.engine.processor import one_torch_thread
from gossamer.engine.run_record import Run
from gossamer.engine.workers import Workers
from gossamer.flower import journal, messages
from gossamer.flower.messages import Message, NodeInfo
from gossamer.flower.node_state import NodeState
from gossamer.flower.remote_data import NodeData, RemoteData
from gossamer.wire import HEADER, Schema, WireError, fingerprint, load, record_types

LONGEST_NOTICE = 1000
"""Characters of what a server may say to a node's owner."""
IN_TIME = 0.8
"""The part of a deadline in which a client may train; the rest is for its reply."""
SHOWN = 3
"""Metrics of a client that its node shows."""


def agreement(run: Run) -> str:
    """A hash of everything that server and node must agree on to compute the same bits."""
    shapes = {name: leaf.shape for name, leaf in run.task.layout.leaves.items()}
    counted = (run.options.flops_model, run.options.ledger, run.options.select)
    parts = (run.name, run.settings, run.rounds, run.key.seed, str(run.wire), run.dp)
    at_nodes = isinstance(run.federation, RemoteData | NodeData)
    known = [run.task.fingerprints] if run.task.fingerprints else []
    text = json.dumps([*parts, *counted, shapes, at_nodes, *known], default=str)
    return fingerprint(text.encode())


def _told(number: int, client: int, answer: Answer) -> str:
    """What a client did in a round, in one line."""
    match answer:
        case Completed(account=account):
            figures = [f"{name} {value:.4g}" for name, value in sorted(account.metrics.items())]
            did = f"trained on {account.examples} examples"
            return f"round {number}: client {client} " + ", ".join([did, *figures[:SHOWN]])
        case MissingState():
            return f"round {number}: client {client} lacks {answer.what}, and asked for it"
        case Failed():
            return f"round {number}: client {client} failed in {answer.stage}: {answer.reason}"


class Node:
    """Answers a server's messages for some clients, whose states are on the node's disk."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        clients: Sequence[int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._run = run
        self._clients = list(clients)
        self._folder = folder
        self._state = NodeState(folder)
        self._task = run.task.copy()
        self._types = record_types(run.method)
        self._participant = Participant(run)

    def answer(self, message: Message) -> Message:
        """The answer to a message.

        Raises:
            WireError: The message cannot be answered by this node.
        """
        with one_torch_thread():
            match message.kind:
                case "register":
                    return self._register()
                case "train":
                    return self._train(message)
                case "evaluate":
                    return self._evaluate(message)
                case "notice":
                    journal.note(
                        self._folder,
                        messages.plain(str(message.head.get("text", ""))[:LONGEST_NOTICE]),
                        over=bool(message.head.get("over")),
                    )
                    return messages.noticed()
        raise WireError(f"a node cannot answer a message of the kind {message.kind[:80]!r}")

    def _register(self) -> Message:
        sizes = {client.id: client.examples for client in self._run.federation.pool}
        hosted = {client: sizes[client] for client in self._clients if client in sizes}
        return messages.registered(NodeInfo(hosted, agreement(self._run)))

    def _train(self, message: Message) -> Message:
        head = message.head
        run, number, client = str(head["run"]), int(head["round"]), int(head["client"])
        if client not in self._clients:
            raise WireError(f"client {client} is not at this node, which has {self._clients}")
        schema = self._schema(message)
        if schema is None:
            return messages.explain()
        state = self._state.get(run, client, str(head["kept"]))
        began = str(head["kept"]) if state is not None else ""
        request = Request(number, client, schema, message.body, given_up=self._timed(message))
        answer = self._participant.answer(self._task, request, lambda: self._loaded(state))
        journal.note(self._folder, _told(number, client, answer))
        return messages.answered(message, self._kept(run, request, answer, began), began)

    def _timed(self, message: Message) -> Callable[[], bool]:
        """Ends training after the first step that takes too long, if the server takes parts."""
        seconds = float(message.head["seconds"]) if message.head.get("partial") else math.inf
        until, taken = self._now() + IN_TIME * seconds, itertools.count()

        def given_up() -> bool:
            if next(taken) and self._now() > until:
                raise TimeUp
            return False

        return given_up

    def _kept(self, run: str, request: Request, answer: Answer, began: str) -> Answer:
        """The answer as it leaves the node: with fingerprints in place of states."""
        match answer:
            case Completed() if answer.kept is not None:
                place = (run, request.client, request.round)
                name = self._state.put(*place, answer.kept, began)
                return replace(answer, kept=name.encode())
            case Failed(capsule=capsule) | MissingState(failure=Failed(capsule=capsule)) if capsule:
                replay.write(self._folder / run, capsule, run)
        return answer

    def _evaluate(self, message: Message) -> Message:
        run, head = self._run, message.head
        label, number = str(head["run"]), int(head["round"])
        budgets = tuple(float(budget) for budget in head["budgets"])
        ctx = server_ctx(self._task, run.key, number, run.rounds, budgets)
        server = load(message.body, self._types)
        evaluator = Evaluator(run, Workers(self._task, 1))
        figures: dict[int, Figures | None] = {}
        for client, name in head["kept"]:
            if (state := self._state.get(label, int(client), str(name))) is not None:
                local = self._loaded(state)
                figures[int(client)] = evaluator.personal(ctx, server, int(client), local)
        return messages.measured(figures)

    def _schema(self, message: Message) -> Schema | None:
        """Of a message's body: sent along or remembered; None if it must be asked for."""
        name = message.body[1:HEADER].hex()
        schema = messages.read_schema(message, self._types)
        if schema is not None:
            self._state.learn(name, json.dumps(schema.plain()).encode())
            return schema
        text = self._state.schema(name)
        if text is None:
            return None
        try:
            return Schema.read(json.loads(text), self._types)
        except ValueError:  # it is damaged, or of another version of the method
            self._state.forget(name)
            return None

    def _loaded(self, state: bytes | None) -> Any:
        return None if state is None else load(state, self._types)
