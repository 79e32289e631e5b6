"""Masks that clients readjust by their gradients, as in FedDST."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from gossamer import merge, sparsity
from gossamer.core import Batch, Ctx, Exchange, Masks, Params
from gossamer.fields import option
from gossamer.methods.parts import masked_training, sparse_model
from gossamer.methods.parts.masked_training import Work
from gossamer.methods.parts.sparse_model import SparseModel, affordable, prunable, total
from gossamer.optim import Training
from gossamer.sparsity import Counts, Number
from gossamer.wire import Revision, WireError

TRAINING = Training(epochs=3, batch=32, lr=0.01, momentum=0.9, weight_decay=0.001)
"""FedDST's local training."""


class Message(Protocol):
    """What a client is sent, whatever comes with the model."""

    @property
    def model(self) -> SparseModel: ...


M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Up:
    """A client's reply."""

    model: SparseModel
    mask: Revision | None
    """In readjustment rounds only."""


@dataclass(frozen=True)
class Readjustment:
    """When clients readjust their masks, and how much of them."""

    readjust_ratio: float = option(
        0.01, "fraction of the active weights that clients readjust at first", least=0, most=1
    )
    readjust_every: int = option(15, "rounds between readjustments by clients", least=1)
    readjust_until: float = option(
        0.5, "fraction of the rounds that have readjustments by clients", least=0, most=1
    )

    @property
    def spans_rounds(self) -> str:
        """When clients stop to readjust masks, if they ever do."""
        return f"--readjust-until {self.readjust_until:g}" if self.readjust_ratio else ""

    def rate(self, number: int, rounds: int) -> float:
        """The fraction readjusted in a round counted from 0: 0 if none is due, else by cosine."""
        if (number - 1) % self.readjust_every:
            return 0.0
        end = self.readjust_until * rounds
        return sparsity.decayed(self.readjust_ratio, "cosine", number, end)


def quotas(ctx: Ctx, density: Number) -> Counts:
    """The number of active weights of each layer, by ERK as FedDST's authors compute it."""
    prunable(ctx)
    shares = sparsity.allocate(ctx.task.layout, density, "erk-feddst")
    return sparsity.apportion(ctx.task.layout, shares, "floor")


def accepted(reply: Revision | None, masks: Masks, counts: Counts, frozen: Masks) -> Masks:
    """The masks a client trained under: those it was sent, or its own if it readjusted them.

    Raises:
        WireError: its own keep more weights than it was sent or `counts` allow, or frozen ones.
    """
    if reply is None:
        return masks
    allowed = max(total(masks), sum(counts.values()) - total(frozen))
    if any(bool((reply.masks[name] & mask).any()) for name, mask in frozen.items()):
        raise WireError("a mask came back with weights that are frozen")
    return affordable(reply.masks, allowed)


def replies(ctx: Ctx, model: SparseModel, rate: Number) -> Sequence[Up]:
    """Example replies to a model, from which the reply schema is derived."""
    return [Up(model, Revision(sparse_model.all_zeros(ctx)) if rate else None)]


def received(
    ctx: Ctx,
    exchanges: Iterable[Exchange[M, Up]],
    sent: Masks,
    counts: Counts,
    frozen: Masks,
    weighting: merge.Weighting,
    participants: list[int],
) -> Iterator[tuple[Params, Masks, float]]:
    """Each client's model, masks and weight in the mean; appends the clients to `participants`."""
    for exchange in exchanges:
        up, client = exchange.up, exchange.client
        masks = accepted(up.mask, sent, counts, frozen)
        params = sparse_model.receive_reply(ctx, up.model, exchange.down.model, masks)
        participants.append(client.id)
        yield params, masks, merge.weight(client, weighting)


def readjust_when_due(ctx: Ctx, work: Work, batch: Batch, density: Number, rate: Number) -> None:
    """After the last step, moves a fraction `rate` of a model of this density; 0: none."""
    if rate and batch.step + 1 == batch.steps:
        readjust(ctx, work, batch, quotas(ctx, density * (1 - rate)), quotas(ctx, density))


def readjust(
    ctx: Ctx, work: Work, batch: Batch, low: Counts, high: Counts, everywhere: bool = False
) -> None:
    """Prunes to `low` by magnitude and grows to `high` where the gradient of a batch is largest.

    Frozen weights stay as they are.

    Args:
        everywhere: growth may choose active weights, which restart from zero.
    """
    weights = {name: work.params[name] for name in work.masks}
    gradient = masked_training.dense_gradient(ctx, work, batch)
    frozen = work.frozen or None
    active = sparsity.union(work.masks, work.frozen) if frozen else work.masks
    change = sparsity.readjust(weights, active, low, high, gradient, frozen, everywhere)
    if frozen:
        change = replace(change, masks=sparsity.difference(change.masks, frozen))
    masked_training.change_masks(ctx, work, change)
