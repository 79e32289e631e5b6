"""One mask for all that a server adjusts by gradients: what FedTiny and FedMef have in common.

Clients train under the server's mask. Now and then they also send the gradients of a few weights
that are not there; the server gives up its smallest weights for those that would change the loss
most. Counts of layers stay as they are, and what is grown starts from zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import floor
from typing import Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from gossamer import merge, sparsity
from gossamer.core import Client, Ctx, Exchange, Masks, Missing, Params, Result
from gossamer.fields import option
from gossamer.methods import sparse
from gossamer.methods.sparse import BatchNorm
from gossamer.sparsity import Change, Counts
from gossamer.task.layout import Layout
from gossamer.wire import Packed, Revision, WireError, pack, unpack

D = TypeVar("D")
U = TypeVar("U")

Draw: TypeAlias = Callable[[int], Masks]
"""Draws a mask from the common seed by its number."""


@dataclass(frozen=True)
class Adjustment:
    """When the mask is adjusted, where, and how much of it."""

    adjust_every: int = option(10, "rounds between adjustments of the mask", least=1)
    adjust_until: int = option(100, "rounds of training after which the mask stays", least=0)
    adjust_ratio: float = option(
        0.3, "part of a layer that is adjusted, at first; it falls like a cosine", least=0, most=1
    )
    adjust_at_once: bool = option(False, "the first round of training adjusts the mask too")
    blocks: int = option(
        5, "parts of the model that take turns, from output to input; 1: all at once", least=1
    )
    upload: Literal["largest", "all"] = option(
        "largest", "gradients that clients send: the largest of missing weights, or of all weights"
    )
    prune_first: bool = option(False, "what was just pruned may be grown again, from zero")

    def check(self) -> None:
        """Refuses to look at gradients that nobody sends."""
        if self.prune_first and self.upload != "all":
            raise ValueError(
                "--prune-first compares missing weights with those just pruned, whose gradients "
                "clients do not send; add --upload all"
            )

    def ratio(self, ctx: Ctx) -> Fraction:
        """What an adjustment in a round would move of a layer."""
        left = sparsity.decayed(self.adjust_ratio, "cosine", ctx.round - 1, self.adjust_until)
        return sparsity.as_fraction(left)

    def asked(self, ctx: Ctx, active: Mapping[str, int]) -> Counts:
        """How many weights of which layers a round adjusts; nothing, if it adjusts none.

        Both sides know it from the round and from how many weights are active.
        """
        number = ctx.round - 1
        if number % self.adjust_every or not (number or self.adjust_at_once):
            return {}
        turn = number // self.adjust_every - (not self.adjust_at_once)
        found = self.counts(ctx, active, self.block(ctx.task.layout, turn))
        return found if any(found.values()) else {}

    def counts(self, ctx: Ctx, active: Mapping[str, int], names: Iterable[str]) -> Counts:
        """How many weights of some layers an adjustment in a round would move."""
        ratio, layout = self.ratio(ctx), ctx.task.layout
        # A layer that is nearly dense has little to grow.
        return {n: min(floor(ratio * active[n]), layout[n].count - active[n]) for n in names}

    def block(self, layout: Layout, turn: int) -> tuple[str, ...]:
        """The layers whose turn it is: neighbours, about as many in each block."""
        names = layout.prunable
        parts = min(self.blocks, len(names))
        place = parts - 1 - turn % parts
        return names[len(names) * place // parts : len(names) * (place + 1) // parts]

    def told(self, grads: Params, masks: Masks, asked: Counts) -> Gradients:
        """What a client sends of its gradients."""
        wanted = {name: grads[name].cpu() for name in asked}
        if self.upload == "all":
            return Whole(wanted)
        places = sparsity.grow_largest(wanted, {name: masks[name] for name in asked}, asked)
        return Largest(places, pack(wanted, places))

    def change(self, params: Params, masks: Masks, asked: Counts, votes: Votes) -> Change:
        """The mask with smallest weights given up, and as many where gradients are largest."""
        before = {name: masks[name] for name in asked}
        kept = {name: active - asked[name] for name, active in sparsity.count(before).items()}
        left = sparsity.largest(params, kept, before, least=0)
        free = left if self.prune_first else before
        among = None if self.upload == "all" else votes.named
        return Change.of(before, left, sparsity.grow_largest(votes.sums, free, asked, among))


# records ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdjustedModel:
    params: Params
    masks: Masks
    number: int
    """Which of the masks that all can draw from the seed was the first."""
    version: int
    held: Tensor
    """By client id: the version of the masks that the client holds, or -1."""
    before: Masks
    """The masks of the version before, for clients that hold these; empty at first."""


@dataclass(frozen=True)
class Seeded:
    """A mask that the client draws itself: the `number`-th from the common seed."""

    number: int


@dataclass(frozen=True)
class Train:
    values: Packed
    dense: Params
    buffers: Params
    mask: Seeded | Revision | None
    """Nothing, if the client holds it."""


@dataclass(frozen=True)
class Largest:
    """The gradients of few weights that are not active, and where these are."""

    places: Masks
    values: Packed


@dataclass(frozen=True)
class Whole:
    """The gradients of all weights of some layers."""

    values: Params


Gradients: TypeAlias = Largest | Whole


@dataclass(frozen=True)
class Update:
    values: Packed
    dense: Params
    buffers: Params
    gradients: Largest | Whole | None
    """In rounds that adjust the mask only."""


@dataclass(frozen=True)
class Local:
    masks: Masks


@dataclass
class Work:
    """A sparse model in training, and what the server asks for beside it."""

    model: sparse.Work
    asked: Counts
    """Gradients to send, by layer; empty in rounds that adjust nothing."""
    low: Params = field(default_factory=dict)
    """Ones where weights are about to be pruned, zeros elsewhere."""
    gradients: Gradients | None = None


@dataclass
class Votes:
    """What clients' gradients come to; whoever does not name a weight says zero of it."""

    sums: Params = field(default_factory=dict)
    """The mean times what all clients count for, which ranks weights as the mean does."""
    named: Masks = field(default_factory=dict)
    """Weights that somebody named."""

    def add(self, said: Gradients, share: float) -> None:
        """One more client."""
        match said:
            case Whole():
                found = said.values
            case Largest():
                found = unpack(said.values, said.places)
                self.named = sparsity.union(said.places, self.named) if self.named else said.places
        for name, grad in found.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros(grad.shape, dtype=torch.float64)
            self.sums[name].add_(grad, alpha=share)


# the server ---------------------------------------------------------------------------------------


def begun(params: Params, masks: Masks, number: int) -> AdjustedModel:
    """The state before the first round of training."""
    nobody = torch.zeros(0, dtype=torch.int32)
    return AdjustedModel(sparsity.masked(params, masks), masks, number, 0, nobody, {})


def message(
    ctx: Ctx, state: AdjustedModel, client: Client, bn: BatchNorm, lost: bool = False
) -> Train:
    """The model, and the mask for whoever does not hold it; a client may have lost all it held."""
    mask: Seeded | Revision | None = None
    if lost or not sparse.holds(state.held, client, state.version):
        older = not lost and sparse.holds(state.held, client, state.version - 1)
        mask = Revision(state.masks, state.before if older and state.before else None)
        if state.version == 0:
            mask = Seeded(state.number)
    return Train(
        sparse.values(state.params, state.masks),
        sparse.dense(ctx, state.params),
        sparse.buffers(ctx, state.params, bn),
        mask,
    )


def reply(ctx: Ctx, down: Train, adjustment: Adjustment) -> Update:
    """What the answer to a message looks like."""
    asked = adjustment.asked(ctx, {n: v.numel() for n, v in down.values.values.items()})
    shapes = {name: down.values.shapes[name] for name in asked}
    gradients: Gradients | None = None
    if asked and adjustment.upload == "all":
        gradients = Whole({name: torch.zeros(shape) for name, shape in shapes.items()})
    elif asked:
        empty = {name: torch.zeros(shape) > 0 for name, shape in shapes.items()}
        gradients = Largest(empty, Packed({name: torch.zeros(0) for name in asked}, shapes))
    return Update(down.values, down.dense, down.buffers, gradients)


def training(exchanges: Iterable[Exchange[D, U]]) -> Iterator[Exchange[Train, Update]]:
    """Exchanges of rounds that train; any other answer is refused."""
    for each in exchanges:
        if not isinstance(each.down, Train) or not isinstance(each.up, Update):
            raise WireError("weights were asked for, and something else came back")
        yield Exchange(each.client, each.down, each.up)


def merged(
    ctx: Ctx,
    state: AdjustedModel,
    exchanges: Iterable[Exchange[Train, Update]],
    adjustment: Adjustment,
    weighting: merge.Weighting,
    bn: BatchNorm,
) -> AdjustedModel:
    """The mean of clients' models, and its mask adjusted if the round is one for that."""
    asked = adjustment.asked(ctx, sparsity.count(state.masks))
    met: list[int] = []
    votes = Votes()

    def replies() -> Iterator[tuple[Params, float]]:
        for exchange in exchanges:
            up, down = exchange.up, exchange.down
            share = merge.weight(exchange.client, weighting)
            rest = merge.fitting({**up.dense, **up.buffers}, {**down.dense, **down.buffers})
            whole = sparse.joined(ctx, up.values, state.masks, rest)
            if bn == "static":
                whole = {name: whole[name] for name in ctx.task.layout.parameters}
            if (said := _credible(up.gradients, state.masks, asked)) is not None:
                votes.add(said, share)
            met.append(exchange.client.id)
            yield whole, share

    params = {**state.params, **merge.mean(replies())}
    if not met:
        return state
    state = replace(state, params=params, held=sparse.marked(state.held, met, state.version))
    if not asked:
        return state
    change = adjustment.change(params, state.masks, asked, votes)
    state = replace(state, params=sparsity.masked(params, change.kept))
    if all(torch.equal(mask, state.masks[name]) for name, mask in change.masks.items()):
        return state
    masks = {**state.masks, **change.masks}
    return replace(state, masks=masks, before=state.masks, version=state.version + 1)


def _credible(said: Gradients | None, masks: Masks, asked: Counts) -> Gradients | None:
    """A client's gradients, if they are those that it was asked for."""
    if (said is None) != (not asked):
        raise WireError("gradients came back unasked, or were asked for and did not")
    if isinstance(said, Largest):
        for name, wanted in asked.items():
            places = said.places[name]
            if int(torch.count_nonzero(places)) != wanted or bool((places & masks[name]).any()):
                raise WireError(
                    f"gradients of {wanted} missing weights of {name} were asked for, and others "
                    f"came back"
                )
    return said


# a client -----------------------------------------------------------------------------------------


def begin(
    ctx: Ctx,
    down: Train,
    local: Local | None,
    rate: float,
    adjustment: Adjustment,
    first: Draw,
) -> Work:
    """Starts from the server's model; `first` draws the masks that have a number."""
    match down.mask:
        case Seeded():
            masks = first(down.mask.number)
        case Revision():
            masks = down.mask.masks
        case None if local is not None:
            masks = local.masks
        case _:
            raise Missing("the server sent no mask, and none is held here")
    params = sparse.joined(ctx, down.values, masks, down.dense, down.buffers)
    model = sparse.begin(ctx, params, masks, rate, moves=False)
    return Work(model, adjustment.asked(ctx, sparsity.count(masks)))


def finish(ctx: Ctx, work: Work, adjustment: Adjustment, bn: BatchNorm) -> Result[Update, Local]:
    """What a client sends and keeps; one that took no step has no gradients but zeros."""
    model, said = work.model, work.gradients
    if work.asked and said is None:
        zeros = {name: torch.zeros(model.params[name].shape) for name in work.asked}
        said = adjustment.told(zeros, model.masks, work.asked)
    up = Update(
        sparse.values(model.params, model.masks),
        sparse.dense(ctx, model.params),
        sparse.buffers(ctx, model.params, bn),
        said,
    )
    return Result(up, Local(model.masks), model.masks, metrics=sparse.metrics(model))


def later(ctx: Ctx, rounds: int) -> Ctx:
    """Rounds counted without the first ones, which train nothing."""
    return replace(ctx, round=ctx.round - rounds, rounds=ctx.rounds - rounds)


def prunable(ctx: Ctx) -> Sequence[str]:
    """The layers that may be pruned; a model without any is refused."""
    if not ctx.task.layout.prunable:
        raise ValueError("this model has no layer that may be pruned; see --prunable")
    return ctx.task.layout.prunable
