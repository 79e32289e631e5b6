"""The client's side of a run: it receives bytes, trains on its own data and replies with bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from gossamer.accounting import FLOPS, Effort, Entry, densities, density, ledger_rows
from gossamer.core import AnyMethod, Batch, Ctx, Job, Key, Missing, Result
from gossamer.data.federation import Augment, Federation
from gossamer.engine.privacy import own_noise
from gossamer.engine.run_record import Run
from gossamer.engine.sharing import Inbox, States
from gossamer.task import Task
from gossamer.trust.spec import LOCAL
from gossamer.wire import Schema, UnknownMask, Written, record_types, write

Stage = Literal[
    "data", "decode", "begin", "step", "finish", "encode", "store", "wire", "network", "claim"
]


class Stop:
    """A request to stop: the first one finishes the round, the second one abandons it."""

    def __init__(self) -> None:
        self._requests = 0

    def request(self) -> int:
        """Requests a stop, possibly again.

        Returns:
            The number of requests so far.
        """
        self._requests += 1
        return self._requests

    def after_round(self) -> bool:
        """Whether to stop at the end of the round."""
        return self._requests >= 1

    def at_once(self) -> bool:
        """Whether to abandon the round."""
        return self._requests >= 2


class Abandoned(Exception):
    """The run was asked to stop at once; this client's work is dropped."""


class TimeUp(Exception):
    """A client's time is up: it takes no more steps, and sends what it has."""


class RemoteError(Exception):
    """A client's error in another process, of which only one line is known."""


class ClientError(Exception):
    """A client failed; the message names the stage, the round, the client and how to replay it."""

    def __init__(self, stage: Stage, round: int, client: int, cause: BaseException) -> None:
        self.stage = stage
        self.round = round
        self.client = client
        self.cause = cause
        self.replay = ""
        super().__init__(stage, round, client)

    @property
    def reason(self) -> str:
        """The original error in one line."""
        if isinstance(self.cause, RemoteError):
            return str(self.cause)
        return one_line(self.cause)

    def __str__(self) -> str:
        text = f"client {self.client} failed in {self.stage} of round {self.round}: {self.reason}"
        return f"{text}; replay it with: {self.replay}" if self.replay else text


def one_line(cause: BaseException) -> str:
    """An error as one line of the log."""
    return f"{type(cause).__name__}: {cause}".splitlines()[0]


# messages ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What the server sends to a client in a round."""

    round: int
    client: int
    schema: Schema
    """Of the message; how the client learns it is up to the transport."""
    data: bytes
    steps: int | None = None
    """After which the client sends what it has; None: those of its job."""
    given_up: Callable[[], bool] = lambda: False
    """Asked before every step; it may raise `TimeUp`."""


@dataclass(frozen=True)
class Account:
    """What a client did: what the event log needs and the reply itself does not contain."""

    examples: int
    steps: int
    density: float
    flops: int
    metrics: Mapping[str, float]
    up: tuple[Entry, ...]
    """The reply's rows of the ledger."""


@dataclass(frozen=True)
class Completed:
    """A client has trained; `schema` and `received` are known in a simulation only."""

    data: bytes
    kept: bytes | None
    """Its state, or the state's fingerprint where states stay with the clients."""
    account: Account
    schema: Schema | None = None
    """The client's own, for error messages; replies are never read with it."""
    received: Any = None
    """The request as the client decoded it."""


@dataclass(frozen=True)
class Capsule:
    """All that a client's computation depends on, apart from its data."""

    round: int
    rounds: int
    seed: int
    client: int
    down: Any
    local: Any


@dataclass(frozen=True)
class Failed:
    """A client failed, or could not be reached."""

    stage: Stage
    reason: str
    cause: BaseException | None = None
    capsule: Capsule | None = None
    """What is needed to replay the client."""
    sent: bool = True
    """Whether the last request was sent, and so is charged."""


@dataclass(frozen=True)
class MissingState:
    """A client lacks what the server expects it to hold: the base of a mask, or its whole state."""

    what: Literal["mask", "state"]
    failure: Failed
    """What it amounts to if nothing can be sent again."""


Answer: TypeAlias = Completed | MissingState | Failed


# one client's part of a round --------------------------------------------------------------------


@dataclass(frozen=True)
class Participant:
    """Plays the part of any client of a run."""

    run: Run
    abandoned: Callable[[], bool] = lambda: False
    remembers: int = 0
    """Decoded messages to remember, where many clients are sent the same one."""
    inbox: Inbox = field(init=False)
    states: States = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inbox", Inbox(self.run.wire, self.remembers))
        object.__setattr__(self, "states", States(record_types(self.run.method)))

    def answer(self, task: Task, request: Request, kept: Callable[[], Any]) -> Answer:
        """Decodes the request, trains and encodes the reply.

        Args:
            task: The task, or a copy of it that belongs to this thread.
            request: What the server sent.
            kept: Returns the state that the client kept, or None.

        Returns:
            The reply, or what went wrong; only `Abandoned` is raised.
        """
        run = self.run
        stage: list[Stage] = ["decode"]
        local = received = None
        try:
            local = kept()
            message = self.inbox.read(request.data, request.schema, local)
            received = message.record
            stage.append("data")
            where = (request.client, request.round, run.rounds)
            ctx = client_ctx(run.key, task, run.federation, *where)
            done = train(
                Shortened(run.method, request.steps) if request.steps else run.method,
                ctx,
                received,
                local,
                augment=run.federation.augment,
                abandoned=lambda: request.given_up() or self.abandoned(),
                at=stage.append,
                dry=run.dry,
            )
            message.check()
            stage.append("encode")
            reply = done.result.up
            if run.dp.startswith(LOCAL):
                reply = own_noise(run, ctx, request.client, received, reply)
            schema = Schema.of(reply)
            up = write(reply, schema, run.wire, received, run.options.ledger)
            account = self._account(ctx, done, up, reply)
            stage.append("store")
            left = done.result.local
            state = None if left is None else self.states.write(left)
        except Abandoned:
            raise
        except Exception as cause:
            capsule = None
            if stage[-1] != "decode":
                seed, number = run.key.seed, request.round
                capsule = Capsule(number, run.rounds, seed, request.client, received, local)
            failure = Failed(stage[-1], one_line(cause), cause, capsule)
            match cause:
                case UnknownMask() if stage[-1] == "decode":
                    return MissingState("mask", failure)
                case Missing() if stage[-1] == "begin":
                    return MissingState("state", failure)
                case _:
                    return failure
        return Completed(up.data, state, account, schema, received)

    def _account(self, ctx: Ctx, done: Trained, up: Written, reply: Any) -> Account:
        result, layout, options = done.result, ctx.task.layout, self.run.options
        counts = (done.examples, done.steps, done.per_epoch)
        more = (densities(result.trained), result.searched)
        effort = Effort(layout, densities(result.masks), *counts, *more)
        return Account(
            examples=done.examples,
            steps=done.steps,
            density=density(layout, result.masks),
            flops=round(FLOPS[options.flops_model](effort)),
            metrics={} if self.run.dp else dict(result.metrics),  # they are not covered by noise
            up=tuple(ledger_rows(up, reply, "up", self.run.accounting, options.ledger)),
        )


@dataclass(frozen=True)
class Shortened:
    """A method whose client trains for fewer steps, because it knows that its time is short."""

    method: Any
    steps: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def begin(self, ctx: Ctx, down: Any, local: Any) -> Job[Any]:
        job: Job[Any] = self.method.begin(ctx, down, local)
        return replace(job, epochs=min(job.epochs, self.steps / len(_cuts(ctx, job))))


@dataclass(frozen=True)
class Trained:
    """The outcome of a client's job."""

    result: Result[Any, Any]
    examples: int
    steps: int
    per_epoch: int
    """Steps in one pass over the client's data."""


def train(
    method: AnyMethod,
    ctx: Ctx,
    down: Any,
    local: Any,
    *,
    augment: Augment | None = None,
    abandoned: Callable[[], bool] = lambda: False,
    at: Callable[[Stage], None] = lambda stage: None,
    dry: bool = False,
) -> Trained:
    """Begins, steps through the batches and finishes.

    Args:
        method: The method.
        ctx: Where the client stands, with its data.
        down: The request's record.
        local: What the client kept from earlier rounds, or None.
        augment: Changes a batch of inputs.
        abandoned: Whether to give up; asked before every step. It may raise `TimeUp`, and the
            client finishes with the steps that it has taken.
        at: Is called with the stage that comes next.
        dry: Whether to skip the steps and only count them.

    Raises:
        Abandoned: `abandoned` returned True.
    """
    at("begin")
    job = method.begin(ctx, down, local)
    work = job.work
    examples = steps = 0
    per_epoch = len(_cuts(ctx, job))
    at("step")
    if dry:
        steps = _steps(job.epochs, per_epoch)
        examples = round(len(ctx.own.train) * steps / per_epoch)
        return Trained(method.finish(ctx, work), examples, steps, per_epoch)
    for batch in batches(ctx, job, augment):
        try:
            if abandoned():
                raise Abandoned
        except TimeUp:
            break
        work = method.step(ctx, work, batch)
        examples += batch.y.shape[0]
        steps += 1
    at("finish")
    return Trained(method.finish(ctx, work), examples, steps, per_epoch)


def batches(ctx: Ctx, job: Job[Any], augment: Augment | None = None) -> Iterator[Batch]:
    """The client's mini-batches, reshuffled every epoch; the last one may be smaller.

    With batch normalisation, a last batch of one example is joined to the batch before it.
    """
    data, device = ctx.own.train, ctx.task.device
    count = len(data)
    cuts = _cuts(ctx, job)
    sizes = [end - start for start, end in pairwise((*cuts, count))]
    steps = _steps(job.epochs, len(cuts))
    step = 0
    for epoch in range(math.ceil(steps / len(cuts))):
        shuffled = data.take(ctx.key.fold("epoch", epoch).numpy().permutation(count))
        inputs = shuffled.x.to(device).split_with_sizes(sizes)
        labels = shuffled.y.to(device).split_with_sizes(sizes)
        for x, y in zip(inputs, labels, strict=True):
            if step == steps:
                return
            key = ctx.key.fold("step", step)
            if augment:
                x = augment(x, key.fold("augment"))
            yield Batch(x, y, key, step, steps, epoch, job.epochs, len(cuts), job.batch)
            step += 1


def _steps(epochs: float, per_epoch: int) -> int:
    """Steps of a job: at least one, unless it is for no epochs at all."""
    return max(1, math.ceil(epochs * per_epoch - 1e-9)) if epochs else 0


def _cuts(ctx: Ctx, job: Job[Any]) -> list[int]:
    """Where the batches of an epoch begin."""
    count = len(ctx.own.train)
    cuts = list(range(0, count, job.batch))
    if ctx.task.layout.batch_norm and len(cuts) > 1 and count - cuts[-1] == 1:
        cuts.pop()
    return cuts


def server_ctx(
    task: Task, key: Key, round: int, rounds: int, budgets: tuple[float, ...], pool: int = 0
) -> Ctx:
    """Where the server stands in a round; `merge` needs to know the size of the pool."""
    own = key.fold("server", "round", round)
    return Ctx(task, round, rounds, own, key.fold("common"), budgets=budgets, pool=pool)


def client_ctx(
    key: Key, task: Task, federation: Federation, client: int, round: int, rounds: int
) -> Ctx:
    """Where a client stands in a round, with its data; an error if it has none to train on."""
    data = federation.client(client)
    if not len(data.train):
        raise ValueError(f"client {client} has no training examples")
    own = key.fold("round", round, "client", client)
    return Ctx(task, round, rounds, own, key.fold("common"), data)
