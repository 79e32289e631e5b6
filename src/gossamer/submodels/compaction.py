"""Exact compaction: removes pruned groups from a model without changing how the rest trains.

A pruned filter has no weights left, but its bias, or a norm after it, may still add a constant to
its output. It can be removed if that constant is zero and stays zero: if bias and norm are pruned
with it, or if a ReLU cuts off a bias that is not positive and thus receives no gradient.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gossamer.core import Masks, Params
from gossamer.sparsity.groups import Groups
from gossamer.submodels.behind import behind, pruned_beside
from gossamer.submodels.cut import INPUTS, Cut
from gossamer.submodels.structure import Structure, trace
from gossamer.task import Task


@dataclass(frozen=True)
class Part:
    """The part of a model with pruned groups that is trained: all of it, or a compacted model."""

    whole: Groups
    received: Params
    """The whole model."""
    alive: Tensor
    """For each group of the whole model: false where it is pruned."""
    task: Task
    """The task of training the part."""
    params: Params
    groups: Groups
    places: Tensor
    """The indices of these groups among those of the whole model."""
    outside: Tensor
    """For each group of the part: the squared norm of its weights outside the part."""
    held: Masks
    """False where biases, scales and shifts of the part are zero and stay zero."""
    cut: Cut | None = None
    inside: Masks = field(default_factory=dict)
    """The part as masks of the prunable tensors, if it is not the whole model."""

    def restore(self, params: Params) -> Params:
        """The whole model with these tensors of the part inserted; the rest is as received."""
        return params if self.cut is None else self.cut.give(params, self.received)

    def active(self) -> Masks:
        """Masks of the weights that are used in computation."""
        alive = self.whole.masks(self.alive, self.received)
        return {**alive, **{n: kept & alive.get(n, kept) for n, kept in self.inside.items()}}


def part_of(
    task: Task,
    groups: Groups,
    alive: Masks,
    params: Params,
    held: Masks,
    cut: Cut | None = None,
    beyond: Masks | None = None,
) -> Part:
    """The part to train: a smaller model that trains exactly as the whole one, or all of it.

    Args:
        held: false where biases, scales and shifts are zero and stay zero.
        cut: the smaller model.
        beyond: by tensor, for each group that is alive: the squared norm of its weights beyond
            `params`.
    """
    flags, places = groups.join(alive), torch.arange(groups.total)
    if cut is None:
        outside = torch.zeros(groups.total, dtype=params[groups.names[0]].dtype)
        return Part(groups, params, flags, task, params, groups, places, outside, held)
    small, inside = cut.take(params), cut.masks()
    places, part = groups.places(inside), groups.within(inside)
    rest = cut.give({name: torch.zeros_like(small[name]) for name in part.names}, params)
    outside = (groups.squares(rest) + scattered(groups, alive, beyond or {}, rest))[places]
    small_task, held = cut.task(task), cut.take(held)
    return Part(groups, params, flags, small_task, small, part, places, outside, held, cut, inside)


def plan(task: Task, groups: Groups, alive: Masks, params: Params, held: Masks) -> Cut | None:
    """The smaller model that trains exactly as the whole one; None if nothing can be removed.

    Args:
        held: false where biases, scales and shifts are zero and stay zero.
    """
    return cut_of(task, groups, alive, removable(task, groups, alive, params, held))


def removable(task: Task, groups: Groups, alive: Masks, params: Params, held: Masks) -> Masks:
    """For each pruned group: whether it can be removed exactly; empty if none can.

    Args:
        held: false where biases, scales and shifts are zero and stay zero.
    """
    if None in groups.axes or all(bool(part.all()) for part in alive.values()):
        return {}
    try:
        structure = trace(task)
    except ValueError:  # a model that cannot be traced is trained as a whole
        return {}
    stays, found = _stays(task, structure, groups, alive, params, held), {}
    for name, axis in zip(groups.names, groups.axes, strict=True):
        gone = torch.zeros_like(alive[name])
        if axis == 1 and structure.wiring.columns.get(name) is not None:
            gone = ~alive[name]
        elif axis == 0 and name in structure.units:
            gone = ~alive[name] & ~torch.from_numpy(stays[structure.wiring.rows[name]])
        found[name] = gone[~alive[name]]
    return found if any(bool(flags.any()) for flags in found.values()) else {}


def cut_of(task: Task, groups: Groups, alive: Masks, removed: Masks) -> Cut | None:
    """The smaller model without these of the pruned groups; None if there are none."""
    if not removed:
        return None
    structure, keep = trace(task), {}
    for name, axis in zip(groups.names, groups.axes, strict=True):
        gone = torch.zeros_like(alive[name]).masked_scatter_(~alive[name], removed[name])
        if bool(gone.any()):
            left = structure.by_unit(name, ~gone) if axis == 0 else ~gone
            keep[name if axis == 0 else f"{name}{INPUTS}"] = _some(left)
    return structure.cut(keep) if keep and not all(bool(k.all()) for k in keep.values()) else None


def removed_share(task: Task, groups: Groups, alive: Masks, params: Params) -> float:
    """The share of parameters that go with pruned groups.

    These are the weights of the groups, biases and norms behind them, and the weights of inputs
    that nothing feeds any more.
    """
    held: Masks = {}
    cut = None
    with suppress(ValueError):  # of a model that cannot be traced, only the groups are known
        held = pruned_beside(task, groups, alive)
        cut = plan(task, groups, alive, params, held)
    inside, kept = cut.masks() if cut else {}, groups.masks(groups.join(alive), params)
    left = 0
    for name in task.layout.parameters:
        here = cut.layout[name].count if cut else task.layout[name].count
        if name in kept:
            here = int((kept[name] & inside.get(name, kept[name])).sum())
        elif name in held:
            here = min(here, int(held[name].sum()))
        left += here
    return 1 - left / task.layout.count


def scattered(groups: Groups, alive: Masks, values: Masks, like: Params) -> Tensor:
    """A vector of all gates with these values for groups that are alive, zero elsewhere."""
    dtype = like[groups.names[0]].dtype
    parts = {name: torch.zeros(flags.shape, dtype=dtype) for name, flags in alive.items()}
    for name, each in values.items():
        parts[name].masked_scatter_(alive[name], each.to(dtype))
    return groups.join(parts)


def _stays(
    task: Task,
    structure: Structure,
    groups: Groups,
    alive: Masks,
    params: Params,
    held: Masks,
) -> np.ndarray:
    """For each unit: whether it has an effect, or is trained, even without weights."""
    wiring = structure.wiring
    stays = np.zeros(len(wiring.removable), np.bool_)
    silent = _cut_off(task, groups, alive, params)
    for name, units in wiring.rows.items():
        leaf = structure.layout[name]
        if name in wiring.layers or leaf.kind == "buffer":
            continue
        audible = torch.ones(leaf.shape, dtype=torch.bool)
        for quiet in (held, silent):
            audible &= quiet.get(name, audible)
        stays[units[audible.numpy()]] = True
    gated = {name for name, axis in zip(groups.names, groups.axes, strict=True) if axis == 0}
    for name, trained in wiring.quiet.items():
        # Queries and keys of a head without values have no effect, but their gates are trained.
        if name in wiring.layers:
            trained = trained & alive[name].numpy() if name in gated else trained
            stays[wiring.rows[name][trained]] = True
    for name, axis in zip(groups.names, groups.axes, strict=True):
        if axis == 1 and name in wiring.columns:
            # The gate of an input is trained while it is open, for any input.
            stays[wiring.columns[name][_some(alive[name]).numpy()]] = True
    return stays


def _cut_off(task: Task, groups: Groups, alive: Masks, params: Params) -> Masks:
    """Masks of biases: false where the bias of a pruned group never passes its ReLU."""
    masks: Masks = {}
    follows = behind(task)
    for name, axis in zip(groups.names, groups.axes, strict=True):
        known = follows.get(name)
        if axis == 0 and known and known.cut_off and len(known.beside) == 1:
            (bias,) = known.beside
            masks[bias] = alive[name] | (params[bias].cpu() > 0)
    return masks


def _some(flags: Tensor) -> Tensor:
    """The same flags, with the first unit kept if there is none: a layer cannot be empty."""
    if bool(flags.any()):
        return flags
    first = torch.zeros_like(flags)
    first[0] = True
    return first
