"""A method's measures of the server state, as events: density of the masks, and how they moved.

They are a function of the states before and after a round, so a resumed run reports the same.
"""

from __future__ import annotations

from typing import Any

from gossamer import sparsity
from gossamer.core import AnyMethod, Ctx, Masks, Measures
from gossamer.engine.events import Measured


def measures(method: AnyMethod, ctx: Ctx, state: Any) -> Measures:
    """A method's measures of a state; empty if it has none."""
    function = getattr(method, "measures", None)
    shown: Measures = function(ctx, state) if function else Measures()
    return shown


def measured(round: int, before: Measures, after: Measures) -> Measured | None:
    """The event of a round, from the measures before and after; None if there are none."""
    if not after.masks and not after.metrics:
        return None
    moved = _shapes(before.masks) == _shapes(after.masks)
    distances = sparsity.layer_mismatch(before.masks, after.masks) if moved else {}
    return Measured(
        round=round,
        density=_density(after.masks) if after.masks else None,
        mismatch=sparsity.mismatch(before.masks, after.masks) if distances else None,
        layers={
            name: {"density": float(density), "mismatch": distances.get(name)}
            for name, density in sparsity.layer_densities(after.masks).items()
        },
        metrics={name: float(value) for name, value in after.metrics.items()},
    )


def _density(masks: Masks) -> float:
    total = sum(mask.numel() for mask in masks.values())
    return sum(sparsity.count(masks).values()) / max(total, 1)


def _shapes(masks: Masks) -> dict[str, tuple[int, ...]]:
    return {name: tuple(mask.shape) for name, mask in masks.items()}
