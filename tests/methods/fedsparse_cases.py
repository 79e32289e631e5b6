"""FedSparse by hand: small nets, states with groups that are pruned, and clients driven alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from gossamer import Batch, Client, Ctx, Examples, Key, Params, Task, fields
from gossamer.engine.client import batches, train
from gossamer.methods.as_published.fedsparse import FedSparseVariants
from gossamer.methods.fedsparse import Down, FedSparse, Server
from gossamer.methods.parts.gated_model import Frame
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.models import build
from gossamer.sparsity.gated_training import Drawn, Gradients, Work
from gossamer.sparsity.groups import Groups
from helpers import client_ctx, server_ctx

SIDE, CLASSES, EXAMPLES = 6, 3, 24


OWN = {setting.name for setting in fields.settings(FedSparse())}


def toy(**changes: Any) -> Any:
    """The method with few clients and small batches, and settings by their flat names.

    Settings that are other readings of the paper make it a `FedSparseVariants`.
    """
    method = FedSparse() if changes.keys() <= OWN else FedSparseVariants()
    return fields.replace(method, {"clients": 4, "batch": 8, **changes})


def pure(method: Any) -> FedSparse:
    """The method, or the one that it is a variant of."""
    return method.pure if isinstance(method, FedSparseVariants) else method


def groups_of(method: Any, task: Task) -> Groups:
    return pure(method).grouping.groups(task.layout)


def theta(method: Any, task: Task, state: Server) -> Tensor:
    """The server's probabilities."""
    return pure(method).theta(groups_of(method, task), state.params, state.thresholds)


def prune(method: Any, task: Task, state: Server) -> Server:
    if isinstance(method, FedSparseVariants):
        return method.prune(server_ctx(task), state)
    return method.prune(groups_of(method, task), state)


def with_thresholds(
    method: Any, task: Task, state: Server, changed: Mapping[str, Sequence[int]], raw: float
) -> Server:
    """The state with other thresholds of some groups."""
    thresholds = state.thresholds.clone()
    parts = groups_of(method, task).split(thresholds)  # which share its memory
    for name, places in changed.items():
        parts[name].view(-1)[list(places)] = raw
    return replace(state, thresholds=thresholds)


@cache
def net(norm: str = "", bias: bool = True) -> Task:
    """Two convolutions, a hidden layer and a head, norms between them if asked."""

    def normed(channels: int) -> list[nn.Module]:
        match norm:
            case "batch":
                return [nn.BatchNorm2d(channels)]
            case "group":
                return [nn.GroupNorm(2, channels)]
        return []

    parts = [nn.Conv2d(1, 4, 3, bias=bias), *normed(4), nn.ReLU()]
    parts += [nn.Conv2d(4, 6, 3, bias=bias), *normed(6), nn.ReLU(), nn.Flatten()]
    parts += [nn.Linear(24, 10, bias=bias), nn.ReLU(), nn.Linear(10, CLASSES)]
    return Task.of(nn.Sequential(*parts), torch.zeros(2, 1, SIDE, SIDE), start="seed")


@cache
def paper(shape: tuple[int, ...], classes: int) -> Task:
    """The paper's LeNet-5."""
    return Task.of(build("lenet5", shape, classes), torch.zeros(2, *shape), start="seed")


def pictures(count: int = EXAMPLES, seed: int = 1) -> Examples:
    draw = Key(seed).generator()
    x = torch.randn(count, 1, SIDE, SIDE, generator=draw)
    y = torch.randint(CLASSES, (count,), generator=draw)
    x[torch.arange(count), 0, 2 * y] += 1
    return Examples(x, y)


def pruned(method: Any, task: Task, dead: Mapping[str, Sequence[int]]) -> Server:
    """A first state in which some groups are pruned: their thresholds are far above them."""
    state = method.init(server_ctx(task, round=0))
    return prune(method, task, with_thresholds(method, task, state, dead, 30.0))


def sent(method: Any, task: Task, state: Server, client: int = 0) -> Down:
    down: Down = method.down(server_ctx(task), state, Client(client, EXAMPLES))
    return down


def trained(method: Any, task: Task, state: Server, seed: int = 0) -> Any:
    """The result of a client's job."""
    ctx = client_ctx(task, pictures(), seed=seed)
    return train(method, ctx, sent(method, task, state), None).result


def whole_tensors(task: Task, groups: Groups, local: Any, model: SparseModel) -> Params:
    """The whole tensors of what a client sent, zero where nothing travels."""
    frame = Frame.of(server_ctx(task), groups, local.alive, local.removed)
    return frame.weights(model, local.opened, model)


def ones(model: SparseModel) -> SparseModel:
    """A message of the same form with ones for all numbers: it shows what travels."""
    values = {name: torch.ones_like(each) for name, each in model.values.values.items()}
    dense, buffers = (
        {name: torch.ones_like(each) for name, each in part.items()}
        for part in (model.dense, model.buffers)
    )
    return SparseModel(replace(model.values, values=values), dense, buffers)


def begun(method: Any, task: Task, state: Server) -> tuple[Ctx, Work, Batch]:
    """A client before its first step, and its first batch."""
    ctx = client_ctx(task, pictures())
    job = method.begin(ctx, sent(method, task, state), None)
    return ctx, job.work, next(iter(batches(ctx, job)))


def drawn(method: Any, work: Work, batch: Batch) -> Drawn:
    if isinstance(method, FedSparseVariants):
        return method.drawn(work, batch)
    return [(batch, work.draws(batch.key.fold("gates")))]


def gradients(method: Any, work: Work, batch: Batch, draws: Tensor | None = None) -> Gradients:
    """Gradients of a client's objective, for these draws or its own."""
    parts = drawn(method, work, batch)
    return work.gradients(parts if draws is None else [(part, draws) for part, _ in parts])


def equal(first: Params, second: Params) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[name]) for name, tensor in first.items()
    )


def close(first: Params, second: Params, tolerance: float = 1e-5) -> bool:
    return first.keys() == second.keys() and all(
        torch.allclose(tensor, second[name], rtol=tolerance, atol=tolerance)
        for name, tensor in first.items()
    )
