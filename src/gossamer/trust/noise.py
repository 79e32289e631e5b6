"""Gaussian noise: from a key in a simulation, from the operating system in a deployment.

A simulation must be repeatable, and nobody's data are at stake. In a deployment, clients know the
seed of the run: noise that came from it could be subtracted again.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gossamer.core import Key

Numbers = npt.NDArray[np.float64]


class Source(Protocol):
    """Where random numbers come from."""

    def normal(self, name: str, count: int) -> Numbers: ...
    def uniform(self, name: str, count: int) -> Numbers: ...
    def key(self, name: str) -> Key: ...


class Seeded:
    """Numbers that a key determines: the same name gives the same numbers."""

    def __init__(self, key: Key) -> None:
        self._key = key

    def normal(self, name: str, count: int) -> Numbers:
        """Independent standard normal numbers."""
        return self._key.fold(name, "normal").numpy().standard_normal(count)

    def uniform(self, name: str, count: int) -> Numbers:
        """Independent numbers, uniform in [0, 1)."""
        return self._key.fold(name, "uniform").numpy().random(count)

    def key(self, name: str) -> Key:
        """A key for other draws."""
        return self._key.fold(name)


class System:
    """Numbers that nobody can repeat, from the operating system's generator."""

    def normal(self, name: str, count: int) -> Numbers:
        """Independent standard normal numbers, by the method of Box and Muller."""
        pairs = (count + 1) // 2
        radius = np.sqrt(-2 * np.log1p(-self.uniform(name, pairs)))
        angle = 2 * np.pi * self.uniform(name, pairs)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

    def uniform(self, name: str, count: int) -> Numbers:
        """Independent numbers of 53 bits, uniform in [0, 1)."""
        bits = np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)
        return bits.astype(np.float64) / 2.0**53

    def key(self, name: str) -> Key:
        """A key of 128 random bits for other draws."""
        return Key(int.from_bytes(os.urandom(16), "little")).fold(name)
