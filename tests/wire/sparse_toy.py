"""A sparse method as small as can be: values on a mask both ways, and the mask as it changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gossamer import Batch, Client, Ctx, Exchange, Job, Result, merge
from gossamer.accounting import Accounting
from gossamer.core import Masks, Params, sample
from gossamer.fields import option
from gossamer.wire import EXACT, Packed, Revision, pack, unpack


@dataclass(frozen=True)
class Server:
    params: Params
    masks: Masks
    before: Masks | None = None


@dataclass(frozen=True)
class Local:
    masks: Masks


@dataclass(frozen=True)
class Down:
    values: Packed
    mask: Revision


@dataclass(frozen=True)
class Up:
    values: Packed
    mask: Revision
    received: dict[str, Tensor] = field(metadata=EXACT)
    """The values that came down, to the bit: a server can see what its client saw."""


@dataclass
class Work:
    params: Params
    masks: Masks
    received: dict[str, Tensor]


@dataclass(frozen=True)
class Pruned:
    """Half of all prunable weights; each client moves one of them in each layer."""

    clients: int = option(3, "clients per round", least=1)
    batch: int = option(8, "examples in a mini-batch", least=1)
    lr: float = option(0.1, "learning rate", above=0)
    poison: int = option(-1, "a client that sends what is not a number, in round 2")
    accounting: Accounting = Accounting()

    def init(self, ctx: Ctx) -> Server:
        params = ctx.task.init(ctx.common.fold("init"))
        masks = {
            name: _largest(params[name], params[name].numel() // 2)
            for name in ctx.task.layout.prunable
        }
        return Server(params, masks)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(pack(state.params, state.masks), Revision(state.masks, state.before))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        masks = state.masks

        def updates() -> Iterable[tuple[Params, float]]:
            nonlocal masks
            for exchange in exchanges:
                masks = exchange.up.mask.masks
                yield unpack(exchange.up.values, masks), 1.0

        params = merge.mean(updates())
        return Server({**state.params, **params}, masks, state.masks)

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        masks = down.mask.masks
        params = ctx.task.own(unpack(down.values, masks))
        return Job(Work(params, masks, down.values.values), 1.0, self.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        _, grads = ctx.task.gradients(work.params, batch, work.masks)
        for name, grad in grads.items():
            work.params[name] -= self.lr * grad
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        draw = ctx.key.fold("move").numpy()
        moved = {}
        for name, mask in work.masks.items():
            flat = mask.flatten().clone()
            flat[draw.choice(torch.nonzero(flat).flatten().numpy())] = False
            flat[draw.choice(torch.nonzero(~flat).flatten().numpy())] = True
            moved[name] = flat.reshape(mask.shape)
        values = pack(work.params, moved)
        if ctx.round == 2 and ctx.key.path[-1] == self.poison:
            values = replace(
                values, values={name: each / 0 for name, each in values.values.items()}
            )
        up = Up(values, Revision(moved, work.masks), work.received)
        return Result(up, Local(work.masks), masks=work.masks)

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params


def _largest(tensor: Tensor, count: int) -> Tensor:
    found = torch.zeros(tensor.numel(), dtype=torch.bool)
    found[tensor.abs().flatten().argsort(descending=True, stable=True)[:count]] = True
    return found.reshape(tensor.shape)
