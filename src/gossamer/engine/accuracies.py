"""Figures over the accuracies of clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BINS = 20
"""Bins of the histogram of personal accuracies."""


def worst_decile(accuracies: Sequence[float]) -> float:
    """The mean over the worst tenth of the clients, at least one."""
    count = max(1, len(accuracies) // 10)
    return float(np.mean(sorted(accuracies)[:count]))


def histogram(accuracies: Sequence[float]) -> list[int]:
    """How many clients are in each bin of [0, 1]; only the last bin includes its upper end."""
    counts = [0] * BINS
    for accuracy in accuracies:
        counts[min(int(accuracy * BINS), BINS - 1)] += 1
    return counts
