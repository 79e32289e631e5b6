"""Masks of clients' own that the server knows: it sends each client what that one keeps, no more.

A client is sent its mask only if it lost it. The server has a bit for every prunable weight of each
client whose mask is not the one that all begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Client, Ctx, Exchange, Masks, Missing, Params
from gossamer.methods import sparse
from gossamer.task.layout import Layout
from gossamer.wire import Packed, Revision, WireError

ACCOUNTING = Accounting(uncharged="own")
"""That a client is to use its own mask is no number that a paper would count."""
BLOCK = 1024
"""Examples that are looked at together."""
Judge = Literal["valid", "train", "test"]
"""Data by which a client decides whether its mask may shrink."""


@dataclass(frozen=True)
class Register:
    """Who has which mask."""

    clients: Tensor
    """Ids, ascending."""
    bits: Tensor
    """A row for each, eight weights to a byte."""

    @classmethod
    def empty(cls) -> Register:
        """Nobody has a mask of its own."""
        return cls(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 0, dtype=torch.uint8))

    def find(self, layout: Layout, client: int) -> Masks | None:
        """The mask of a client, if it has one of its own."""
        place = int(torch.searchsorted(self.clients, client))
        if place == len(self.clients) or int(self.clients[place]) != client:
            return None
        flags = np.unpackbits(self.bits[place].numpy())
        found, start = {}, 0
        for name in layout.prunable:
            shape = layout[name].shape
            end = start + int(np.prod(shape))
            found[name] = torch.from_numpy(flags[start:end].astype(bool)).reshape(shape)
            start = end
        return found

    def noted(self, layout: Layout, changed: Mapping[int, Masks]) -> Register:
        """With masks that clients have now."""
        if not changed:
            return self
        rows = {int(client): row for client, row in zip(self.clients, self.bits, strict=True)}
        for client, masks in changed.items():
            flags = torch.cat([masks[name].flatten() for name in layout.prunable])
            rows[client] = torch.from_numpy(np.packbits(flags.numpy()))
        known = sorted(rows)
        return Register(torch.tensor(known), torch.stack([rows[client] for client in known]))


@dataclass(frozen=True)
class Server:
    params: Params
    known: Register
    mean_jaccard: float = 0.0
    """The mean Jaccard distance of two clients of the last round."""


@dataclass(frozen=True)
class Down:
    values: Packed
    dense: Params
    buffers: Params
    own: bool
    """Whether these are values on a mask of the client's own, not on the one all begin with."""
    mask: Revision | None
    """Only for a client that lost it."""


@dataclass(frozen=True)
class Up:
    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None
    """The client's next mask, where it is another."""


Read: TypeAlias = tuple[Client, Params, Masks]
"""A client, what it sent, and the mask of that."""


# server -------------------------------------------------------------------------------------------


def everything(layout: Layout) -> Masks:
    """The mask that takes nothing away."""
    if not layout.prunable:
        raise ValueError("this model has no layer that may be pruned; see --prunable")
    return {name: torch.ones(layout[name].shape, dtype=torch.bool) for name in layout.prunable}


def message(
    ctx: Ctx, state: Server, client: Client, first: Masks, lost: bool = False, told: bool = False
) -> Down:
    """What a client keeps of the server's model.

    With its mask, if it lost it, or if it cannot know the one it begins with and must be `told`.
    """
    own = state.known.find(ctx.task.layout, client.id)
    masks = own or first
    return Down(
        sparse.values(state.params, masks),
        sparse.dense(ctx, state.params),
        sparse.buffers(ctx, state.params, "running"),
        own is not None or told,
        Revision(masks) if (lost if own else told) else None,
    )


def replies(ctx: Ctx, down: Down, may_change: bool = True) -> Sequence[Up]:
    """What answers to a message look like."""
    up = Up(down.values, down.dense, down.buffers, None)
    if not may_change:
        return [up]
    blank = {name: ~mask for name, mask in everything(ctx.task.layout).items()}
    return [up, Up(down.values, down.dense, down.buffers, Revision(blank))]


def read(
    ctx: Ctx,
    state: Server,
    first: Callable[[int], Masks],
    exchanges: Iterable[Exchange[Down, Up]],
    check: Callable[[Masks, Masks], None],
    changed: dict[int, Masks],
    shrinks: bool,
) -> Iterator[Read]:
    """Clients' models with their masks; masks that clients hold from now on are noted on the way.

    Where a mask `shrinks`, what was sent lies on the new one, otherwise on the one before.
    """
    known = sparse.dense(ctx, state.params) | sparse.buffers(ctx, state.params, "running")
    for exchange in exchanges:
        up, client = exchange.up, exchange.client
        before = state.known.find(ctx.task.layout, client.id) or first(client.id)
        after = up.mask.masks if up.mask else before
        check(before, after)
        lies = after if shrinks else before
        rest = merge.fitting({**up.dense, **up.buffers}, known)
        whole = sparse.joined(ctx, up.values, lies, rest)
        if up.mask or exchange.down.mask:
            changed[client.id] = after
        yield client, whole, lies


def within(before: Masks, after: Masks) -> None:
    """Refuses a mask that has weights which the one before had not."""
    added = sparse.total(sparsity.difference(after, before))
    if added:
        raise WireError(f"a mask came back with {added} weights that the client did not have")


def as_many(before: Masks, after: Masks) -> None:
    """Refuses a mask whose layers keep other numbers of weights."""
    if sparsity.count(before) != sparsity.count(after):
        raise WireError(
            f"a mask came back with {sparse.total(after)} weights in place of "
            f"{sparse.total(before)}, or with others in a layer"
        )


# client -------------------------------------------------------------------------------------------


def received(ctx: Ctx, down: Down, held: Masks | None, first: Masks) -> tuple[Params, Masks]:
    """The client's part of the server's model, and its mask."""
    masks = down.mask.masks if down.mask else held if down.own else first
    if masks is None:
        raise Missing("the server takes a mask for granted that is not held here")
    return sparse.joined(ctx, down.values, masks, down.dense, down.buffers), masks


def accuracy(ctx: Ctx, params: Params, by: Judge) -> float:
    """The accuracy of a model on what the client decides by.

    A client that held nothing back for validation takes its training data instead.
    """
    held = {"valid": ctx.own.valid, "train": ctx.own.train, "test": ctx.own.test}[by]
    held = held if len(held) else ctx.own.train
    own, right = ctx.task.own(params), 0
    with torch.inference_mode():
        for start in range(0, len(held), BLOCK):
            x, y = held.x[start : start + BLOCK], held.y[start : start + BLOCK]
            found = ctx.task.logits(own, x.to(ctx.task.device)).argmax(-1)
            right += int((found.cpu() == y).sum())
    return right / max(len(held), 1)
