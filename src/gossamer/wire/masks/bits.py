"""Bit packing of numbers, and readers that reject invalid input.

Bytes are filled from the lowest bit. Unused bits of the last byte are zero; readers check that.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossamer.wire.errors import WireError

Bits: TypeAlias = NDArray[np.bool_]
Whole: TypeAlias = NDArray[np.int64]
Small: TypeAlias = NDArray[np.uint8] | NDArray[np.uint16]
Numbers: TypeAlias = Small | NDArray[np.int32] | Whole
Line: TypeAlias = NDArray[np.uint8]
"""Zeros and ones, a byte each."""

_WIDEST = 48  # maximum width of a number written by `near`, in bits
_DIGITS = 5  # base-3 digits per byte: 3**5 = 243 fit
_ONES = np.uint64(0x0101010101010101)


def size(bits: int) -> int:
    """The number of bytes that hold so many bits."""
    return (bits + 7) // 8


def pack(bits: Bits | Line) -> bytes:
    """Packs zeros and ones, eight to a byte."""
    return np.packbits(bits, bitorder="little").tobytes()


def pack_planes(values: Numbers, width: int) -> bytes:
    """Packs bit planes: the lowest bit of all numbers, then the next, up to 16 planes."""
    return pack(planes(values, width))


def planes(values: Numbers, width: int) -> Line:
    """The bit planes that `pack_planes` packs."""
    low = _small(values, width)
    bits = np.empty((width, len(low)), np.uint8)
    for place in range(width):
        bits[place] = low >> place
    bits &= 1
    return bits.reshape(-1)


def digits(values: Numbers) -> Line:
    """Base-3 digits, five to a byte: the first fifth of them is lowest; padded with zeros."""
    count = -(-len(values) // _DIGITS)
    filled = np.zeros((_DIGITS, count), np.uint8)
    filled.reshape(-1)[: len(values)] = values
    packed = filled[-1]
    for row in filled[-2::-1]:
        packed = packed * np.uint8(3) + row
    return np.unpackbits(packed, bitorder="little")


def field(value: int, width: int) -> Line:
    """A number in `width` bits, the lowest first."""
    return np.array([value >> place & 1 for place in range(width)], np.uint8)


def near(value: int, order: int) -> Line:
    """A unique code for a number that is short up to about `2 ** order`.

    This is the exponential-Golomb code of that order.
    """
    moved = value + (1 << order)
    width = moved.bit_length() - 1
    return np.concatenate([field(1 << width - order, width - order + 1), field(moved, width)])


def number(value: int) -> bytes:
    """An integer as a LEB128 varint: seven bits per byte, the lowest first."""
    data = bytearray()
    while value > 127:
        data.append(128 | (value & 127))
        value >>= 7
    return bytes([*data, value])


def places(bits: Bits) -> Whole:
    """The positions of the ones.

    Up to a density of 1/10, NumPy searches for the next one, which is slower than a full scan at
    densities above 1/30; ones appended at the end make it scan.
    """
    count = int(np.count_nonzero(bits))
    if 10 * count <= len(bits) < 30 * count:
        bits = np.concatenate([bits, np.ones(len(bits) // 8 + 1, np.bool_)])
    return np.flatnonzero(bits)[:count]


def before(bits: Bits, where: Whole) -> Whole:
    """The number of ones before each position."""
    eights: NDArray[np.uint64] = np.zeros(len(bits) // 8 + 1, "<u8")
    eights.view(np.bool_)[: len(bits)] = bits
    sums = np.zeros(len(eights), np.int64)
    np.cumsum(_sum_of_bytes(eights[:-1]), out=sums[1:])
    index, rest = where >> 3, (where & 7).astype(np.uint64)
    masks = (np.uint64(1) << (rest << np.uint64(3))) - np.uint64(1)
    ones: Whole = sums[index] + _sum_of_bytes(eights[index] & masks)
    return ones


def _sum_of_bytes(words: NDArray[np.uint64]) -> Whole:
    return ((words * _ONES) >> np.uint64(56)).view(np.int64)


class Reader:
    """Reads bytes from the front; missing or invalid input raises a `WireError`."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = _bytes(data)
        self._position = 0

    @property
    def left(self) -> int:
        """The number of bytes left."""
        return len(self._data) - self._position

    def take(self, count: int, what: str) -> NDArray[np.uint8]:
        """The next bytes, without a copy."""
        if count > self.left:
            raise WireError(f"{what} of a mask need {count} bytes, but only {self.left} are left")
        start, self._position = self._position, self._position + count
        return self._data[start : self._position]

    def bits(self, count: int, what: str) -> Bits:
        """The next bits, padded to a whole byte."""
        packed = self.take(size(count), what)
        if count % 8 and int(packed[-1]) >> (count % 8):
            raise WireError(f"{what} of a mask end in a byte whose unused bits are not zero")
        return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)

    def planes(self, count: int, width: int, what: str) -> Whole:
        """The inverse of `pack_planes`."""
        bits = self.bits(count * width, what).view(np.uint8)
        return _from_planes(bits, count, width).astype(np.int64)

    def end(self) -> None:
        """Raises a `WireError` if bytes are left."""
        if self.left:
            raise WireError(f"{self.left} bytes follow the end of a mask")


class BitReader:
    """Reads bits from the front, across bytes; raises errors as `Reader` does."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._bits: Line = np.unpackbits(_bytes(data), bitorder="little")
        self._position = 0

    @property
    def left(self) -> int:
        """The number of bits left."""
        return len(self._bits) - self._position

    def take(self, count: int, what: str) -> Line:
        """The next bits, without a copy."""
        if count > self.left:
            raise WireError(f"{what} of a mask need {count} bits, but only {self.left} are left")
        start, self._position = self._position, self._position + count
        return self._bits[start : self._position]

    def field(self, width: int, what: str) -> int:
        """A number of `width` bits."""
        return sum(bit << place for place, bit in enumerate(self.take(width, what).tolist()))

    def bytes(self, count: int, what: str) -> NDArray[np.uint8]:
        """The next bytes, which need not be aligned."""
        return np.packbits(self.take(8 * count, what), bitorder="little")

    def near(self, order: int, what: str) -> int:
        """The inverse of `near`."""
        width = order
        while not self.field(1, what):
            width += 1
            if width >= _WIDEST:
                raise WireError(f"{what} of a mask have a count of more than {_WIDEST} bits")
        return (1 << width) - (1 << order) + self.field(width, what)

    def planes(self, count: int, width: int, what: str) -> Small:
        """The inverse of `planes`."""
        return _from_planes(self.take(count * width, what), count, width)

    def digits(self, count: int, what: str) -> Line:
        """The inverse of `digits`."""
        rest = self.bytes(-(-count // _DIGITS), what)
        if (rest >= 3**_DIGITS).any():
            raise WireError(f"{what} of a mask have a byte of {rest.max()}; 242 is the largest")
        columns = np.empty((_DIGITS, len(rest)), np.uint8)
        for row in columns:
            thirds = rest // np.uint8(3)
            np.subtract(rest, thirds * np.uint8(3), out=row)
            rest = thirds
        line = columns.reshape(-1)
        if line[count:].any():
            raise WireError(f"{what} of a mask end in a byte whose unused digits are not zero")
        return line[:count]

    def end(self) -> None:
        """Raises a `WireError` unless only zero padding is left."""
        if self.left >= 8:
            raise WireError(f"{self.left // 8} bytes follow the end of a mask")
        if self._bits[self._position :].any():
            raise WireError("a mask ends in a byte whose unused bits are not zero")


def _bytes(data: bytes | memoryview) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)


def _small(values: Numbers, width: int) -> Small:
    """Numbers truncated to the 8 or 16 low bits that hold `width` bits."""
    return values.astype(np.uint8) if width <= 8 else values.astype(np.uint16)


def _from_planes(bits: Line, count: int, width: int) -> Small:
    values = _small(np.zeros(count, np.uint8), width)
    for place, plane in enumerate(bits.reshape(width, count)):
        values |= _small(plane, width) << np.uint8(place)
    return values
