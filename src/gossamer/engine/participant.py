"""The client's side of a conversation: bytes come in, bytes go out, wherever the client runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gossamer.accounting import (
    FLOPS,
    Accounting,
    Effort,
    Entry,
    FlopsModel,
    densities,
    density,
    paper_rows,
    paper_tensors,
)
from gossamer.core import Ctx, Key, Missing
from gossamer.data.federation import Federation
from gossamer.engine.client import Abandoned, AnyMethod, Stage, Trained, client_ctx, train
from gossamer.engine.replay import Capsule
from gossamer.task import Task
from gossamer.wire import Detail, Mode, Schema, UnknownMask, Written, decode, dump, held, write


@dataclass(frozen=True)
class Ask:
    """What a server sends to a client in a round."""

    round: int
    client: int
    schema: Schema
    """Of the message; how the client comes to know it is the transport's affair."""
    data: bytes


@dataclass(frozen=True)
class Account:
    """What a client did: all that the event log has of it and its reply does not tell."""

    examples: int
    steps: int
    density: float
    flops: int
    metrics: Mapping[str, float]
    up: tuple[Entry, ...]
    """Rows of the ledger of the reply."""


@dataclass(frozen=True)
class Done:
    """A client has trained. What lies below `account` is there in a simulation only."""

    data: bytes
    kept: bytes | None
    """Its state, or whatever stands for it where states stay with the clients."""
    account: Account
    schema: Schema | None = None
    """The client's own, to say what is wrong with a reply; none is read with it."""
    received: Any = None
    """The message as it was decoded."""


@dataclass(frozen=True)
class Broke:
    """A client could not do its part, or nobody knows whether it could."""

    stage: Stage
    reason: str
    cause: BaseException | None = None
    capsule: Capsule | None = None
    """What is needed to see it again."""
    sent: bool = True
    """Whether the last message was on its way at all, and is to be paid for."""


@dataclass(frozen=True)
class Lacks:
    """A client does not hold what it was taken to hold: the mask that a message builds on, or more.

    Where nothing can be sent again, it is the failure that it holds.
    """

    what: Literal["mask", "state"]
    failure: Broke


Answer: TypeAlias = Done | Lacks | Broke


@dataclass(frozen=True)
class Participant:
    """All that a client brings along, besides what it keeps."""

    method: AnyMethod
    federation: Federation
    key: Key
    rounds: int
    mode: Mode
    accounting: Accounting
    detail: Detail = "field"
    flops_model: FlopsModel = "passes"
    abandoned: Callable[[], bool] = lambda: False
    dry: bool = False

    def answer(self, task: Task, ask: Ask, kept: Callable[[], Any]) -> Answer:
        """Reads the message, trains and writes the reply; `kept` gets what the client kept."""
        stage: list[Stage] = ["decode"]
        local = received = None
        try:
            local = kept()
            known = held(local) if ask.schema.revises else {}
            received = decode(ask.data, ask.schema, self.mode, held=known)
            stage.append("data")
            ctx = client_ctx(self.key, task, self.federation, ask.client, ask.round, self.rounds)
            done = train(
                self.method,
                ctx,
                received,
                local,
                augment=self.federation.augment,
                abandoned=self.abandoned,
                at=stage.append,
                dry=self.dry,
            )
            stage.append("encode")
            schema = Schema.of(done.result.up)
            up = write(done.result.up, schema, self.mode, received, self.detail)
            account = self._account(ctx, done, up)
            stage.append("store")
            state = None if done.result.local is None else dump(done.result.local)
        except Abandoned:
            raise
        except Exception as cause:
            capsule = None
            if stage[-1] != "decode":
                seed = self.key.seed
                capsule = Capsule(ask.round, self.rounds, seed, ask.client, received, local)
            failure = Broke(stage[-1], one_line(cause), cause, capsule)
            match cause:
                case UnknownMask() if stage[-1] == "decode":
                    return Lacks("mask", failure)
                case Missing() if stage[-1] == "begin":
                    return Lacks("state", failure)
                case _:
                    return failure
        return Done(up.data, state, account, schema, received)

    def _account(self, ctx: Ctx, done: Trained, up: Written) -> Account:
        result, layout = done.result, ctx.task.layout
        effort = Effort(
            layout,
            densities(result.masks),
            done.examples,
            done.steps,
            done.per_epoch,
            densities(result.trained),
        )
        return Account(
            examples=done.examples,
            steps=done.steps,
            density=density(layout, result.masks),
            flops=round(FLOPS[self.flops_model](effort)),
            metrics=dict(result.metrics),
            up=tuple(rows(up, result.up, "up", self.accounting, self.detail)),
        )


def rows(
    message: Written,
    record: Any,
    direction: Literal["up", "down"],
    accounting: Accounting,
    detail: Detail,
    charged: float = 1.0,
) -> list[Entry]:
    """A message's rows of the ledger; a paper may charge it `charged` times."""
    paper: dict[str, float] = {}
    count = paper_rows if detail == "field" else paper_tensors
    for leaf, bits in count(record, accounting, message.schema):
        paper[leaf] = paper.get(leaf, 0) + charged * bits
    return [
        Entry(
            direction, message.message, row.leaf, row.sent, row.information, paper.get(row.leaf, 0)
        )
        for row in message.rows
    ]


def one_line(cause: BaseException) -> str:
    """An error as a line of the log has it."""
    return f"{type(cause).__name__}: {cause}".splitlines()[0]
