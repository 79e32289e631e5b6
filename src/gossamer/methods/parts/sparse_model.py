"""A sparse model on the wire: masked weights without their zeros, everything else as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, cast

import torch

from gossamer import merge, sparsity
from gossamer.core import Ctx, Masks, Params
from gossamer.wire import Packed, WireError, pack, unpack

BatchNorm = Literal["running", "static"]
SAME = 4
"""Models that a server remembers in a round: masks of several budgets, say."""
BN_HELP = "BatchNorm statistics: averaged, or recalibrated before evaluation"


@dataclass(frozen=True)
class SparseModel:
    """What travels of a model whose masks are known to the receiver, or sent beside it."""

    values: Packed
    """Masked weights, without zeros."""
    dense: Params
    """Parameters that are trained but never masked."""
    buffers: Params
    """Running statistics; empty where they are not averaged."""

    @property
    def whole(self) -> bool:
        """Whether the masks remove nothing."""
        shapes = self.values.shapes
        return all(v.numel() == prod(shapes[name]) for name, v in self.values.values.items())


def send(ctx: Ctx, params: Params, masks: Masks, bn: BatchNorm = "running") -> SparseModel:
    """The model as it travels under `masks`.

    A server packs it once for all clients of a round that have the same masks, so that it is also
    encoded once.
    """
    for known, under, statistics_of, model in ctx.same:
        if known is params and under is masks and statistics_of == bn:
            return cast(SparseModel, model)
    layout = ctx.task.layout
    model = SparseModel(
        pack({name: params[name] for name in masks}, masks),
        {name: params[name] for name in layout.dense},
        statistics(ctx, params, bn),
    )
    if ctx.data is None:  # a client's parameters change
        ctx.same.append((params, masks, bn, model))
        del ctx.same[:-SAME]
    return model


def statistics(ctx: Ctx, params: Params, bn: BatchNorm) -> Params:
    """Running statistics, if they are averaged."""
    return {name: params[name] for name in ctx.task.layout.buffers} if bn == "running" else {}


def receive(ctx: Ctx, model: SparseModel, masks: Masks) -> Params:
    """All tensors of the model; statistics that did not travel are those of a fresh module."""
    whole = {**ctx.task.buffers(), **unpack(model.values, masks), **model.dense, **model.buffers}
    return {name: whole[name] for name in ctx.task.layout.names}


def receive_reply(ctx: Ctx, reply: SparseModel, sent: SparseModel, masks: Masks) -> Params:
    """The tensors a client sent back, for a mean: statistics only if they travelled.

    Raises:
        WireError: names, shapes or types are not those of what the client was sent.
    """
    rest = {**reply.dense, **reply.buffers}
    merge.fitting(rest, {**sent.dense, **sent.buffers})
    whole = {**unpack(reply.values, masks), **rest}
    return {name: whole[name] for name in ctx.task.layout.names if name in whole}


def prunable(ctx: Ctx) -> Sequence[str]:
    """The names of the tensors that may be pruned.

    Raises:
        ValueError: the model has none.
    """
    if not ctx.task.layout.prunable:
        raise ValueError("this model has no layer that may be pruned; see `prunable=`")
    return ctx.task.layout.prunable


def all_ones(ctx: Ctx) -> Masks:
    """The masks that remove nothing."""
    layout = ctx.task.layout
    return {name: torch.ones(layout[name].shape, dtype=torch.bool) for name in prunable(ctx)}


def all_zeros(ctx: Ctx) -> Masks:
    """The masks that remove everything: examples of the form in which masks travel."""
    return {name: ~mask for name, mask in all_ones(ctx).items()}


def total(masks: Masks) -> int:
    """The number of weights that masks keep."""
    return sum(sparsity.count(masks).values())


def same(first: Masks, second: Masks) -> bool:
    """Whether two sets of masks keep the same weights."""
    return first is second or all(torch.equal(mask, second[n]) for n, mask in first.items())


def affordable(masks: Masks, allowed: int, slack: int = 0) -> Masks:
    """The masks that a client sent back, if they keep no more weights than it was allowed.

    Args:
        slack: weights beyond that which are let through, where counts are met on average only.

    Raises:
        WireError: they keep more.
    """
    kept = total(masks)
    if kept > allowed + slack:
        raise WireError(f"masks came back with {kept} weights, but {allowed} were allowed")
    return masks
