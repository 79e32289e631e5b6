"""Decay of the rate of pruning and growing, over rounds or within one."""

from __future__ import annotations

import math
from typing import Literal

Decay = Literal["constant", "linear", "cosine", "rex"]


def decayed(start: float, decay: Decay, time: float, end: float, least: float = 0.0) -> float:
    """The rate at `time` of `end` rounds or steps; afterwards it is `least`, unless constant.

    FLASH uses `linear` within a round. `rex` (Chen et al., 2021) stays high the longest. Dettmers
    and Zettlemoyer let `cosine` fall from 0.5 to 0.005.

    >>> [round(decayed(1.0, "rex", time, 4), 3) for time in range(5)]
    [1.0, 0.857, 0.667, 0.4, 0.0]
    """
    if decay == "constant":
        return start
    if time >= end:
        return least
    left, span = 1 - time / end, start - least
    match decay:
        case "linear":
            return least + span * left
        case "cosine":
            return least + span / 2 * (1 + math.cos(math.pi * time / end))
        case "rex":
            return least + span * left / (0.5 + 0.5 * left)
