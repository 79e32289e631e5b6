"""Which arithmetic a model is computed with: a rule of shapes, batch and density alone.

Timings would choose differently from run to run, and with them the last bits of all results. The
bounds come from `python -m benchmarks arithmetic`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gossamer.arithmetic.plan import Layer, Plan

Arithmetic = Literal["auto", "torch", "native"]
"""`auto` follows the rule, the others override it."""
Way = Literal["torch", "native sparse", "native dense", "native tiles"]

CONVOLUTION = 0.6
"""Density up to which a convolution is computed at its non-zeros only."""
LINEAR = {0: 0.2, 16: 0.25, 32: 0.3, 64: 0.4}
"""The same for linear layers, by the smallest batch for which it holds."""
MODEL = 0.4
"""Density, weighted by multiplications, up to which a model is left to the kernels."""
SMALL = 3e6
"""Multiplications of an example up to which the kernels win at any density."""
FULL, LEAST = 16, 8
"""Batches that fill the lanes of convolutions, and the smallest that are worth while."""
PARTLY = 0.2
"""`MODEL` for batches that do not fill the lanes."""
TILED = 0.75
"""Share of the convolutions' multiplications, computed by tiles, from which small batches gain."""


def bound(convolution: bool, batch: int) -> float:
    """The density up to which a layer, linear or not, is computed at its non-zeros only."""
    if convolution:
        return CONVOLUTION
    return LINEAR[max(least for least in LINEAR if batch >= least)]


def sparse(layer: Layer, density: float, batch: int) -> bool:
    """Whether a layer is computed at its non-zeros only."""
    return density <= bound(layer.convolution, batch)


def native(plan: Plan, densities: Mapping[str, float], batch: int) -> bool:
    """Whether a model is computed by the kernels rather than by torch."""
    layers = plan.layers.items()
    if not any(layer.convolution for _, layer in layers):
        return True
    total = sum(layer.macs for _, layer in layers)
    active = sum(layer.macs * densities.get(name, 1.0) for name, layer in layers)
    if batch < FULL:
        return batch >= LEAST and (active <= PARTLY * total or mostly_tiled(plan, densities, batch))
    return total <= SMALL or active <= MODEL * total


def mostly_tiled(plan: Plan, densities: Mapping[str, float], batch: int) -> bool:
    """Whether most work of the convolutions is done by tiles, which a small batch fills too."""
    total = tiled = 0
    for name, layer in plan.layers.items():
        if layer.convolution:
            total += layer.macs
            if layer.tiled and not sparse(layer, densities.get(name, 1.0), batch):
                tiled += layer.macs
    return tiled >= TILED * total


def native_way(layer: Layer, density: float, batch: int) -> Way:
    """How the kernels compute a layer."""
    if sparse(layer, density, batch):
        return "native sparse"
    return "native tiles" if layer.tiled else "native dense"


@dataclass(frozen=True)
class LayerChoice:
    """How one layer is computed, for the log and for people."""

    name: str
    density: float
    macs: int
    way: Way


def choices(
    plan: Plan, densities: Mapping[str, float], batch: int, wanted: Arithmetic
) -> list[LayerChoice]:
    """How each layer is computed."""
    kernels = wanted == "native" or (wanted == "auto" and native(plan, densities, batch))
    rows = []
    for name, layer in plan.layers.items():
        density = densities.get(name, 1.0)
        way = native_way(layer, density, batch) if kernels else "torch"
        rows.append(LayerChoice(name, density, layer.macs, way))
    return rows
