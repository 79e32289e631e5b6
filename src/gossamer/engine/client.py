"""One client's job: the batch loop that every method shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gossamer.core import Batch, Ctx, Examples, Job, Key, Method, Result
from gossamer.data.federation import Augment, Federation
from gossamer.task import Task

Stage = Literal["data", "decode", "begin", "step", "finish", "encode", "store", "wire", "network"]
AnyMethod = Method[Any, Any, Any, Any, Any]


class Abandoned(Exception):
    """The run was asked to stop at once; this client's work is dropped."""


class Elsewhere(Exception):
    """A client's error in one line, as another process told it."""


class ClientError(Exception):
    """A client's training raised: where, when, whose, and how to see it again."""

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
        if isinstance(self.cause, Elsewhere):
            return str(self.cause)
        return f"{type(self.cause).__name__}: {self.cause}".splitlines()[0]

    def __str__(self) -> str:
        text = f"client {self.client} failed in {self.stage} of round {self.round}: {self.reason}"
        return f"{text}; replay it with: {self.replay}" if self.replay else text


@dataclass(frozen=True)
class Trained:
    """What came of a client's job."""

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
    """Begin, step through the batches, finish; `at` is told which stage comes next.

    A dry client takes no step, but tells how many it would have taken.
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
        if abandoned():
            raise Abandoned
        work = method.step(ctx, work, batch)
        examples += len(batch.y)
        steps += 1
    at("finish")
    return Trained(method.finish(ctx, work), examples, steps, per_epoch)


def batches(ctx: Ctx, job: Job[Any], augment: Augment | None = None) -> Iterator[Batch]:
    """The client's mini-batches: a new order each epoch, the last batch of an epoch as it falls.

    A last batch of one example joins the batch before it where batch statistics need two.
    """
    data = ctx.own.train
    count = len(data)
    cuts = _cuts(ctx, job)
    ends = [*cuts[1:], count]
    steps = _steps(job.epochs, len(cuts))
    step = 0
    for epoch in range(math.ceil(steps / len(cuts))):
        shuffled = _shuffled(data, ctx.key.fold("epoch", epoch).numpy(), ctx.task.device)
        for start, end in zip(cuts, ends, strict=True):
            if step == steps:
                return
            key = ctx.key.fold("step", step)
            x = shuffled.x[start:end]
            if augment:
                x = augment(x, key.fold("augment"))
            yield Batch(x, shuffled.y[start:end], key, step, steps, epoch, job.epochs, len(cuts))
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


def _shuffled(data: Examples, draw: np.random.Generator, device: str) -> Examples:
    order = torch.from_numpy(draw.permutation(len(data)))
    return Examples(rows(data.x, order).to(device), data.y.index_select(0, order).to(device))


def rows(x: Tensor, order: Tensor) -> Tensor:
    """Chosen examples; images keep their channels innermost, where convolutions want them."""
    if x.dim() != 4:
        return x.index_select(0, order)
    return x.permute(0, 2, 3, 1).index_select(0, order).permute(0, 3, 1, 2)


def server_ctx(task: Task, key: Key, round: int, rounds: int, budgets: tuple[float, ...]) -> Ctx:
    """Where the server stands in a round."""
    own = key.fold("server", "round", round)
    return Ctx(task, round, rounds, own, key.fold("common"), budgets=budgets)


def client_ctx(
    key: Key, task: Task, federation: Federation, client: int, round: int, rounds: int
) -> Ctx:
    """Where a client stands in a round, with its data; an error if it has none to train on."""
    data = federation.client(client)
    if not len(data.train):
        raise ValueError(f"client {client} has no training examples")
    own = key.fold("round", round, "client", client)
    return Ctx(task, round, rounds, own, key.fold("common"), data)
