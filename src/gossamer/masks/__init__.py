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

from gossamer.masks.algebra import (
    Change,
    Counts,
    count,
    either,
    inactive,
    masked,
    numbers,
    without,
)
from gossamer.masks.average import Average, Averaging, masked_mean
from gossamer.masks.densities import (
    Allocation,
    Densities,
    Number,
    Rounding,
    Saturate,
    allocate,
    apportion,
    er,
    erk,
    erk_feddst,
    erk_plus,
    meant,
    sensitivity,
    uniform,
)
from gossamer.masks.drawing import nested, random_masks
from gossamer.masks.evolution import (
    Carry,
    Growth,
    Redistribution,
    evolve,
    removals,
    updates_masks,
)
from gossamer.masks.groups import (
    group_counts,
    largest_in_groups,
    pattern,
    random_groups,
    regrow_in_groups,
)
from gossamer.masks.importance import (
    Additions,
    Adjustment,
    Importance,
    Pace,
    adjust,
    worthwhile,
)
from gossamer.masks.measure import (
    churn,
    layer_densities,
    layer_mismatch,
    mismatch,
    mismatches,
)
from gossamer.masks.schedule import Decay, decayed
from gossamer.masks.select import (
    above_percentile,
    fewer,
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
    "Rounding",
    "Saturate",
    "above_percentile",
    "adjust",
    "allocate",
    "apportion",
    "churn",
    "count",
    "decayed",
    "either",
    "er",
    "erk",
    "erk_feddst",
    "erk_plus",
    "evolve",
    "fewer",
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
    "meant",
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
    "without",
    "worthwhile",
]
