"""PruneFL's adjustment of masks: drop small weights, add the most important per second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

import numpy as np

from gossamer.core import Masks, Params
from gossamer.fields import option
from gossamer.sparsity.algebra import Flags, Numbers, count, flat, shaped
from gossamer.sparsity.counts import Number, as_fraction
from gossamer.sparsity.importance import Importance
from gossamer.sparsity.select import counts_after_removal, largest
from gossamer.task.layout import Layout


@dataclass(frozen=True)
class Pace:
    """How long a round takes on a device; only ratios matter.

    The defaults approximate the constants in the code of PruneFL's authors, which were measured on
    a Raspberry Pi.
    """

    mac_time: float = option(
        2e-9, "training time in seconds per example and multiplication", least=0
    )
    weight_time: float = option(5.6e-6, "seconds to receive and send a weight", above=0)
    fixed_time: float = option(
        2.0, "time that pruning does not save, in multiples of dense training", least=0
    )

    def times(self, layout: Layout, examples: float) -> dict[str, float]:
        """The time that a weight of each layer adds to a round with so many examples."""
        each, leaves = self.mac_time * examples, {name: layout[name] for name in layout.prunable}
        return {n: each * leaf.macs / leaf.count + self.weight_time for n, leaf in leaves.items()}

    def fixed(self, layout: Layout, examples: float) -> float:
        """The time of such a round without any prunable weights."""
        return self.fixed_time * self.mac_time * examples * layout.macs

    def adjust(
        self,
        layout: Layout,
        examples: float,
        params: Params,
        masks: Masks,
        importance: Importance,
        drop: Number,
        max_density: float,
    ) -> Masks:
        """The masks with the most importance per second; see `adjust`."""
        if not importance.any():
            return masks
        weights = {name: params[name] for name in masks}
        times, fixed = self.times(layout, examples), self.fixed(layout, examples)
        most = floor(as_fraction(max_density) * sum(mask.numel() for mask in masks.values()))
        return adjust(weights, masks, importance, times, fixed, drop, most).masks


@dataclass(frozen=True)
class Adjustment:
    """New masks, and the importance and time of the model that they keep."""

    masks: Masks
    importance: float
    """The total importance of all weights that are kept or never pruned."""
    time: float
    """The time of a round."""


@dataclass(frozen=True)
class Additions:
    """The candidates that are added, and the importance and time of the model with them."""

    chosen: Flags
    importance: float
    time: float


def adjust(
    params: Params,
    masks: Masks,
    importance: Importance,
    times: Mapping[str, float],
    fixed: float,
    drop: Number,
    most: int | None = None,
) -> Adjustment:
    """Drops the smallest weights of each layer, then adds the weights that are worth their time.

    Args:
        params: the weights, whose magnitudes decide which are dropped.
        importance: of each weight, active or not.
        times: seconds that a weight of each layer adds to a round.
        fixed: seconds of a round without any of these weights.
        drop: fraction of each layer's active weights that is dropped. A dropped weight is a
            candidate for addition, as every inactive one is.
        most: the maximum number of weights after additions; weights not dropped are kept anyway.

    >>> import torch
    >>> params = {"w": torch.tensor([0.9, -0.5, 0.2, 0.1, 0.0, 0.0])}
    >>> masks = {"w": torch.tensor([True, True, True, True, False, False])}
    >>> importance = Importance({"w": torch.tensor([4.0, 1.0, 9.0, 0.04, 3.0, 0.01])}, rest=0.0)
    >>> adjusted = adjust(params, masks, importance, {"w": 1.0}, fixed=2.0, drop=0.5)
    >>> adjusted.masks["w"].int().tolist(), adjusted.importance, adjusted.time
    ([1, 1, 1, 0, 1, 0], 17.0, 6.0)
    """
    share = as_fraction(drop)
    dropped = {name: floor(share * active) for name, active in count(masks).items()}
    kept = largest(params, counts_after_removal(masks, dropped), masks)
    gain, time = importance.rest, fixed
    values, costs, places = [], [], {}
    for name, mask in kept.items():
        stays, value = flat(mask), flat(importance.weights[name]).astype(np.float64)
        gain += float(value[stays].sum())
        time += times[name] * int(np.count_nonzero(stays))
        places[name] = np.flatnonzero(~stays)
        values.append(value[places[name]])
        costs.append(np.full(len(places[name]), times[name]))
    room = None if most is None else max(most - sum(count(kept).values()), 0)
    additions = worthwhile(np.concatenate(values), np.concatenate(costs), gain, time, room)
    ends = np.cumsum([len(each) for each in places.values()])[:-1]
    adjusted = {}
    for (name, mask), chosen in zip(kept.items(), np.split(additions.chosen, ends), strict=True):
        flags = flat(mask).copy()
        flags[places[name][chosen]] = True
        adjusted[name] = shaped(flags, mask)
    return Adjustment(adjusted, additions.importance, additions.time)


def worthwhile(
    values: Numbers, costs: Numbers, importance: float, time: float, most: int | None = None
) -> Additions:
    """The candidates that have more importance per time than the model has before each of them.

    They are added in descending order of that ratio; ties go to the lower index. At most `most` are
    chosen. Times must be positive.
    """
    # Ratios are compared without division. The ratio of the model only increases, so candidates
    # that are below it now can be excluded before sorting.
    chances = np.flatnonzero(values * time > importance * costs)
    order = chances[np.argsort(-(values[chances] / costs[chances]), kind="stable")]
    value, cost = values[order], costs[order]
    gains = np.cumsum(np.concatenate([[importance], value]))
    spent = np.cumsum(np.concatenate([[time], cost]))
    fails = np.flatnonzero(value * spent[:-1] <= gains[:-1] * cost)
    added = int(fails[0]) if len(fails) else len(order)
    if most is not None:
        added = min(added, most)
    chosen = np.zeros(len(values), np.bool_)
    chosen[order[:added]] = True
    return Additions(chosen, float(gains[added]), float(spent[added]))
