"""Which weights are worth their time: the rule by which PruneFL adjusts masks, on plain tensors.

A weight is worth its importance, which is how much faster the loss falls with it, and costs time,
by which a round is longer with it. Masks are to have the largest importance per time, together with
what is there whatever they are: weights are added, the worthiest first, as long as that ratio grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

import numpy as np

from gossamer.core import Masks, Params
from gossamer.masks.algebra import Flags, Numbers, count, flat, shaped
from gossamer.masks.densities import Number, meant
from gossamer.masks.select import fewer, largest


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
    importance: Params,
    times: Mapping[str, float],
    drop: Number,
    fixed: float = 0.0,
    rest: float = 0.0,
    most: int | None = None,
) -> Adjustment:
    """New masks: all but the smallest weights stay, of the others come those worth their time.

    Each layer keeps its active weights but the share `drop` of the smallest magnitudes. All others,
    active or not, are candidates. A weight takes the time of its layer; `fixed` is the time, and
    `rest` the importance, of what is never pruned. No weight is added beyond `most`, but what stays
    stays, even if it is more.

    >>> import torch
    >>> params = {"w": torch.tensor([0.9, -0.5, 0.2, 0.1, 0.0, 0.0])}
    >>> masks = {"w": torch.tensor([True, True, True, True, False, False])}
    >>> importance = {"w": torch.tensor([4.0, 1.0, 9.0, 0.04, 3.0, 0.01])}
    >>> found = adjust(params, masks, importance, {"w": 1.0}, drop=0.5, fixed=2.0)
    >>> found.masks["w"].int().tolist(), found.importance, found.time
    ([1, 1, 1, 0, 1, 0], 17.0, 6.0)
    """
    share = meant(drop)
    dropped = {name: floor(share * active) for name, active in count(masks).items()}
    kept = largest(params, fewer(masks, dropped), masks)
    gain, time = rest, fixed
    values, costs, places = [], [], {}
    for name, mask in kept.items():
        stays, value = flat(mask), flat(importance[name]).astype(np.float64)
        gain += float(value[stays].sum())
        time += times[name] * int(np.count_nonzero(stays))
        places[name] = np.flatnonzero(~stays)
        values.append(value[places[name]])
        costs.append(np.full(len(places[name]), times[name]))
    room = None if most is None else max(most - sum(count(kept).values()), 0)
    found = worthwhile(np.concatenate(values), np.concatenate(costs), gain, time, room)
    ends = np.cumsum([len(each) for each in places.values()])[:-1]
    chosen = dict(zip(places, np.split(found.chosen, ends), strict=True))
    adjusted = {}
    for name, mask in kept.items():
        flags = flat(mask).copy()
        flags[places[name][chosen[name]]] = True
        adjusted[name] = shaped(flags, mask)
    return Adjustment(adjusted, found.importance, found.time)


def worthwhile(
    values: Numbers, costs: Numbers, importance: float, time: float, most: int | None = None
) -> Additions:
    """The candidates whose importance per time is above that of all that is there before them.

    The largest ratio comes first, ties go to the lower index. Times are above zero.
    """
    # Ratios are compared without dividing. That of the whole only grows, so a candidate that is not
    # above it now never will be, and need not be sorted.
    chances = np.flatnonzero(values * time > importance * costs)
    order = chances[np.argsort(-(values[chances] / costs[chances]), kind="stable")]
    value, cost = values[order], costs[order]
    gains = np.cumsum(np.concatenate([[importance], value]))
    times = np.cumsum(np.concatenate([[time], cost]))
    fails = np.flatnonzero(value * times[:-1] <= gains[:-1] * cost)
    added = int(fails[0]) if len(fails) else len(order)
    if most is not None:
        added = min(added, most)
    chosen = np.zeros(len(values), np.bool_)
    chosen[order[:added]] = True
    return Additions(chosen, float(gains[added]), float(times[added]))
