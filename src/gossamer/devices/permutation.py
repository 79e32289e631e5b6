"""A random order of numbers without a list of them: place by place, in constant memory.

A Feistel network permutes the numbers below a power of four; numbers beyond the wanted size are
permuted again until they are below it (cycle walking), which leaves a permutation of that size.

Black, Rogaway: Ciphers with arbitrary finite domains. CT-RSA 2002.
https://doi.org/10.1007/3-540-45760-7_9
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gossamer.core import Key

ROUNDS = 4
"""Of the Feistel network; three suffice for a pseudo-random permutation (Luby, Rackoff 1988)."""
WORD = 2**64 - 1
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Of the finaliser of SplitMix64 (Steele, Lea, Flood 2014), which mixes all bits of a word."""

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Order:
    """A random order of the numbers below `size`.

    >>> sorted(Order(Key(1), 5).place(number) for number in range(5))
    [0, 1, 2, 3, 4]
    """

    key: Key
    size: int
    _keys: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        drawn = self.key.fold("order").numpy().integers(2**63, size=ROUNDS)
        object.__setattr__(self, "_keys", tuple(drawn.tolist()))

    @property
    def _half(self) -> int:
        """Half of the bits that the network permutes."""
        return max(1, ((self.size - 1).bit_length() + 1) // 2)

    def place(self, number: int) -> int:
        """Where a number goes."""
        half = self._half
        while True:
            left, right = number >> half, number & (2**half - 1)
            for key in self._keys:
                word = right ^ key
                word = ((word ^ (word >> 30)) * FIRST) & WORD
                word = ((word ^ (word >> 27)) * SECOND) & WORD
                left, right = right, left ^ ((word ^ (word >> 31)) & (2**half - 1))
            number = (left << half) | right
            if number < self.size:
                return number

    def places(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where many numbers go."""
        now = self._network(numbers.astype(np.uint64))
        while (outside := now >= self.size).any():
            now[outside] = self._network(now[outside])
        return now.astype(np.int64)

    def _network(self, numbers: Words) -> Words:
        mask, shift = np.uint64(2**self._half - 1), np.uint64(self._half)
        left, right = numbers >> shift, numbers & mask
        for key in self._keys:
            word = right ^ np.uint64(key)
            word = (word ^ (word >> np.uint64(30))) * np.uint64(FIRST)
            word = (word ^ (word >> np.uint64(27))) * np.uint64(SECOND)
            left, right = right, left ^ ((word ^ (word >> np.uint64(31))) & mask)
        mixed: Words = (left << shift) | right
        return mixed
