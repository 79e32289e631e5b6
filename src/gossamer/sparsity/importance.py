"""Which weights are worth their time: the rule by which PruneFL adjusts masks, on plain values.

A weight is worth its importance, which is how much faster the loss falls with it, and costs time,
by which a round is longer with it. Masks are to have the most importance per time, all that is not
masked included: weights are added, the worthiest first, as long as that ratio grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

import numpy as np

from gossamer.core import Masks, Params
from gossamer.fields import option
from gossamer.sparsity.algebra import Flags, Numbers, count, flat, shaped
from gossamer.sparsity.counts import Number, as_fraction
from gossamer.sparsity.select import counts_after_removal, largest
from gossamer.task.layout import Layout


@dataclass(frozen=True)
class Importance:
    """How important weights are: each prunable one, and all the others together."""

    weights: Params
    rest: float

    def any(self) -> bool:
        """Whether anything is important."""
        return bool(self.rest) or any(bool(tensor.any()) for tensor in self.weights.values())

    def times(self, share: float) -> Importance:
        """The same, as it counts in a sum; in double precision."""
        weights = {name: tensor.double() * share for name, tensor in self.weights.items()}
        return Importance(weights, self.rest * share)

    def plus(self, other: Importance | None) -> Importance:
        """The sum of two, or the one there is."""
        if other is None:
            return self
        weights = {name: tensor + other.weights[name] for name, tensor in self.weights.items()}
        return Importance(weights, self.rest + other.rest)


@dataclass(frozen=True)
class Pace:
    """What a round takes on a device; only ratios matter.

    By default about what the constants in the code of PruneFL's authors come to, which they found
    on a Raspberry Pi.
    """

    mac_time: float = option(
        2e-9, "seconds to train on an example, for each product of its forward pass", least=0
    )
    weight_time: float = option(5.6e-6, "seconds to receive and send a weight", above=0)
    fixed_time: float = option(
        2.0, "time that no pruning saves, in multiples of that of dense training", least=0
    )

    def times(self, layout: Layout, examples: float) -> dict[str, float]:
        """What a weight of each layer adds to a round with so many examples."""
        each, leaves = self.mac_time * examples, {name: layout[name] for name in layout.prunable}
        return {n: each * leaf.macs / leaf.count + self.weight_time for n, leaf in leaves.items()}

    def fixed(self, layout: Layout, examples: float) -> float:
        """What such a round takes without any of them."""
        return self.fixed_time * self.mac_time * examples * layout.macs


@dataclass(frozen=True)
class Adjustment:
    """Masks, and what the model is worth and costs with them."""

    masks: Masks
    importance: float
    """Of all that is kept, and of what is never pruned."""
    time: float
    """Of a round."""


@dataclass(frozen=True)
class Additions:
    """Which of some candidates are added, and what it then comes to."""

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
    """New masks: all but the smallest weights stay, and of all others come those worth their time.

    Each layer keeps its active weights but the share `drop` of smallest magnitudes. All others, and
    inactive ones, are candidates. A weight takes the time of its layer, and `fixed` is what a round
    takes beside. Nothing is added beyond `most` weights, but what stays stays, if it is more.

    >>> import torch
    >>> params = {"w": torch.tensor([0.9, -0.5, 0.2, 0.1, 0.0, 0.0])}
    >>> masks = {"w": torch.tensor([True, True, True, True, False, False])}
    >>> importance = Importance({"w": torch.tensor([4.0, 1.0, 9.0, 0.04, 3.0, 0.01])}, rest=0.0)
    >>> found = adjust(params, masks, importance, {"w": 1.0}, fixed=2.0, drop=0.5)
    >>> found.masks["w"].int().tolist(), found.importance, found.time
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
    found = worthwhile(np.concatenate(values), np.concatenate(costs), gain, time, room)
    ends = np.cumsum([len(each) for each in places.values()])[:-1]
    adjusted = {}
    for (name, mask), chosen in zip(kept.items(), np.split(found.chosen, ends), strict=True):
        flags = flat(mask).copy()
        flags[places[name][chosen]] = True
        adjusted[name] = shaped(flags, mask)
    return Adjustment(adjusted, found.importance, found.time)


def worthwhile(
    values: Numbers, costs: Numbers, importance: float, time: float, most: int | None = None
) -> Additions:
    """The candidates that have more importance per time than all that is there before them.

    They come by that ratio, the largest first, and ties go to the lower index. At most so many are
    chosen. Times are above zero.
    """
    # Ratios are compared without dividing. That of the whole only grows, so a candidate that is not
    # above it now never will be, and need not be sorted.
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
