"""Allocate a density to layers: uniform, Erdos-Renyi and its kinds, or by measured sensitivity."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import prod
from typing import Literal, TypeAlias

from gossamer.sparsity.counts import Number, Sizes, as_fraction, clipped, share_out, sizes_of
from gossamer.task.layout import Layout

Densities: TypeAlias = dict[str, Fraction]
"""The active fraction of each layer."""

Allocation = Literal["uniform", "er", "erk", "erk-plus", "erk-feddst"]
Saturate = Literal["waterfill", "clip", "cap-ratio"]


def allocate(
    layout: Layout, density: Number, allocation: Allocation = "erk", head: Number = 1.0
) -> Densities:
    """Layer densities by a named allocation; together they keep `density` of all weights.

    Args:
        head: density of the last fully connected layer under `erk-plus`.
    """
    match allocation:
        case "uniform":
            return uniform(layout, density)
        case "er":
            return er(layout, density)
        case "erk":
            return erk(layout, density)
        case "erk-plus":
            return erk_plus(layout, density, head)
        case "erk-feddst":
            return erk_feddst(layout, density)


def uniform(sizes: Sizes, density: Number) -> Densities:
    """The same density in every layer."""
    return dict.fromkeys(sizes_of(sizes), _checked(density))


def erk(layout: Layout, density: Number) -> Densities:
    """Counts proportional to the sum of a tensor's dimensions, so that small layers are denser.

    The Erdos-Renyi-kernel allocation of RigL (Evci et al., ICML 2020). A layer that would exceed
    density one is dense, and its excess is redistributed to the others.
    """
    return _in_proportion(layout, density, {n: sum(layout[n].shape) for n in layout.prunable})


def er(layout: Layout, density: Number) -> Densities:
    """As `erk`, but without the kernel dimensions: the Erdos-Renyi allocation of SET."""
    shapes = {name: layout[name].shape for name in layout.prunable}
    shares = {name: sum(shape[:2]) * prod(shape[2:]) for name, shape in shapes.items()}
    return _in_proportion(layout, density, shares)


def erk_plus(layout: Layout, density: Number, head: Number = 1.0) -> Densities:
    """`erk` within the same total, but with density `head` in the last fully connected layer.

    Equal to `erk` if that layer is not prunable.
    """
    linear = [name for name, leaf in layout.leaves.items() if leaf.kind == "linear"]
    if not linear or linear[-1] not in layout.prunable:
        return erk(layout, density)
    last, share = linear[-1], _checked(head)
    sizes = sizes_of(layout)
    rest = {name: size for name, size in sizes.items() if name != last}
    total, spent = _checked(density) * sum(sizes.values()), share * sizes[last]
    if not 0 <= total - spent <= sum(rest.values()):
        raise ValueError(
            f"density {float(density):g} keeps {float(total):.0f} weights, which does not fit "
            f"{last} at density {float(share):g} ({float(spent):.0f} weights); use another "
            f"`density=` or `fc_density=`"
        )
    weights = {name: Fraction(sum(layout[name].shape)) for name in rest}
    others = _ratios(share_out(total - spent, weights, rest), rest)
    return {name: share if name == last else others[name] for name in sizes}


def erk_feddst(layout: Layout, density: Number) -> Densities:
    """Scales *sparsities*, as FedDST does (Bibikar et al., AAAI 2022), and so is almost uniform.

    Biases count as weights of their layer, so slightly more than `density` is kept. The released
    code rounds down: `apportion(layout, erk_feddst(layout, density), "floor")`.
    """
    sparsity = 1 - _checked(density)
    whole, raw = {}, {}
    for name, size in sizes_of(layout).items():
        bias = layout.leaves.get(_bias(name))
        whole[name] = size + (bias.count if bias else 0)
        raw[name] = 1 - Fraction(sum(layout[name].shape), size)
    scaled = sum(raw[name] * whole[name] for name in raw)
    factor = sparsity * sum(whole.values()) / scaled if scaled else Fraction(0)
    return {
        name: clipped((1 - raw[name] * factor) * Fraction(whole[name], layout[name].count))
        for name in raw
    }


def sensitivity(
    sizes: Sizes,
    measured: Mapping[str, Number],
    density: Number,
    saturate: Saturate = "waterfill",
) -> Densities:
    """Scales measured layer densities to a target density, by Eq. 3 of FLASH.

    Args:
        saturate: the excess of a layer that would exceed density one is redistributed to the others
            (`waterfill`) or lost (`clip`); `cap-ratio` never scales up.
    """
    plain, wanted = sizes_of(sizes), _checked(density)
    shares = {name: clipped(as_fraction(measured[name])) for name in plain}
    kept = {name: shares[name] * size for name, size in plain.items()}
    total, active = wanted * sum(plain.values()), sum(kept.values())
    if saturate == "waterfill" or not active:
        return _ratios(share_out(total, kept, plain), plain)
    ratio = total / active
    if saturate == "cap-ratio":
        ratio = min(ratio, Fraction(1))
    return {name: clipped(ratio * share) for name, share in shares.items()}


# parts --------------------------------------------------------------------------------------------


def _in_proportion(layout: Layout, density: Number, shares: Mapping[str, int]) -> Densities:
    sizes = sizes_of(layout)
    weights = {name: Fraction(share) for name, share in shares.items()}
    return _ratios(share_out(_checked(density) * sum(sizes.values()), weights, sizes), sizes)


def _ratios(shares: Mapping[str, Fraction], sizes: Mapping[str, int]) -> Densities:
    return {name: share / sizes[name] if sizes[name] else share for name, share in shares.items()}


def _checked(density: Number) -> Fraction:
    if not 0 <= density <= 1:
        raise ValueError(f"a density is between 0 and 1, not {density}")
    return as_fraction(density)


def _bias(name: str) -> str:
    path, _, _ = name.rpartition(".")
    return f"{path}.bias" if path else "bias"
