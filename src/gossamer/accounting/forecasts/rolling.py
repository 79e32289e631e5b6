"""Forecasts of methods whose sub-models move through the model."""

from __future__ import annotations

from gossamer.accounting.forecast import Labels
from gossamer.core import Ctx
from gossamer.methods import FedRolex
from gossamer.submodels import trace


def alike(method: FedRolex, ctx: Ctx, last: int) -> Labels:
    """Windows are equally large, unless layers of several sizes are added to each other."""
    structure = trace(ctx.task)
    sizes = ({structure.units[name] for name in space} for space in structure.spaces)
    label = ctx.round if any(len(each) > 1 for each in sizes) else ""
    return label, label
