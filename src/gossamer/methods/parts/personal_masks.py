"""Personal masks that the server knows: every client is sent the weights it keeps, and no others.

A mask goes down only to a client that lost it. The server stores a bit per prunable weight for
each client whose mask is no longer the one that all clients begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Client, Ctx, Exchange, Masks, Missing, Params
from gossamer.methods.parts import sparse_model
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.optim import Training
from gossamer.task.layout import Layout
from gossamer.wire import Revision, WireError

TRAINING = Training(epochs=3, batch=64, lr=0.001, momentum=0.9)
"""As SpaFL trains these methods on Fashion-MNIST."""
ACCOUNTING = Accounting(uncharged="own")
"""Papers do not count the flag that tells a client to use its own mask."""


@dataclass(frozen=True)
class Register:
    """The masks of the clients that have one of their own."""

    clients: Tensor
    """Ids, ascending."""
    bits: Tensor
    """A row per client, eight weights to a byte."""

    def find(self, layout: Layout, client: int) -> Masks | None:
        """The mask of a client, if it has one of its own."""
        row = int(torch.searchsorted(self.clients, client))
        if row == len(self.clients) or int(self.clients[row]) != client:
            return None
        flags = np.unpackbits(self.bits[row].numpy()).astype(bool)
        ends = np.cumsum([layout[name].count for name in layout.prunable])
        parts = zip(layout.prunable, np.split(flags, ends), strict=False)  # the last is padding
        return {name: torch.from_numpy(part).reshape(layout[name].shape) for name, part in parts}

    def updated(self, layout: Layout, changed: Mapping[int, Masks]) -> Register:
        """The register after some clients changed their masks."""
        if not changed:
            return self
        rows = {int(client): row for client, row in zip(self.clients, self.bits, strict=True)}
        for client, masks in changed.items():
            flags = torch.cat([masks[name].flatten() for name in layout.prunable])
            rows[client] = torch.from_numpy(np.packbits(flags.numpy()))
        known = sorted(rows)
        return Register(torch.tensor(known), torch.stack([rows[client] for client in known]))


NO_MASKS = Register(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 0, dtype=torch.uint8))


@dataclass(frozen=True)
class Server:
    params: Params
    known: Register = NO_MASKS
    mean_jaccard: float = 0.0
    """The mean Jaccard distance between the masks of two clients of the last round."""


@dataclass(frozen=True)
class Local:
    masks: Masks


@dataclass(frozen=True)
class Down:
    model: SparseModel
    own: bool
    """Whether the values lie on the client's own mask, not on the initial one."""
    mask: Revision | None
    """Only for a client that lost it."""


@dataclass(frozen=True)
class Up:
    model: SparseModel
    mask: Revision | None
    """The client's next mask, if it changed."""


# server -------------------------------------------------------------------------------------------


def send(ctx: Ctx, state: Server, client: Client, initial: Masks, lost: bool = False) -> Down:
    """The weights that a client keeps and, if it `lost` its mask, the mask."""
    own = state.known.find(ctx.task.layout, client.id)
    masks = own or initial
    model = sparse_model.send(ctx, state.params, masks)
    return Down(model, own is not None, Revision(masks) if own and lost else None)


def masks_of(ctx: Ctx, state: Server, client: Client, initial: Masks) -> Masks:
    """A client's mask, as the server knows it."""
    return state.known.find(ctx.task.layout, client.id) or initial


def replies(ctx: Ctx, down: Down) -> Sequence[Up]:
    """Example replies: without a new mask, and with one."""
    return [Up(down.model, None), Up(down.model, Revision(sparse_model.all_zeros(ctx)))]


def read(
    ctx: Ctx,
    state: Server,
    exchanges: Iterable[Exchange[Down, Up]],
    initial: Callable[[Client], Masks],
    weighting: merge.Weighting,
    changed: dict[int, Masks],
    shrinks: bool,
) -> Iterator[tuple[Params, Masks, float]]:
    """Each client's tensors, the mask these lie on, and their weight in the mean.

    New masks are written to `changed`, by client id. A mask that `shrinks` may only lose weights,
    and values lie on the new one; any other keeps its counts, and values lie on the old one.
    """
    for exchange in exchanges:
        client, down, up = exchange.client, exchange.down, exchange.up
        before = masks_of(ctx, state, client, initial(client))
        after = up.mask.masks if up.mask else before
        added = sparse_model.total(sparsity.difference(after, before))
        if shrinks and added:
            raise WireError(f"a mask came back with {added} weights that the client did not have")
        if not shrinks and sparsity.count(after) != sparsity.count(before):
            raise WireError("a mask came back with another number of weights in a layer")
        if up.mask or down.mask:
            changed[client.id] = after
        masks = after if shrinks else before
        params = sparse_model.receive_reply(ctx, up.model, down.model, masks)
        yield params, masks, merge.weight(client, weighting)


def average_subnetworks(
    ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]], weighting: merge.Weighting
) -> Server:
    """Averages each weight over the clients that keep it; a weight that none keeps stays."""
    changed: dict[int, Masks] = {}
    full = sparse_model.all_ones(ctx)
    replies = read(ctx, state, exchanges, lambda _: full, weighting, changed, shrinks=True)
    average = sparsity.masked_mean(replies, "wfa", state.params)
    if not average.params:
        return state
    known = state.known.updated(ctx.task.layout, changed)
    return Server({**state.params, **average.params}, known, average.mean_jaccard)


# client -------------------------------------------------------------------------------------------


def receive(ctx: Ctx, down: Down, held: Masks | None, initial: Masks) -> tuple[Params, Masks]:
    """The client's part of the server's model, and its mask.

    Raises:
        Missing: the client no longer holds its mask.
    """
    masks = down.mask.masks if down.mask else held if down.own else initial
    if masks is None:
        raise Missing("the server relies on a mask that is not held here")
    return sparse_model.receive(ctx, down.model, masks), masks


def accuracy(ctx: Ctx, params: Params) -> float:
    """The accuracy, or a share like it, on validation data, or without them on training data."""
    examples = ctx.own.valid if len(ctx.own.valid) else ctx.own.train
    if not len(examples):
        return 0.0
    own = ctx.task.own(params)
    with torch.inference_mode():
        outputs = [
            ctx.task.logits(own, examples.x[start : start + 1024].to(ctx.task.device)).cpu()
            for start in range(0, len(examples), 1024)
        ]
        return ctx.task.goal.share(torch.cat(outputs), examples.y)[0]
