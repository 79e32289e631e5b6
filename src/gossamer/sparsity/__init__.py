"""Masks: select, allocate, grow, draw, compare and average them.

Everything is a function of plain values: masks are dictionaries of bool tensors, counts of whole
numbers, densities of exact fractions. Counts are exact, ties go to the lower index, randomness
comes from a key, and no result depends on the strides of a tensor.

Prune half of a layer's weights and regrow where the gradient is largest:

>>> import torch
>>> params = {"w": torch.tensor([0.6, -0.5, 0.4, 0.3, 0.0, 0.0])}
>>> grads = {"w": torch.tensor([9.0, 1.0, 5.0, 2.0, 4.0, 3.0])}
>>> masks = largest(params, {"w": 4})
>>> change = readjust(params, masks, low={"w": 2}, high=count(masks), by=grads)
>>> change.masks["w"].int().tolist()
[1, 1, 1, 0, 1, 0]
>>> masked(params, change.kept)["w"].tolist()
[0.6000000238418579, -0.5, 0.0, 0.0, 0.0, 0.0]
"""

from gossamer.sparsity.adjustment import Additions, Adjustment, Pace, adjust, worthwhile
from gossamer.sparsity.algebra import (
    Change,
    Counts,
    count,
    difference,
    inactive,
    masked,
    numbers,
    replaced,
    union,
)
from gossamer.sparsity.allocation import (
    Allocation,
    Densities,
    Saturate,
    allocate,
    er,
    erk,
    erk_feddst,
    erk_plus,
    sensitivity,
    uniform,
)
from gossamer.sparsity.average import Average, Averaging, masked_mean
from gossamer.sparsity.budgets import Budgets
from gossamer.sparsity.counts import Number, Rounding, apportion, as_fraction
from gossamer.sparsity.distance import (
    churn,
    density,
    layer_densities,
    layer_mismatch,
    mismatch,
    mismatches,
)
from gossamer.sparsity.draw import nested, part_of, perturbed, random_masks
from gossamer.sparsity.evolution import (
    Carry,
    Growth,
    Redistribution,
    Regrowth,
    evolve,
    removals,
    updates_masks,
)
from gossamer.sparsity.growth import grow_largest, grow_random, readjust
from gossamer.sparsity.importance import Gathered, Importance
from gossamer.sparsity.n_of_m import (
    drawn_masks,
    group_counts,
    largest_in_groups,
    largest_masks,
    pattern,
    random_groups,
    regrow_in_groups,
)
from gossamer.sparsity.schedule import Decay, decayed
from gossamer.sparsity.select import (
    above_percentile,
    counts_after_removal,
    largest,
    largest_of_all,
    top,
)

__all__ = [
    "Additions",
    "Adjustment",
    "Allocation",
    "Average",
    "Averaging",
    "Budgets",
    "Carry",
    "Change",
    "Counts",
    "Decay",
    "Densities",
    "Gathered",
    "Growth",
    "Importance",
    "Number",
    "Pace",
    "Redistribution",
    "Regrowth",
    "Rounding",
    "Saturate",
    "above_percentile",
    "adjust",
    "allocate",
    "apportion",
    "churn",
    "count",
    "decayed",
    "density",
    "drawn_masks",
    "union",
    "er",
    "erk",
    "erk_feddst",
    "erk_plus",
    "evolve",
    "counts_after_removal",
    "group_counts",
    "grow_largest",
    "grow_random",
    "inactive",
    "largest",
    "largest_in_groups",
    "largest_masks",
    "largest_of_all",
    "layer_densities",
    "layer_mismatch",
    "masked",
    "masked_mean",
    "as_fraction",
    "mismatch",
    "mismatches",
    "nested",
    "numbers",
    "part_of",
    "pattern",
    "perturbed",
    "random_groups",
    "random_masks",
    "readjust",
    "regrow_in_groups",
    "removals",
    "replaced",
    "sensitivity",
    "top",
    "uniform",
    "updates_masks",
    "difference",
    "worthwhile",
]
