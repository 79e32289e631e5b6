"""How the rate of pruning and growing falls, over rounds or within one."""

from __future__ import annotations

import math
from typing import Literal

Decay = Literal["constant", "linear", "cosine", "rex"]


def decayed(start: float, decay: Decay, time: float, end: float) -> float:
    """A rate after `time` of `end` rounds or steps; all but a constant one are zero from then on.

    `linear` with steps of one round is FLASH's. `rex` (Chen et al., 2021) stays high for longest.

    >>> [round(decayed(1.0, "rex", time, 4), 3) for time in range(5)]
    [1.0, 0.857, 0.667, 0.4, 0.0]
    """
    if decay == "constant":
        return start
    if time >= end:
        return 0.0
    left = 1 - time / end
    match decay:
        case "linear":
            return start * left
        case "cosine":
            return start / 2 * (1 + math.cos(math.pi * time / end))
        case "rex":
            return start * left / (0.5 + 0.5 * left)
