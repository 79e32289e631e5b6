"""A gated model on the wire: weights of open groups, without those that nothing reaches any more.

A pruned filter that says nothing can be removed, and then the weights of all inputs that it fed
have no effect either: they are not sent. The norm of a group counts them still, so their squares
travel as one number per group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gossamer import merge
from gossamer.core import Ctx, Masks, Params
from gossamer.methods.parts.sparse_model import BatchNorm, SparseModel, statistics
from gossamer.sparsity.groups import Groups
from gossamer.submodels.compaction import cut_of
from gossamer.submodels.cut import Cut


@dataclass(frozen=True)
class Frame:
    """The part of a model that travels: all of it, or a smaller model without removed groups."""

    groups: Groups
    cut: Cut | None
    inputs: Masks
    """By gated tensor that loses some of its inputs: those that travel."""

    @classmethod
    def of(cls, ctx: Ctx, groups: Groups, alive: Masks, removed: Masks) -> Frame:
        """The part without some of the pruned groups, given by a bit for each of these."""
        cut = cut_of(ctx.task, groups, alive, removed)
        rows = {name for name, axis in zip(groups.names, groups.axes, strict=True) if axis == 0}
        inputs = cut.inputs() if cut else {}
        return cls(groups, cut, {name: each for name, each in inputs.items() if name in rows})

    def send(self, ctx: Ctx, params: Params, kept: Masks, bn: BatchNorm) -> SparseModel:
        """The weights of the groups that are kept, and all tensors without gates."""
        layout = ctx.task.layout
        dense = {n: params[n] for n in layout.parameters if n not in self.groups.names}
        buffers = statistics(ctx, params, bn)
        if self.cut:
            dense, buffers = self.cut.take(dense), self.cut.take(buffers)
        return SparseModel(self.groups.pack(params, kept, self.inputs), dense, buffers)

    def weights(self, model: SparseModel, kept: Masks, sent: SparseModel) -> Params:
        """The whole tensors of a reply or message, zero where nothing travels.

        Raises:
            WireError: the model is not of the form of what was sent.
        """
        rest = {**merge.fitting(model.dense, sent.dense)}
        rest |= merge.fitting(model.buffers, sent.buffers)
        if self.cut:
            layout = self.cut.structure.layout
            zeros = {n: torch.zeros(layout[n].shape, dtype=t.dtype) for n, t in rest.items()}
            rest = self.cut.give(rest, zeros)
        return {**self.groups.unpack(model.values, kept, sent.values, self.inputs), **rest}

    def receive(self, ctx: Ctx, model: SparseModel, kept: Masks) -> Params:
        """All tensors of the model; statistics that did not travel are those of a fresh module."""
        whole = {**ctx.task.buffers(), **self.weights(model, kept, model)}
        return {name: whole[name] for name in ctx.task.layout.names}

    def beyond(self, params: Params, alive: Masks) -> Params:
        """For each group that is alive: the squared norm of its weights that do not travel."""
        squares = {}
        for name, chosen in self.inputs.items():
            left = params[name][alive[name]][:, ~chosen]
            squares[name] = left.double().square().flatten(1).sum(1).to(left.dtype)
        return squares
