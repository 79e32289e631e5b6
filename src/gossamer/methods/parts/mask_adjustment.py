"""One mask for all clients, which the server adjusts by their gradients: FedTiny and FedMef.

Clients train under the server's mask. In some rounds they also send the largest gradients of pruned
weights. The server then prunes its smallest weights, and grows as many where gradients are largest.
Every layer keeps its count, and grown weights start from zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import floor
from typing import TypeVar

import torch
from torch import Tensor

from gossamer import merge, sparsity
from gossamer.core import Client, Ctx, Exchange, Masks, Params, Result
from gossamer.fields import option
from gossamer.methods.parts import held_versions, masked_training, sparse_model
from gossamer.methods.parts.sparse_model import BatchNorm, SparseModel
from gossamer.sparsity import Change, Counts
from gossamer.task.layout import Layout
from gossamer.wire import Packed, Revision, WireError, pack, unpack

D = TypeVar("D")
U = TypeVar("U")


@dataclass(frozen=True)
class Adjustment:
    """When the mask is adjusted, where, and how much of it."""

    adjust_every: int = option(10, "rounds between adjustments of the mask", least=1)
    adjust_until: int = option(100, "rounds of training after which the mask is fixed", least=0)
    adjust_ratio: float = option(
        0.3, "initial fraction of a layer that is adjusted; cosine decay", least=0, most=1
    )
    blocks: int = option(
        5, "blocks of layers adjusted in turn, from output to input; 1: all at once", least=1
    )

    def due(self, ctx: Ctx, active: Mapping[str, int]) -> Counts:
        """How many weights of which layers a round adjusts, as both sides know; or empty."""
        turn, rest = divmod(ctx.round - 1, self.adjust_every)
        if rest or not turn:
            return {}
        counts = self.counts(ctx, active, self.block(ctx.task.layout, turn - 1))
        return counts if any(counts.values()) else {}

    def counts(self, ctx: Ctx, active: Mapping[str, int], names: Iterable[str]) -> Counts:
        """How many weights of some layers an adjustment in this round moves."""
        ratio, layout = self.ratio(ctx), ctx.task.layout
        # A layer that is nearly dense has little to grow.
        return {n: min(floor(ratio * active[n]), layout[n].count - active[n]) for n in names}

    def ratio(self, ctx: Ctx) -> Fraction:
        """The fraction of a layer that an adjustment in this round moves."""
        left = sparsity.decayed(self.adjust_ratio, "cosine", ctx.round - 1, self.adjust_until)
        return sparsity.as_fraction(left)

    def block(self, layout: Layout, turn: int) -> tuple[str, ...]:
        """The layers adjusted in a turn: neighbours, about as many in each block."""
        names = layout.prunable
        parts = min(self.blocks, len(names))
        place = parts - 1 - turn % parts
        return names[len(names) * place // parts : len(names) * (place + 1) // parts]


@dataclass(frozen=True)
class AdjustedModel:
    params: Params
    masks: Masks
    number: int  # of the initial mask, among those that all can draw from the common seed
    version: int  # of the masks
    held: Tensor  # by client id: the version that the client holds, or -1
    before: Masks  # of the version before, for clients that hold it; empty at first


@dataclass(frozen=True)
class Seeded:
    number: int  # of a mask that the client draws from the common seed


@dataclass(frozen=True)
class Train:
    model: SparseModel
    mask: Seeded | Revision | None  # None if the client holds it


@dataclass(frozen=True)
class Largest:
    places: Masks  # pruned weights with the largest gradients
    values: Packed  # these gradients


@dataclass(frozen=True)
class Update:
    model: SparseModel
    gradients: Largest | None  # in rounds that adjust the mask


@dataclass(frozen=True)
class Local:
    masks: Masks


@dataclass
class Work:
    model: masked_training.Work
    due: Counts  # weights to adjust, by layer; empty in rounds that adjust none
    gradients: Params  # of all weights in these layers, after training

    def keep(self, grads: Params) -> None:
        """Keeps the gradients of the layers that are adjusted."""
        self.gradients = {name: grads[name].cpu() for name in self.due}


def start(params: Params, masks: Masks, number: int = 0) -> AdjustedModel:
    """The state before the first round of training."""
    params = sparsity.masked(params, masks)
    return AdjustedModel(params, masks, number, 0, held_versions.NOBODY, {})


def send(ctx: Ctx, state: AdjustedModel, client: Client, bn: BatchNorm) -> Train:
    """The model, and the mask if the client does not hold it."""
    model = sparse_model.send(ctx, state.params, state.masks, bn)
    if held_versions.holds(state.held, client, state.version):
        return Train(model, None)
    if state.version == 0:
        return Train(model, Seeded(state.number))
    previous = held_versions.holds(state.held, client, state.version - 1)
    return Train(model, Revision(state.masks, state.before if previous and state.before else None))


def active(down: Train) -> Counts:
    """The number of active weights in each layer of the model that was sent."""
    return {name: values.numel() for name, values in down.model.values.values.items()}


def reply(down: Train, due: Counts) -> Update:
    """An example reply, from which the reply schema is derived."""
    shapes = {name: down.model.values.shapes[name] for name in due}
    places = {name: torch.zeros(shape, dtype=torch.bool) for name, shape in shapes.items()}
    values = Packed({name: torch.zeros(0) for name in due}, shapes)
    return Update(down.model, Largest(places, values) if due else None)


def merged(
    ctx: Ctx,
    state: AdjustedModel,
    exchanges: Iterable[Exchange[D, U]],
    weighting: merge.Weighting,
    read: Callable[[object, float], SparseModel],
    change: Callable[[AdjustedModel], Change],
) -> AdjustedModel:
    """The mean of the clients' models, with its mask adjusted.

    Args:
        read: checks a reply, collects its gradients with a weight, and returns its model.
        change: the change of the masks that these gradients ask for; empty if none is due.
    """
    ids: list[int] = []

    def replies() -> Iterator[tuple[Params, float]]:
        for exchange in exchanges:
            down, weight = exchange.down, merge.weight(exchange.client, weighting)
            assert isinstance(down, Train)
            model = read(exchange.up, weight)
            ids.append(exchange.client.id)
            yield sparse_model.receive_reply(ctx, model, down.model, state.masks), weight

    params = {**state.params, **merge.mean(replies())}
    if not ids:
        return state
    held = held_versions.updated(state.held, ids, state.version)
    state = replace(state, params=params, held=held)
    adjusted = change(state)
    state = replace(state, params=sparsity.masked(params, adjusted.kept))
    if sparse_model.same(adjusted.masks, state.masks):
        return state
    masks, version = {**state.masks, **adjusted.masks}, state.version + 1
    return replace(state, masks=masks, before=state.masks, version=version)


@dataclass
class Votes:
    """The weighted sum of the largest gradients; one that is not sent counts as zero."""

    masks: Masks
    due: Counts
    sums: Params = field(default_factory=dict)
    named: Masks = field(default_factory=dict)  # weights whose gradients somebody sent

    def read(self, up: object, weight: float) -> SparseModel:
        """Adds the gradients of a reply, and returns its model."""
        if not isinstance(up, Update):
            raise WireError("weights were asked for, and something else came back")
        gradients = up.gradients
        if (gradients is None) != (not self.due):
            raise WireError("gradients came back unasked, or were asked for and did not")
        if gradients is None:
            return up.model
        places = gradients.places
        for name, count in self.due.items():
            active = places[name] & self.masks[name]
            if int(torch.count_nonzero(places[name])) != count or bool(active.any()):
                raise WireError(f"not the {count} gradients of {name} that were asked for")
        self.named = sparsity.union(places, self.named) if self.named else places
        add_weighted(self.sums, unpack(gradients.values, places), weight)  # FedTiny, eq. 8
        return up.model

    def change(self, state: AdjustedModel) -> Change:
        """Prunes the smallest weights, and grows as many with the largest mean gradients."""
        before = {name: self.masks[name] for name in self.due}
        grown = sparsity.grow_largest(self.sums, before, self.due, self.named)
        return Change.of(before, survivors(state, self.due), grown)


def survivors(state: AdjustedModel, due: Counts) -> Masks:
    """The masks of the layers that are adjusted, without their smallest weights."""
    before = {name: state.masks[name] for name in due}
    kept = {name: count - due[name] for name, count in sparsity.count(before).items()}
    return sparsity.largest(state.params, kept, before, least=0)


def add_weighted(sums: Params, gradients: Params, weight: float) -> None:
    """Adds gradients to their sums in double precision, in place."""
    for name, grad in gradients.items():
        zeros = torch.zeros(grad.shape, dtype=torch.float64)
        sums.setdefault(name, zeros).add_(grad, alpha=weight)


def current_masks(down: Train, local: Local | None, draw: Callable[[int], Masks]) -> Masks:
    """The masks to train under; `draw` makes an initial mask from its number."""
    if isinstance(down.mask, Seeded):
        return draw(down.mask.number)
    return held_versions.received(down.mask, local.masks if local else None)


def begin(ctx: Ctx, down: Train, masks: Masks, rate: float, due: Counts) -> Work:
    """Starts from the server's model."""
    params = sparse_model.receive(ctx, down.model, masks)
    model = masked_training.begin(ctx, params, masks, rate)
    return Work(model, due, {name: torch.zeros(params[name].shape) for name in due})


def finish(ctx: Ctx, work: Work, bn: BatchNorm) -> Result[Update, Local]:
    """The model and, where due, the largest gradients of pruned weights."""
    model, gradients = work.model, None
    if work.due:
        masks = {name: model.masks[name] for name in work.due}
        places = sparsity.grow_largest(work.gradients, masks, work.due)
        gradients = Largest(places, pack(work.gradients, places))
    up = Update(sparse_model.send(ctx, model.params, model.masks, bn), gradients)
    local = Local(model.masks)
    metrics = masked_training.metrics(model)
    return Result(up, local, model.masks, metrics=metrics, searched=model.searched)
