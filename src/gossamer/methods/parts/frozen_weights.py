"""A model with a frozen part, which is sent to a client once, kept there, and trained around."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer import sparsity
from gossamer.core import Ctx, Masks, Missing, Params
from gossamer.methods.parts.held_versions import updated
from gossamer.methods.parts.masked_training import Work
from gossamer.methods.parts.sparse_model import same
from gossamer.sparsity import Average, Counts
from gossamer.wire import Packed, pack, unpack


@dataclass(frozen=True)
class Server:
    params: Params
    masks: Masks  # all active weights, frozen or not
    frozen: Masks  # empty until something is frozen
    version: int  # of the masks
    held: Tensor  # by client id: the version that the client holds, or -1
    holders: Tensor  # by client id: 1 if the client holds the frozen part
    trimmed: bool = False  # whether the last growth of this phase is pruned
    mean_jaccard: float = 0.0  # mean distance between the masks of two clients, last round

    @property
    def trained(self) -> Masks:
        """The active weights that are not frozen."""
        return sparsity.difference(self.masks, self.frozen) if self.frozen else self.masks


@dataclass(frozen=True)
class Frozen:
    """Frozen weights as they travel, and as clients keep them."""

    values: Packed
    masks: Masks


@dataclass(frozen=True)
class Local:
    masks: Masks  # of the weights that are trained
    frozen: Frozen | None


def frozen_part(params: Params, masks: Masks) -> Frozen | None:
    """The frozen weights of a model; none if nothing is frozen."""
    return Frozen(pack({name: params[name] for name in masks}, masks), masks) if masks else None


def insert(work: Work, sent: Frozen | None, local: Local | None) -> None:
    """Trains a model beside the frozen weights that a client was sent, or holds.

    Raises:
        Missing: it has neither.
    """
    frozen = sent or (local.frozen if local else None)
    if frozen is None:
        raise Missing("the server sent no frozen part, and none is held here")
    values, work.frozen = unpack(frozen.values, frozen.masks), frozen.masks
    for name, mask in frozen.masks.items():
        work.params[name].copy_(torch.where(mask, values[name], work.params[name].cpu()))


def merged(state: Server, average: Average, participants: Sequence[int]) -> Server:
    """The mean of the trained part beside the frozen one."""
    masks = sparsity.union(average.owned, state.frozen) if state.frozen else average.owned
    held, holders = updated(state.held, participants, state.version), state.holders
    if state.frozen:
        holders = updated(holders, participants, 1)
    state = replace(state, params={**state.params, **average.params}, held=held, holders=holders)
    state = replace(state, mean_jaccard=average.mean_jaccard)
    return state if same(masks, state.masks) else changed(state, masks, masks)


def changed(state: Server, masks: Masks, alive: Masks) -> Server:
    """The server with other masks; weights that are not `alive` are set to zero."""
    params = sparsity.masked(state.params, alive)
    return replace(state, params=params, masks=masks, version=state.version + 1)


def grow_beside(ctx: Ctx, masks: Masks, wanted: Counts) -> Masks:
    """The masks with `wanted` more weights in each layer at random, as far as there is room."""
    room = sparsity.count(sparsity.inactive(masks))
    added = {name: min(count, room[name]) for name, count in wanted.items()}
    return sparsity.union(masks, sparsity.grow_random(ctx.key.fold("second"), masks, added))
