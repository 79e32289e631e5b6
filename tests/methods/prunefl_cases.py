"""A small PruneFL, clients of it that misbehave, and its rules told once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from flash_cases import bench, net, worked

from gossamer import Ctx, Job, Masks, Params, Result, fields, sparsity
from gossamer.conformance.bench import Round
from gossamer.core import Client
from gossamer.methods.as_published.prunefl import PruneFLVariants
from gossamer.methods.prunefl import Down, Local, Measured, PruneFL, Server, Up, Work
from gossamer.sparsity import Importance

SMALL: dict[str, Any] = {
    "clients": 4,
    "batch": 8,
    "steps": 2,
    "adjust_every": 2,
    "first_rounds": 2,
    "first_batches": 2,
    "first_accuracy": 0.0,
}
PRUNABLE = 324
"""Weights of `net` that masks may prune."""
SECOND: dict[str, Any] = {"first_rounds": 0, "clients": 12}
"""The second phase alone, and everybody in every round."""


def toy(**changes: Any) -> PruneFL:
    return fields.replace(PruneFL(), {**SMALL, **changes})


def variant(**changes: Any) -> PruneFLVariants:
    return fields.replace(PruneFLVariants(), {**SMALL, **changes})


@cache
def played(method: PruneFL | PruneFLVariants, rounds: int, norm: bool = False) -> list[Round]:
    return list(bench(method, rounds, norm=norm).history())


def downs(round: Round) -> set[type]:
    return {type(exchange.down) for exchange in round.exchanges}


def ones() -> Masks:
    leaves = net().layout.leaves
    return {name: torch.ones(leaves[name].shape) > 0 for name in net().layout.prunable}


# clients that misbehave -------------------------------------------------------------------------


@dataclass(frozen=True)
class Forgetful(PruneFLVariants):
    lost: int = 0

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        return super().begin(ctx, down, None if ctx.round == self.lost else local)


@dataclass(frozen=True)
class Faulty(PruneFL):
    """In one round, client 5 says something odd of the importance of a weight."""

    lost: int = 0
    says: str = ""

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        return spoiled(ctx, super().finish(ctx, work), self.lost, self.says)


@dataclass(frozen=True)
class FaultyVariant(PruneFLVariants):
    """The same, of other readings."""

    lost: int = 0
    says: str = ""

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        return spoiled(ctx, super().finish(ctx, work), self.lost, self.says)


def spoiled(ctx: Ctx, done: Result[Up, Local], lost: int, says: str) -> Result[Up, Local]:
    if (ctx.round, ctx.key.path[-1]) != (lost, 5):
        return done
    assert isinstance(done.up, Measured)
    weights = dict(done.up.importance.weights)
    weights["2.weight"] = weights["2.weight"].clone()
    weights["2.weight"][0, 0, 0, 0] = float(says)
    found = replace(done.up.importance, weights=weights)
    return replace(done, up=replace(done.up, importance=found))


# told once more ---------------------------------------------------------------------------------


def zero() -> Client:
    return Client(0, 17)


def counted(grads: list[Any], examples: int) -> Any:
    return examples * sum(grads) ** 2


def check_importance(
    method: PruneFL | PruneFLVariants,
    ctx: Ctx,
    down: Down,
    local: Local | None,
    made: Callable[[list[Any], int], Any],
    earlier: Importance | None = None,
    signed: bool = False,
) -> None:
    """What a client finds, against gradients taken once more at the weights it went through."""
    job = method.begin(ctx, down, local)
    at: list[Params] = [{n: tensor.clone() for n, tensor in job.work.model.params.items()}]
    seen: list[Any] = []

    def watch(work: Work, batch: Any) -> None:
        at.append({name: tensor.clone() for name, tensor in work.model.params.items()})
        seen.append(batch)

    done = worked(method, ctx, down, local, watch)
    found = done.up.importance if isinstance(done.up, Measured) else done.local.importance
    grads = [ctx.task.gradients(params, each).grads for params, each in zip(at, seen, strict=False)]
    examples = sum(len(batch.y) for batch in seen)
    rest = 0.0
    for name in ctx.task.layout.parameters:
        wanted = made([each[name] for each in grads], examples)
        if name in found.weights:
            wanted = wanted + (earlier.weights[name] if earlier else 0)
            torch.testing.assert_close(found.weights[name], wanted)
        else:
            rest += float((wanted**2 if signed else wanted).sum())
    assert found.rest == pytest.approx(rest + (earlier.rest if earlier else 0), rel=1e-4)


def wanted_masks(
    method: PruneFL, state: Server, params: Params, importance: Any, ratio: float
) -> Masks:
    layout, examples = net().layout, float(method.steps * method.training.batch)
    weights = {name: params[name] for name in state.masks}
    times, fixed = method.pace.times(layout, examples), method.pace.fixed(layout, examples)
    return sparsity.adjust(weights, state.masks, importance, times, fixed, ratio).masks
