"""Lengths of time as text: `90`, `90s`, `5m`, `24h`, `7d`."""

from __future__ import annotations

import math
import re

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
FORM = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*([smhd]?)", re.ASCII)


def seconds(text: str, name: str) -> float:
    """The seconds of a length of time.

    Args:
        text: A number with a unit: s, m, h or d; without one, seconds.
        name: The option it is from, for the error.

    Raises:
        ValueError: The text is none, or no positive one.

    >>> seconds("1.5h", "deadline")
    5400.0
    """
    found = FORM.fullmatch(text.strip())
    value = float(found[1] + (found[2] or "")) * UNITS[found[3]] if found else math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"`{name}=` takes a length of time such as 60s, 5m or 24h, not {text!r}")
    return value
