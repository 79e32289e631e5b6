"""What a method shows of its server's state, as an event: how dense masks are, how far they moved.

Figures are a function of the states before and after a round, so a resumed run tells the same.
"""

from __future__ import annotations

from typing import Any

from gossamer import sparsity
from gossamer.core import Ctx, Masks, Measures
from gossamer.engine.client import AnyMethod
from gossamer.engine.events import Measured


def measures(method: AnyMethod, ctx: Ctx, state: Any) -> Measures:
    """What a method shows of a state; nothing if it has no function for it."""
    asked = getattr(method, "measures", None)
    found: Measures = asked(ctx, state) if asked else Measures()
    return found


def measured(round: int, before: Measures, after: Measures) -> Measured | None:
    """A round as an event, from what its two states show; None if there is nothing to tell."""
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


def _density(found: Masks) -> float:
    total = sum(mask.numel() for mask in found.values())
    return sum(sparsity.count(found).values()) / max(total, 1)


def _shapes(found: Masks) -> dict[str, tuple[int, ...]]:
    return {name: tuple(mask.shape) for name, mask in found.items()}
