"""Differences between runs of the same seeds: paired t-tests, and intervals.

Runs of one seed have the same federation and the same cohorts, so their difference varies less than
either of them, and pairs are what is compared. With few seeds a test can show little: that no
difference is shown does not mean that there is none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from gossamer.report.curves import standard_error

LEVEL = 0.05
"""A difference is shown if it would be as large by chance in fewer than one of 20 comparisons."""
DIGITS = 1e-6
"""Figures are known to this part of themselves: kept results have six digits."""


@dataclass(frozen=True)
class Paired:
    """The differences of two rows, one for each seed that both have."""

    values: tuple[float, ...]
    largest: float = 0.0
    """The largest of the figures that were subtracted: it decides what is rounding."""

    @property
    def mean(self) -> float | None:
        """The mean difference; None without a common seed."""
        return self._rounded(statistics.fmean(self.values)) if self.values else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None for fewer than two seeds."""
        error = standard_error(self.values)
        return None if error is None else self._rounded(error)

    def _rounded(self, value: float) -> float:
        """The value, or 0 if it is smaller than what rounding makes of equal differences."""
        most = max(self.largest, *map(abs, self.values))
        return 0.0 if abs(value) <= DIGITS * most else value

    @cached_property
    def p(self) -> float | None:
        """How probable so large a mean is by chance, in a two-sided t-test; None without a test.

        Differences that are all the same have no spread to test against; then it is the
        probability that all have the same sign.
        """
        count = len(self.values)
        if self.mean is None or self.error is None:
            return None
        if self.error == 0:
            return 1.0 if self.mean == 0 else 2 * 0.5**count
        return two_sided(self.mean / self.error, count - 1)

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """The interval of mean differences that the values do not contradict."""
        if self.mean is None or self.error is None:
            return None
        half = self.error * quantile(level, len(self.values) - 1)
        return self.mean - half, self.mean + half


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Paired:
    """First minus second, for every seed that both have."""
    pairs = [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]
    largest = max((abs(value) for pair in pairs for value in pair), default=0.0)
    return Paired(tuple(mine - theirs for mine, theirs in pairs), largest)


@dataclass(frozen=True)
class Against:
    """A row against the best one."""

    row: str
    paired: Paired
    """The best one minus this."""
    p: float | None
    """Of the paired t-test, corrected for all pairs of rows; None without a test."""

    @property
    def shown(self) -> bool:
        """Whether the seeds show a difference."""
        return self.p is not None and self.p < LEVEL


def against_best(rows: Mapping[str, Mapping[int, float]]) -> tuple[str, list[Against]]:
    """The row with the highest mean, and every other against it, in the order of the rows.

    Which row is the best one is known only from the data, so any pair could have been tested:
    probabilities are corrected for all pairs.

    Args:
        rows: By name, the value of each seed; at least one row, and values in each.
    """
    best = max(rows, key=lambda name: statistics.fmean(rows[name].values()))
    pairs = {(a, b): paired(rows[a], rows[b]) for a, b in combinations(rows, 2)}
    tested = [key for key, pair in pairs.items() if pair.p is not None]
    known = holm([pair.p for key in tested if (pair := pairs[key]).p is not None])
    corrected = dict(zip(tested, known, strict=True))
    found = []
    for name in rows:
        if name != best:
            key = (best, name) if (best, name) in pairs else (name, best)
            found.append(Against(name, paired(rows[best], rows[name]), corrected.get(key)))
    return best, found


def two_sided(t: float, freedom: int) -> float:
    """The probability that Student's t of so many degrees of freedom is as far from zero.

    Abramowitz, Stegun: Handbook of mathematical functions. Equations 26.7.3 and 26.7.4.
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for step in range(freedom // 2):
        total += term
        k = 2 * step + odd
        term *= cosine**2 * (k + 1) / (k + 2)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1.0 - inside)


def quantile(level: float, freedom: int) -> float:
    """The t that is exceeded, on either side, with probability `level`."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > level else (low, middle)
    return high


def holm(probabilities: Sequence[float]) -> list[float]:
    """Probabilities of several tests, so that all of them together err as seldom as one.

    Holm: A simple sequentially rejective multiple test procedure. Scandinavian Journal of
    Statistics, 1979.
    """
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    adjusted, most = [0.0] * len(probabilities), 0.0
    for place, index in enumerate(order):
        most = max(most, min(1.0, (len(order) - place) * probabilities[index]))
        adjusted[index] = most
    return adjusted
