"""Numbers packed to the bit, and a reader that refuses instead of guessing.

Bits fill a byte from its lowest; what is left of the last byte is zero, and a reader insists on it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossamer.wire.errors import WireError

Bits: TypeAlias = NDArray[np.bool_]
Whole: TypeAlias = NDArray[np.int64]

_LONGEST = 9  # bytes of a number below 2**63


def size(bits: int) -> int:
    """Bytes that so many bits fill."""
    return (bits + 7) // 8


def pack(bits: NDArray[np.bool_] | NDArray[np.uint8]) -> bytes:
    """Zeros and ones, eight to a byte."""
    return np.packbits(bits, bitorder="little").tobytes()


def pack_planes(values: Whole, width: int) -> bytes:
    """The lowest bit of all numbers, then the next of all, up to 16 of each."""
    low = values.astype(np.uint16)
    planes = np.empty((width, len(values)), np.uint8)
    for place in range(width):
        planes[place] = (low >> place) & 1
    return pack(planes.reshape(-1))


def number(value: int) -> bytes:
    """A whole number in as many bytes as it needs, seven bits in each, the lowest first."""
    found = bytearray()
    while value > 127:
        found.append(128 | (value & 127))
        value >>= 7
    return bytes([*found, value])


class Reader:
    """Bytes taken from the front; what is not there, or is not as written, is a `WireError`."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        self._position = 0

    @property
    def left(self) -> int:
        """Bytes not yet taken."""
        return len(self._data) - self._position

    def take(self, count: int, what: str) -> NDArray[np.uint8]:
        """The next bytes, looked at in place."""
        if count > self.left:
            raise WireError(f"{what} of a mask need {count} bytes, but only {self.left} are left")
        start, self._position = self._position, self._position + count
        return self._data[start : self._position]

    def number(self, what: str) -> int:
        """A whole number in its only spelling."""
        value = 0
        for place in range(_LONGEST):
            byte = int(self.take(1, what)[0])
            value |= (byte & 127) << (7 * place)
            if byte < 128:
                if byte == 0 and place:
                    raise WireError(f"{what} of a mask are counted in more bytes than they need")
                return value
        raise WireError(f"{what} of a mask are counted in more than {_LONGEST} bytes")

    def bits(self, count: int, what: str) -> Bits:
        """The next zeros and ones, up to the end of a byte."""
        found = self.take(size(count), what)
        if count % 8 and int(found[-1]) >> (count % 8):
            raise WireError(f"{what} of a mask end in a byte whose unused bits are not zero")
        return np.unpackbits(found, count=count, bitorder="little").view(np.bool_)

    def planes(self, count: int, width: int, what: str) -> Whole:
        """As many numbers as `pack_planes` packed."""
        planes = self.bits(count * width, what).reshape(width, count)
        values = np.zeros(count, np.int64)
        for place in range(width):
            values |= planes[place].astype(np.int64) << place
        return values

    def end(self) -> None:
        """Insists that nothing follows."""
        if self.left:
            raise WireError(f"{self.left} bytes follow the end of a mask")
