"""Units that a trained model does not need, found from its weights."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.core import Masks, Params
from gossamer.submodels.structure import Structure, trace
from gossamer.task import Task

Flags = NDArray[np.bool_]


def needed(task: Task, params: Params) -> Masks:
    """The units to keep, for `compact`: removing the others does not change the output.

    A unit is not needed if its output is always zero, or if every weight that reads it is zero; a
    unit that is read only by such units is not needed either. Every layer keeps at least one unit.
    """
    structure = trace(task)
    params = {**params, **task.constants}
    gone = np.zeros_like(structure.wiring.removable)
    while not np.array_equal(idle := gone | _idle(structure, params, gone), gone):
        gone = idle
    keep = {}
    for name in structure.units:
        stays = ~gone[structure.wiring.distinct(name)]
        stays[0] |= not stays.any()
        keep[name] = torch.from_numpy(stays)
    return keep


def _idle(structure: Structure, params: Params, gone: Flags) -> Flags:
    """Units that output only zeros or are not read, given the units that are already removed."""
    wiring = structure.wiring
    silent, unread = wiring.removable.copy(), wiring.removable.copy()
    for name in dict.fromkeys([*wiring.rows, *wiring.columns]):
        if name not in params or structure.layout[name].kind == "buffer":
            continue
        rows, columns = wiring.rows.get(name), wiring.columns.get(name)
        acts = _acts(params[name], columns is not None)
        if rows is not None:
            acts = acts & ~gone[rows][:, None]
        if columns is not None:
            acts = acts & ~gone[columns][None, :]
            unread[columns[acts.any(0)]] = False
        if rows is not None:
            quiet = wiring.quiet.get(name, np.zeros(len(rows), np.bool_))
            silent[rows[acts.any(1) & ~quiet]] = False
    for name, units in wiring.tables.items():
        silent[units[_acts(params[name], True).any(0)]] = False
    for path in wiring.norms:  # all channels of a group contribute to its statistics
        unread[wiring.rows[f"{path}.weight"]] = False
    return silent | unread


def _acts(tensor: Tensor, reads: bool) -> Flags:
    """Where a tensor is non-zero: by row and, if its columns read units, by column."""
    there = tensor.detach().cpu() != 0
    flat = there.flatten(2).any(2) if there.dim() > 2 else there.reshape(len(there), -1)
    flags: Flags = (flat if reads else flat.any(1, keepdim=True)).numpy()
    return flags
