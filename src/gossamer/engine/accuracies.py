"""Figures over the scores of clients: each client's headline metric on its own data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gossamer.task.metrics import Better

BINS = 20
"""Bins of the histogram of personal scores."""


def worst_decile(scores: Sequence[float], better: Better = "higher") -> float:
    """The mean over the worst tenth of the clients, at least one."""
    count = max(1, len(scores) // 10)
    return float(np.mean(sorted(scores, reverse=better == "lower")[:count]))


def extent(
    scores: Sequence[float], bounds: tuple[float | None, float | None]
) -> tuple[float, float]:
    """Where a histogram begins and ends: at the bounds of a metric that has both, else the scores.

    >>> extent([2.0, 5.0], (0.0, None))
    (2.0, 5.0)
    """
    if bounds[0] is not None and bounds[1] is not None:
        return bounds[0], bounds[1]
    low, high = min(scores), max(scores)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def histogram(scores: Sequence[float], between: tuple[float, float] = (0.0, 1.0)) -> list[int]:
    """How many clients are in each of equal bins; only the last bin includes its upper end."""
    counts = [0] * BINS
    low, high = between
    for score in scores:
        share = score if between == (0.0, 1.0) else (score - low) / (high - low)
        counts[min(int(share * BINS), BINS - 1)] += 1
    return counts
