"""What methods with masks share: choosing, growing, allocating, drawing, comparing, averaging.

Everything is a function of plain values: masks are dictionaries of bool tensors, counts of whole
numbers, densities of exact fractions. Counts are met exactly, ties go to the lower index, draws
come from a key, and nothing depends on the strides of a tensor.

Half of a layer's weights, pruned and grown again where the gradient is largest:

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

from gossamer.sparsity.algebra import (
    Change,
    Counts,
    count,
    difference,
    inactive,
    masked,
    numbers,
    union,
)
from gossamer.sparsity.allocation import (
    Allocation,
    Densities,
    Number,
    Rounding,
    Saturate,
    allocate,
    apportion,
    as_fraction,
    er,
    erk,
    erk_feddst,
    erk_plus,
    sensitivity,
    uniform,
)
from gossamer.sparsity.average import Average, Averaging, masked_mean
from gossamer.sparsity.distance import (
    churn,
    layer_densities,
    layer_mismatch,
    mismatch,
    mismatches,
)
from gossamer.sparsity.draw import nested, random_masks
from gossamer.sparsity.evolution import (
    Carry,
    Growth,
    Redistribution,
    Regrowth,
    evolve,
    removals,
    updates_masks,
)
from gossamer.sparsity.importance import (
    Additions,
    Adjustment,
    Importance,
    Pace,
    adjust,
    worthwhile,
)
from gossamer.sparsity.n_of_m import (
    group_counts,
    largest_in_groups,
    pattern,
    random_groups,
    regrow_in_groups,
)
from gossamer.sparsity.schedule import Decay, decayed
from gossamer.sparsity.select import (
    above_percentile,
    counts_after_removal,
    grow_largest,
    grow_random,
    largest,
    largest_of_all,
    readjust,
    top,
)

__all__ = [
    "Additions",
    "Adjustment",
    "Allocation",
    "Average",
    "Averaging",
    "Carry",
    "Change",
    "Counts",
    "Decay",
    "Densities",
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
    "pattern",
    "random_groups",
    "random_masks",
    "readjust",
    "regrow_in_groups",
    "removals",
    "sensitivity",
    "top",
    "uniform",
    "updates_masks",
    "difference",
    "worthwhile",
]
