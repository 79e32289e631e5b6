"""Sub-models by budget: a client with a budget of 0.25 trains a quarter of each layer's units.

Clients train the smaller model itself, not a masked one. The server averages every number over the
clients whose sub-models have it; what nobody has stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from gossamer import merge, sparsity
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Up
from gossamer.methods.parts.sparse_model import BatchNorm
from gossamer.optim import Training
from gossamer.submodels import Cut, trace
from gossamer.submodels.cut import Place
from gossamer.task import Task
from gossamer.task.task import Loss


@dataclass(frozen=True)
class Down:
    """A sub-model, and the share of units that it has."""

    params: Params
    width: float


@dataclass
class Work:
    """A sub-model in training."""

    task: Task
    cut: Cut
    width: float
    inner: dense_model.Work
    scale: dict[str, float]
    """By which tensors are multiplied in training."""


Choice = Callable[[float], Cut]
"""The sub-model of a width."""


def cut(task: Task, width: float, start: int = 0) -> Cut:
    """The sub-model with a share of each layer's units, counted from `start` and around the end.

    Layers whose outputs are added share their units; one is removed only if all of them drop it.
    """
    structure = trace(task)
    keep = {}
    for name, count in structure.units.items():
        flags = torch.zeros(count, dtype=torch.bool)
        flags[(torch.arange(units(count, width)) + start) % count] = True
        keep[name] = flags
    return structure.cut(keep)


def units(count: int, width: float) -> int:
    """How many of a layer's units a width is, rounded up."""
    return math.ceil(Fraction(repr(width)) * count)


def check(ctx: Ctx, whole: bool) -> None:
    """Rejects a model that cannot be cut for the pool's budgets.

    Args:
        ctx: the server's.
        whole: whether somebody must be able to train all units.

    Raises:
        ValueError: the message says what to change.
    """
    structure = trace(ctx.task)
    if ctx.budgets[0] < 1 and not structure.units:
        raise ValueError(
            f"budgets below 1 take smaller models, but no layer of this one may lose units "
            f"({'; '.join(f'{n}: {why}' for n, why in structure.fixed.items())}); use spdst"
        )
    if whole and ctx.budgets[-1] < 1:
        raise ValueError(
            f"the largest budget is {ctx.budgets[-1]:g}, so the last units would never be trained; "
            f"give some clients a budget of 1, or use fedrolex, whose sub-models move"
        )


def sent(ctx: Ctx, params: Params, bn: BatchNorm) -> Params:
    """The tensors that travel: without running statistics if these are not averaged."""
    names = ctx.task.layout.parameters if bn == "static" else ctx.task.layout.names
    return {name: params[name] for name in names}


def begin(ctx: Ctx, training: Training, params: Params, width: float, cut: Cut) -> Job[Work]:
    """Starts from a sub-model; a client that has all units trains the model as it is."""
    small = cut.task(ctx.task) if cut.gone.any() else ctx.task
    fresh = {n: b for n, b in small.buffers().items() if n not in params}
    job = dense_model.begin(replace(ctx, task=small), training, {**params, **fresh}, None)
    return Job(Work(small, cut, width, job.work, {}), job.epochs, job.batch)


def scales(cut: Cut, width: float) -> dict[str, float]:
    """HeteroFL's scaler: in training, the outputs of cut layers are divided by the width.

    Since layers are linear, their weights and biases are multiplied instead.
    """
    whole, small = cut.structure.layout.leaves, cut.layout.leaves
    layers = {name.rpartition(".")[0] for name in cut.structure.units}
    return {
        name: 1 / width
        for name, leaf in whole.items()
        if name.rpartition(".")[0] in layers and small[name].shape[:1] != leaf.shape[:1]
    }


def step(training: Training, work: Work, batch: Batch, present: Tensor | None = None) -> Work:
    """One step of SGD on the sub-model.

    Args:
        training: its settings.
        work: the sub-model.
        batch: the examples.
        present: HeteroFL's masked loss: the classes that the client has. Other logits are zero.
    """
    task, params = work.task, work.inner.params
    scaled = {name: params[name] * factor for name, factor in work.scale.items()}
    loss = None if present is None else masked_loss(task, present)
    value, grads = task.gradients({**params, **scaled}, batch, loss=loss)
    for name, factor in work.scale.items():
        grads[name].mul_(factor)
    dense_model.descend(training, work.inner, batch, value, grads)
    return work


def masked_loss(task: Task, present: Tensor) -> Loss:
    """The criterion with logits of zero for the classes that are not `present`."""

    def loss(leaves: Params, batch: Batch) -> Tensor:
        logits = task.logits(leaves, batch.x, batch.key)
        return task.criterion(logits.masked_fill(~present.to(logits.device), 0), batch.y)

    return loss


def average(
    params: Params,
    exchanges: Iterable[Exchange[Down, Up]],
    weighting: merge.Weighting,
    choice: Choice,
    rows: Callable[[Params, Params], Masks] = lambda reply, sent: {},
) -> Params:
    """The mean of each number over the clients that have it; numbers that nobody has stay.

    Args:
        params: the server's model.
        exchanges: what clients were sent, and their replies.
        weighting: how clients are weighted.
        choice: the sub-model of a width.
        rows: which numbers of a reply count, given what was sent; all unless named.
    """
    whole = _received(params, exchanges, weighting, choice, rows)
    return {**params, **sparsity.masked_mean(whole, otherwise=params).params}


def _received(
    params: Params,
    exchanges: Iterable[Exchange[Down, Up]],
    weighting: merge.Weighting,
    choice: Choice,
    rows: Callable[[Params, Params], Masks],
) -> Iterator[tuple[Params, Masks, float]]:
    cuts: dict[float, Cut] = {}
    for exchange in exchanges:
        down, client = exchange.down, exchange.client
        small = merge.fitting(exchange.up.params, down.params)
        if down.width not in cuts:
            cuts[down.width] = choice(down.width)
        part = cuts[down.width]
        full = {name: params[name] for name in small}
        nothing = {n: torch.zeros(tensor.shape, dtype=torch.bool) for n, tensor in full.items()}
        held = {n: torch.ones(tensor.shape, dtype=torch.bool) for n, tensor in small.items()}
        owned = part.give({**held, **rows(small, down.params)}, nothing)
        yield part.give(small, full), owned, merge.weight(client, weighting)


def width_of(client: Client) -> float:
    """The share of units that a client can afford."""
    return min(client.budget, 1.0)


def take_at(tensor: Tensor, place: Place | None) -> Tensor:
    """A copy of some rows and columns."""
    rows, columns = place or (None, None)
    taken = tensor.detach() if rows is None else tensor.detach().index_select(0, rows)
    taken = taken if columns is None else taken.index_select(1, columns)
    return taken.clone()


def add_at(tensor: Tensor, place: Place | None, part: Tensor) -> None:
    """Adds to some rows and columns, in place."""
    rows, columns = place or (None, None)
    row = torch.arange(len(tensor)) if rows is None else rows
    if rows is None and columns is None:
        tensor.add_(part)
    elif columns is None:
        tensor[row] += part
    else:
        tensor[row[:, None], columns] += part
