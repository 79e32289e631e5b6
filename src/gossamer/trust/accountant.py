"""Epsilon, by Google's dp-accounting, for the sampling that a run really uses.

Two runs are neighbours if they differ in one client, with all of its data:

- `fixed`: cohorts of a fixed size are drawn without replacement. The number of clients is public,
  so a neighbour has another client in the place of one. That moves a sum of clipped changes by up
  to twice the clip, so the noise counts as half as much. The bound for this sampling is that of
  Wang, Balle and Kasiviswanathan (AISTATS 2019), in Rényi differential privacy.
- `poisson`: every client takes part by a coin of its own. A neighbour has one client more or less,
  which moves the sum by the clip. Privacy loss distributions are composed numerically.
- `local`: whoever reads a client's replies knows whose they are. A neighbour has other data, which
  moves a reply by up to twice the clip. Nothing is hidden by sampling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

Scheme = Literal["fixed", "poisson", "local"]

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256)
"""Of Rényi divergence; the best of them counts."""
STEP = 1e-3
"""Width of the grid of privacy losses; they are rounded up, so a wider grid never flatters."""
GRID = 1000
"""Noise multipliers are found in thousandths."""
MOST_NOISE = 1e6


@dataclass(frozen=True)
class Accountant:
    """What a release costs: the noise, and how clients come to take part in it."""

    noise: float
    """Standard deviation of the noise of a sum, as a multiple of the largest norm of a change."""
    scheme: Scheme
    clients: int
    """Clients per round: their number, or the expected one."""
    pool: int

    def epsilon(self, releases: int, delta: float) -> float:
        """Epsilon after some releases; infinite without noise."""
        if not releases:
            return 0.0
        return math.inf if not self.noise else _epsilon(self, releases, delta)

    @property
    def neighbours(self) -> str:
        """What differs between two neighbouring runs, in words."""
        return {
            "fixed": "one client replaced by another",
            "poisson": "one client added or removed",
            "local": "one client's data replaced",
        }[self.scheme]


def noise_for(
    epsilon: float, delta: float, releases: int, scheme: Scheme, clients: int, pool: int
) -> float:
    """The smallest noise multiplier, in thousandths, that ends within epsilon.

    Raises:
        ValueError: no noise below a million clips is enough.
    """

    def enough(thousandths: int) -> bool:
        asked = Accountant(thousandths / GRID, scheme, clients, pool)
        return asked.epsilon(releases, delta) <= epsilon

    high = GRID
    while not enough(high):
        high *= 2
        if high > MOST_NOISE * GRID:
            raise ValueError(
                f"`dp=`: no reasonable noise gives epsilon {epsilon:g} at delta {delta:g} after "
                f"{releases} rounds; allow a larger epsilon or fewer rounds"
            )
    low = high // 2 if high > GRID else 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high / GRID


@cache
def _epsilon(asked: Accountant, releases: int, delta: float) -> float:
    library = accounting()
    relation = library.NeighboringRelation
    if asked.scheme == "fixed":
        halved = library.GaussianDpEvent(asked.noise / 2)
        event = library.SampledWithoutReplacementDpEvent(asked.pool, asked.clients, halved)
        counted = library.rdp.RdpAccountant(ORDERS, relation.REPLACE_ONE)
    elif asked.scheme == "poisson":
        event = library.PoissonSampledDpEvent(
            asked.clients / asked.pool, library.GaussianDpEvent(asked.noise)
        )
        counted = library.pld.PLDAccountant(relation.ADD_OR_REMOVE_ONE, STEP)
    else:
        event = library.GaussianDpEvent(asked.noise / 2)
        # The noise is halved here, so the library must not do it again for replaced clients.
        counted = library.pld.PLDAccountant(relation.ADD_OR_REMOVE_ONE, STEP)
    counted.compose(event, releases)
    return float(counted.get_epsilon(delta))


def accounting() -> Any:
    """Google's dp-accounting.

    Raises:
        ValueError: it is not installed; the message says how to install it.
    """
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError:
        raise ValueError(
            "`dp=` needs Google's dp-accounting: pip install 'gossamer[privacy]'"
        ) from None
    return dp_accounting
