"""Comparisons of stories, runs and records, exact or within rounding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from gossamer.conformance.bench import Broken, Ran
from gossamer.wire import (
    Levels,
    Packed,
    Revision,
    Schema,
    flatten,
)


def same_story(one: Mapping[str, bytes], two: Mapping[str, bytes], how: str) -> None:
    for name in one:
        if one[name] != two.get(name):
            raise Broken(f"{name} {how}")


def same_run(wanted: Ran, other: Ran, when: str) -> None:
    if wanted.state_hash != other.state_hash:
        raise Broken(f"the final state of a run is another one {when}")
    if wanted.events != other.events:
        raise Broken(f"the events of a run are others {when}")


def close(one: object, two: object) -> bool:
    return Schema.of(one) == Schema.of(two) and all(map(close_leaf, flatten(one), flatten(two)))


def close_leaf(one: object, two: object) -> bool:
    match one, two:
        case Tensor(), Tensor() if one.shape == two.shape and one.is_floating_point():
            return torch.allclose(one, two, rtol=1e-4, atol=1e-6, equal_nan=True)
        case Tensor(), Tensor():
            return torch.equal(one, two)
        case float(), float():
            return bool(np.isclose(one, two, rtol=1e-4, equal_nan=True))
        case Packed() | Levels(), Packed() | Levels():
            return close_leaf(one.values, two.values)
        case Revision(), Revision():
            return close_leaf(one.masks, two.masks)
        case dict(), dict():
            return all(close_leaf(one[name], two[name]) for name in one)
        case _:
            return one == two
