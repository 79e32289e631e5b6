"""A node: it stands for one client or several, and answers letters; no network is known here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gossamer.accounting import Accounting
from gossamer.core import Ctx, Key
from gossamer.data.federation import Federation
from gossamer.engine import replay
from gossamer.engine.client import AnyMethod
from gossamer.engine.evaluate import Evaluator, Figures
from gossamer.engine.options import Options
from gossamer.engine.participant import Answer, Ask, Broke, Done, Lacks, Participant
from gossamer.engine.summary import plain_settings
from gossamer.engine.workers import Workers, one_torch_thread
from gossamer.flower import messages
from gossamer.flower.messages import Here, Letter
from gossamer.flower.node_state import Shelf
from gossamer.flower.remote_data import Distant, Own
from gossamer.task import Task
from gossamer.wire import HEADER, Mode, Schema, WireError, fingerprint, load, record_types


@dataclass(frozen=True)
class Setup:
    """What server and nodes build alike, each for itself, before they meet."""

    method: AnyMethod
    task: Task
    federation: Federation
    rounds: int
    seed: int
    mode: Mode
    options: Options
    name: str
    text: str = ""
    """The configuration, for whoever reads of the run."""

    def agreement(self) -> str:
        """A hash of all that must be the same on both sides for their bits to be."""
        shapes = {name: leaf.shape for name, leaf in self.task.layout.leaves.items()}
        counted = (self.options.flops_model, self.options.ledger, self.options.select)
        what = (self.name, plain_settings(self.method), self.rounds, self.seed, str(self.mode))
        own = isinstance(self.federation, Distant | Own)
        return fingerprint(json.dumps([*what, *counted, shapes, own], default=str).encode())

    def participant(self) -> Participant:
        """What plays the part of any client."""
        return Participant(
            self.method,
            self.federation,
            Key(self.seed),
            self.rounds,
            self.mode,
            getattr(self.method, "accounting", Accounting()),
            self.options.ledger,
            self.options.flops_model,
        )


class Node:
    """Answers the letters of a server for some clients, whose states are on its shelf."""

    def __init__(self, setup: Setup, folder: Path, clients: Sequence[int]) -> None:
        self._setup = setup
        self._clients = list(clients)
        self._folder = folder
        self._shelf = Shelf(folder)
        self._task = setup.task.copy()
        self._types = record_types(setup.method)
        self._participant = setup.participant()

    def answer(self, letter: Letter) -> Letter:
        """The one thing that a node does."""
        with one_torch_thread():
            match letter.kind:
                case "hello":
                    return self._here()
                case "train":
                    return self._train(letter)
                case "evaluate":
                    return self._evaluate(letter)
        raise WireError(f"a letter of the kind {letter.kind[:80]!r} is not known here")

    def _here(self) -> Letter:
        sizes = {client.id: client.examples for client in self._setup.federation.pool}
        found = {client: sizes[client] for client in self._clients if client in sizes}
        return messages.here(Here(found, self._setup.agreement()))

    def _train(self, letter: Letter) -> Letter:
        head = letter.head
        run, number, client = str(head["run"]), int(head["round"]), int(head["client"])
        if client not in self._clients:
            raise WireError(f"client {client} is not at this node, which has {self._clients}")
        schema = self._schema(letter)
        if schema is None:
            return messages.explain()
        state = self._shelf.get(run, client, str(head["kept"]))
        began = str(head["kept"]) if state is not None else ""
        ask = Ask(number, client, schema, letter.body)
        answer = self._participant.answer(self._task, ask, lambda: self._loaded(state))
        return messages.answered(letter, self._kept(run, client, answer, began), began)

    def _kept(self, run: str, client: int, answer: Answer, began: str) -> Answer:
        """The answer as it may leave the node: fingerprints in place of states."""
        match answer:
            case Done() if answer.kept is not None:
                name = self._shelf.put(run, client, answer.kept, began)
                return replace(answer, kept=name.encode())
            case Broke(capsule=capsule) | Lacks(failure=Broke(capsule=capsule)) if capsule:
                replay.write(self._folder / run, capsule)
        return answer

    def _evaluate(self, letter: Letter) -> Letter:
        setup, head = self._setup, letter.head
        run, number = str(head["run"]), int(head["round"])
        key = Key(setup.seed)
        ctx = Ctx(
            self._task,
            number,
            setup.rounds,
            key.fold("server", "round", number),
            key.fold("common"),
            budgets=tuple(float(budget) for budget in head["budgets"]),
        )
        server = load(letter.body, self._types)
        workers = Workers(self._task, 1)
        evaluator = Evaluator(setup.method, setup.federation, workers, setup.options)
        found: dict[int, Figures | None] = {}
        for client, name in head["kept"]:
            if (state := self._shelf.get(run, int(client), str(name))) is not None:
                local = self._loaded(state)
                found[int(client)] = evaluator.personal(ctx, server, int(client), local)
        return messages.measured(found)

    def _schema(self, letter: Letter) -> Schema | None:
        """Of the message in a letter: it came along, or is remembered, or must be asked for."""
        name = letter.body[1:HEADER].hex()
        found = messages.read_schema(letter, self._types)
        if found is not None:
            self._shelf.learn(name, json.dumps(found.plain()).encode())
            return found
        text = self._shelf.schema(name)
        if text is None:
            return None
        try:
            return Schema.read(json.loads(text), self._types)
        except ValueError:  # it is damaged, or of another version of the method
            self._shelf.forget(name)
            return None

    def _loaded(self, state: bytes | None) -> Any:
        return None if state is None else load(state, self._types)
