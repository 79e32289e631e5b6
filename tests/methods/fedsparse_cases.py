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
from gossamer.methods import gated
from gossamer.methods.fedsparse import Down, FedSparse
from gossamer.methods.gated import Work
from gossamer.methods.gatekeeper import Server
from gossamer.models import build
from helpers import client_ctx, server_ctx

SIDE, CLASSES, EXAMPLES = 6, 3, 24


def toy(**changes: Any) -> FedSparse:
    """The method with few clients and small batches, and settings by their flat names."""
    return fields.replace(FedSparse(), {"clients": 4, "batch": 8, **changes})


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
    return Task.of(nn.Sequential(*parts), torch.zeros(2, 1, SIDE, SIDE))


@cache
def paper(shape: tuple[int, ...], classes: int) -> Task:
    """The paper's LeNet-5."""
    return Task.of(build("lenet5", shape, classes), torch.zeros(2, *shape))


def pictures(count: int = EXAMPLES, seed: int = 1) -> Examples:
    draw = Key(seed).generator()
    x = torch.randn(count, 1, SIDE, SIDE, generator=draw)
    y = torch.randint(CLASSES, (count,), generator=draw)
    x[torch.arange(count), 0, 2 * y] += 1
    return Examples(x, y)


def pruned(method: FedSparse, task: Task, dead: Mapping[str, Sequence[int]]) -> Server:
    """A first state in which some groups have gone: their thresholds are far above them."""
    ctx = server_ctx(task, round=0)
    state = method.init(ctx)
    thresholds = {name: part.clone() for name, part in state.thresholds.items()}
    for name, places in dead.items():
        thresholds[name].view(-1)[list(places)] = 30.0
    groups = method.gating.groups(task.layout)
    moved = replace(state, thresholds=thresholds)
    return method.gatekeeper.pruned(ctx, method.gating, groups, moved)


def sent(method: FedSparse, task: Task, state: Server, client: int = 0) -> Down:
    return method.down(server_ctx(task), state, Client(client, EXAMPLES))


def trained(method: FedSparse, task: Task, state: Server, seed: int = 0) -> Any:
    """What a client's job comes to."""
    ctx = client_ctx(task, pictures(), seed=seed)
    return train(method, ctx, sent(method, task, state), None).result


def begun(method: FedSparse, task: Task, state: Server) -> tuple[Ctx, Work, Batch]:
    """A client before its first step, and its first batch."""
    ctx = client_ctx(task, pictures())
    job = method.begin(ctx, sent(method, task, state), None)
    return ctx, job.work, next(iter(batches(ctx, job)))


def gradients(
    method: FedSparse, work: Work, batch: Batch, draws: Tensor | None = None
) -> gated.Gradients:
    """Of a client's objective, for draws that are given or its own."""
    drawn = gated._drawn(method.gating, work, batch)
    if draws is not None:
        drawn = [(part, draws) for part, _ in drawn]
    return gated.gradients(method.gating, method.objective, work, drawn)


def equal(first: Params, second: Params) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[name]) for name, tensor in first.items()
    )


def close(first: Params, second: Params, tolerance: float = 1e-5) -> bool:
    return first.keys() == second.keys() and all(
        torch.allclose(tensor, second[name], rtol=tolerance, atol=tolerance)
        for name, tensor in first.items()
    )
