"""The client of methods with gates: weights and thresholds that are trained together.

Only one gradient is asked for, that of the loss at the gated weights; all others follow from it.
Weights have it times their gate, gates have its product with their weights, and thresholds what the
gates pass on. Nothing goes from gates to the norms of weights: those are constants of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gossamer import optim
from gossamer.core import Batch, Ctx, Key, Masks, Params
from gossamer.fields import option
from gossamer.methods import compacting
from gossamer.optim import Training
from gossamer.sparsity import hard_concrete
from gossamer.sparsity.hard_concrete import (
    Granularity,
    Groups,
    HardConcrete,
    Head,
    LinearAxis,
    Objective,
)
from gossamer.submodels import Cut
from gossamer.task import Task
from gossamer.task.layout import Layout


@dataclass(frozen=True)
class Gating:
    """Which weights share a gate, and how a gate comes from their norm."""

    granularity: Granularity = option(
        "groups", "gates on filters and neurons, or on every single weight"
    )
    linear_axis: LinearAxis = option("out", "groups of linear layers: neurons, or their inputs")
    gate_head: Head = option(
        "auto", "gates on the last linear layer; auto: unless they would close whole classes"
    )
    gate_bias: bool = option(False, "biases and norms of pruned filters and neurons go with them")
    temperature: float = option(1e-3, "difference of norms that is one logit", above=0)
    theta0: float = option(0.99, "probability that a gate is open at first", above=0, below=1)
    gate_sample: Literal["batch", "example"] = option(
        "batch", "gates are drawn for a whole mini-batch, or for each of its examples (slow)"
    )
    concrete: HardConcrete = HardConcrete()

    def groups(self, layout: Layout) -> Groups:
        """The groups of a model."""
        return Groups.of(layout, self.granularity, self.linear_axis, self.gate_head)

    def logits(self, norms: Tensor, raw: Tensor) -> Tensor:
        """Of the probability that groups are open."""
        return hard_concrete.logits(norms, raw, self.temperature)


def adamax(
    param: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    steps: int,
    rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> None:
    """One descending step in place, nearly by the gradient's sign; `steps` counts it.

    Kingma, Ba: Adam: a method for stochastic optimization. ICLR 2015.
    https://arxiv.org/abs/1412.6980
    """
    first.lerp_(grad, 1 - beta1)
    torch.maximum(second.mul_(beta2), grad.abs().add_(eps), out=second)
    param.addcdiv_(first, second, value=-rate / (1 - beta1**steps))


# a client -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """What a client received, with one entry per gate of the whole model in every vector."""

    groups: Groups
    params: Params
    raw: Tensor
    """Thresholds before softplus; anything where a group is pruned."""
    alive: Tensor
    """False where a group is pruned."""
    examples: int
    """That the client trains on."""


@dataclass
class Work:
    """A gated model in training; `step` updates it in place.

    Vectors have one entry per gate of the model that is trained, which may be a part of the whole.
    """

    start: Start
    task: Task
    cut: Cut | None
    """How the model that is trained lies in the whole, if it is not all of it."""
    inside: Masks
    """The part of prunable tensors that is trained, if it is not all of them."""
    params: Params
    groups: Groups
    raw: Tensor
    alive: Tensor
    """As numbers."""
    places: Tensor
    """Of these gates among those of the whole model."""
    sizes: Tensor
    logits: Tensor
    """The server's."""
    outside: Tensor
    """Squared norms of weights that are not trained, since nothing reaches them."""
    price: Tensor
    first: Tensor
    second: Tensor
    gated: Params
    """Room for weights times gates."""
    anchor: Params
    """Where the drift is measured from, if it costs anything."""
    held: Params
    """Zero where biases and norms of pruned groups are zero and stay so."""
    rate: float = 0.0
    steps: int = 0
    velocity: optim.Velocity = field(default_factory=list)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    examples: int = 0


def begin(ctx: Ctx, gating: Gating, objective: Objective, start: Start, compact: bool) -> Work:
    """Starts from weights and thresholds as received, with all of them or with what has a say."""
    groups, task = start.groups, ctx.task
    alive = groups.split(start.alive)
    held = compacting.pruned_beside(task, groups, alive) if gating.gate_bias else {}
    cut = compacting.plan(task, groups, alive, start.params, held) if compact else None
    params, places, outside = start.params, torch.arange(groups.total), torch.zeros_like(start.raw)
    inside: Masks = {}
    if cut is not None:
        params, task, inside = cut.take(start.params), cut.task(ctx.task), cut.masks()
        held = cut.take(held)
        places = groups.places(inside)
        groups = groups.within(inside)
        rest = cut.give({n: torch.zeros_like(params[n]) for n in groups.names}, start.params)
        outside = start.groups.squares(rest)[places]
    own = task.own(params)
    logits = gating.logits(start.groups.norms(start.params), start.raw)[places].to(task.device)
    sizes = start.groups.sizes()[places].to(logits)
    raw = start.raw[places].to(task.device)
    return Work(
        start=start,
        task=task,
        cut=cut,
        inside=inside,
        params=own,
        groups=groups,
        raw=raw,
        alive=start.alive[places].to(logits),
        places=places,
        sizes=sizes,
        logits=logits,
        outside=outside.to(logits),
        price=objective.price(sizes, logits, start.examples),
        first=torch.zeros_like(raw),
        second=torch.zeros_like(raw),
        gated={name: torch.zeros_like(own[name]) for name in groups.names},
        anchor={n: own[n].clone() for n in groups.names} if objective.drift else {},
        held={name: kept.to(own[name]) for name, kept in held.items() if not kept.all()},
    )


def step(
    gating: Gating, objective: Objective, training: Training, rate: float, work: Work, batch: Batch
) -> Work:
    """One step of SGD on weights and one of Adamax on thresholds, from the same gradient."""
    found = gradients(gating, objective, work, _drawn(gating, work, batch))
    training.update(work.params, found.weights, work.velocity, work.rate)
    work.steps += 1
    adamax(work.raw, found.thresholds, work.first, work.second, work.steps, rate)
    work.loss = work.loss + found.loss * len(batch.y)
    work.examples += len(batch.y)
    return work


class Gradients(NamedTuple):
    """The loss of the data, and what weights and thresholds are to descend."""

    loss: Tensor
    weights: Params
    thresholds: Tensor


def gradients(
    gating: Gating, objective: Objective, work: Work, drawn: Sequence[tuple[Batch, Tensor]]
) -> Gradients:
    """Of the whole objective; examples come in parts, each with uniform draws of its gates."""
    location = gating.concrete.location(own_logits(gating, work))
    positive = gating.concrete.positive(location) * work.alive
    price = work.price
    loss, grads, by_location = _data(gating, work, location, drawn)
    if objective.drift:
        price = price + _pull(objective, work, grads, positive)
    by_location += price * positive * (1 - positive)
    for name, factor in work.held.items():
        grads[name].mul_(factor)
    thresholds = by_location * torch.sigmoid(work.raw) / -gating.temperature
    return Gradients(loss, grads, thresholds)


def own_logits(gating: Gating, work: Work) -> Tensor:
    """Of the client's gates as they are now."""
    norms = (work.groups.squares(work.params) + work.outside).sqrt()
    return gating.logits(norms, work.raw)


def opened(gating: Gating, work: Work, key: Key) -> Tensor:
    """Which gates of the whole model are open: drawn without relaxation, as the limit has it."""
    shares = torch.sigmoid(own_logits(gating, work)).cpu()
    found = torch.zeros(work.start.groups.total, dtype=torch.bool)
    drawn = hard_concrete.draw(key, work.start.groups.total)[work.places]
    found[work.places] = (drawn < shares) & (work.alive.cpu() > 0)
    return found


def regulariser(gating: Gating, objective: Objective, work: Work) -> Tensor:
    """What the client minimises beside its loss, as it is now."""
    location = gating.concrete.location(own_logits(gating, work))
    positive, alive = gating.concrete.positive(location), work.alive > 0
    squares = work.groups.squares(_distances(work)) if work.anchor else torch.zeros_like(location)
    return objective.value(
        positive[alive],
        work.sizes[alive],
        work.logits[alive],
        squares[alive],
        work.start.examples,
    )


def whole(work: Work) -> Params:
    """The model with what was trained of it; the rest is as it was received."""
    return work.params if work.cut is None else work.cut.give(work.params, work.start.params)


def moments(work: Work) -> tuple[Tensor, Tensor]:
    """Those of the thresholds of the whole model."""
    blank = torch.zeros(work.start.groups.total, dtype=work.raw.dtype)
    first, second = (each.cpu() for each in (work.first, work.second))
    return blank.index_copy(0, work.places, first), blank.index_copy(0, work.places, second)


def active(work: Work) -> Masks:
    """Weights that take part in the arithmetic."""
    groups = work.start.groups
    shapes = {name: work.start.params[name].shape for name in groups.names}
    alive = groups.masks(work.start.alive, shapes)
    return {**alive, **{n: kept & alive.get(n, kept) for n, kept in work.inside.items()}}


def _data(
    gating: Gating, work: Work, location: Tensor, drawn: Sequence[tuple[Batch, Tensor]]
) -> tuple[Tensor, Params, Tensor]:
    """The loss and its gradients by weights and by the gates' locations."""
    loss, by_location = torch.zeros((), device=location.device), torch.zeros_like(location)
    grads: Params = {}
    examples = sum(len(part.y) for part, _ in drawn)
    for part, draws in drawn:
        share = len(part.y) / examples
        soft = gating.concrete.soft(location, draws)
        spread = work.groups.spread(gating.concrete.gate(soft) * work.alive, work.params)
        for name, factor in spread.items():
            # Into memory laid out like the weights: optimisers pair elements by address.
            torch.mul(work.params[name], factor, out=work.gated[name])
        value, found = work.task.gradients({**work.params, **work.gated}, part)
        products = {name: found[name] * work.params[name] for name in spread}
        slope = gating.concrete.slope(soft) * work.alive
        by_location.add_(work.groups.sums(products) * slope, alpha=share)
        for name, factor in spread.items():
            found[name].mul_(factor)
        loss = loss + share * value
        if share < 1:
            torch._foreach_mul_(list(found.values()), share)
        if grads:
            torch._foreach_add_(list(grads.values()), list(found.values()))
        grads = grads or found
    return loss, grads, by_location


def _pull(objective: Objective, work: Work, grads: Params, positive: Tensor) -> Tensor:
    """Adds the drift's gradient by the weights, and returns that by the gates' openness."""
    strength = objective.strength(work.start.examples)
    spread = work.groups.spread(strength * positive, work.params)
    distances = _distances(work)
    for name, distance in distances.items():
        grads[name].addcmul_(spread[name], distance)
    return strength / 2 * work.groups.squares(distances)


def _distances(work: Work) -> Params:
    return {name: work.params[name] - anchor for name, anchor in work.anchor.items()}


def _drawn(gating: Gating, work: Work, batch: Batch) -> list[tuple[Batch, Tensor]]:
    """What has gates of its own, the batch or each example, with draws for these."""
    parts = [batch]
    if gating.gate_sample == "example" and len(batch.y) > 1:
        parts = [_one(batch, index) for index in range(len(batch.y))]
    total = work.start.groups.total
    # For all gates of the whole model, so that it does not matter which part of it is trained.
    draws = [hard_concrete.draw(part.key.fold("gates"), total)[work.places] for part in parts]
    return [(part, each.to(work.raw)) for part, each in zip(parts, draws, strict=True)]


def _one(batch: Batch, index: int) -> Batch:
    only, key = slice(index, index + 1), batch.key.fold("example", index)
    return replace(batch, x=batch.x[only], y=batch.y[only], key=key)
