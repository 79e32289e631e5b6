"""Entropy coding of levels: tensors of whole numbers from a small range, such as -8 to 8.

A block is a tag byte and, by the tag,

    0   the numbers in bit planes of equal width
    1   which tensors have a table of their own, the tables, then their segments: states and words

A table has the frequencies of the symbols in a tensor, or in all tensors that have none of their
own. The shorter form is chosen, so a block is never longer than the bit planes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossamer.wire.errors import WireError
from gossamer.wire.masks import bits
from gossamer.wire.masks.bits import number
from gossamer.wire.numbers import coder
from gossamer.wire.numbers.coder import BITS, STATE, WORD, Counts, Symbols

Shape: TypeAlias = tuple[int, ...]
Integers: TypeAlias = NDArray[np.int8] | NDArray[np.int16]
Whole: TypeAlias = NDArray[np.int64]

PLANES, CODED = 0, 1
_PRECISIONS = (6, 8, 11, BITS)  # of the frequencies of a table, in bits
_FINE = 10  # bits behind the point in lengths of codes
_ORDERS = 12  # of the codes of frequencies
_VARINT = 5  # most bytes of a length


def width(count: int) -> int:
    """Bits of a number among so many, if all take the same."""
    return (count - 1).bit_length()


def longest(count: int, size: int) -> int:
    """The maximum length of a block of `size` numbers, in bytes."""
    return 1 + bits.size(width(count) * size)


def entropy(values: Integers, least: int) -> float:
    """The empirical entropy of a tensor, in bits: the limit if its numbers are independent."""
    counts = np.bincount((values.ravel() - np.int16(least)).view(np.uint16))
    some = counts[counts > 0]
    return float((some * np.log2(values.size / some)).sum()) if len(some) > 1 else 0.0


def encode(tensors: Sequence[Integers], least: int, most: int) -> bytes:
    """Encodes tensors of whole numbers from `least` to `most`."""
    count = most - least + 1
    symbols = [(values.ravel() - np.int16(least)).view(np.uint16) for values in tensors]
    if any(len(part) and int(part.max()) >= count for part in symbols):
        raise ValueError(f"levels are from {least} to {most}, but others were given")
    coded = _coded(symbols, count)
    if coded is not None and len(coded) < bits.size(width(count) * sum(map(len, symbols))):
        return bytes([CODED]) + coded
    flat = np.concatenate(symbols) if symbols else np.empty(0, np.uint16)
    return bytes([PLANES]) + bits.pack_planes(flat, width(count))


def decode(
    data: bytes | memoryview, shapes: Sequence[Shape], least: int, most: int
) -> list[Integers]:
    """The inverse of `encode`; any other input raises a `WireError`."""
    count, sizes = most - least + 1, [math.prod(shape) for shape in shapes]
    if len(data) > (most_bytes := longest(count, sum(sizes))):
        raise WireError(f"a block of {len(data)} bytes is longer than {most_bytes}")
    if not len(data):
        raise WireError("a block of levels is empty")
    if data[0] == PLANES:
        parts = _planes(data[1:], sizes, count)
    elif data[0] == CODED:
        parts = _Segments(data[1:]).read(sizes, count)
    else:
        raise WireError(f"levels have an unknown encoding, {data[0]}")
    return [
        _from_symbols(part, least, most).reshape(shape)
        for part, shape in zip(parts, shapes, strict=True)
    ]


def _from_symbols(symbols: Symbols, least: int, most: int) -> Integers:
    whole: NDArray[np.int16] = symbols.view(np.int16) + np.int16(least)
    return whole.astype(np.int8) if least >= -128 and most < 128 else whole


def _planes(data: bytes | memoryview, sizes: Sequence[int], count: int) -> list[Symbols]:
    wide, total = width(count), sum(sizes)
    if len(data) != (wanted := bits.size(wide * total)):
        raise WireError(f"{total} levels take {wanted} bytes, not {len(data)}")
    line = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if line[wide * total :].any():
        raise WireError("levels end in a byte whose unused bits are not zero")
    flat = np.zeros(total, np.uint16)
    for place in range(wide):
        flat |= line[place * total : (place + 1) * total].astype(np.uint16) << np.uint16(place)
    if total and int(flat.max()) >= count:
        raise WireError(f"a level is {int(flat.max())}, {count - 1} is the highest")
    return _split(flat, sizes)


def _split(flat: Symbols, sizes: Sequence[int]) -> list[Symbols]:
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    return [flat[end - size : end] for end, size in zip(ends, sizes, strict=True)]


# tables ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """Frequencies of symbols, as they are written and as they are used."""

    text: str
    """Zeros and ones."""
    frequencies: Counts
    bits: float
    """The length of what it was made for, the table included."""


def _coded(symbols: Sequence[Symbols], count: int) -> bytes | None:
    """The segments of tensors, each with the table that makes it shortest; None without numbers."""
    counts = [np.bincount(part, minlength=count) for part in symbols]
    full = [place for place, part in enumerate(symbols) if len(part)]
    if not full:
        return None
    own = {place: _table(counts[place], count) for place in full}
    pool = _table(_sum([counts[place] for place in full]), count)
    apart = [p for p in full if own[p].bits + 8 * STATE < _length(counts[p], pool.frequencies)]
    shared = [place for place in full if place not in apart]
    tables, parts = [own[place] for place in apart], [symbols[place] for place in apart]
    if shared:
        tables.insert(0, _table(_sum([counts[place] for place in shared]), count))
        parts.insert(0, np.concatenate([symbols[place] for place in shared]))
    marks = "".join(str(int(place in apart)) for place in full)
    text = marks + "".join(table.text for table in tables)
    head = _bytes(text)
    data = [number(len(head)), head]
    for table, part in zip(tables, parts, strict=True):
        states, words = coder.encode(part, table.frequencies)
        data += [states.astype("<u4").tobytes(), number(len(words)), words.astype("<u2").tobytes()]
    return b"".join(data)


def _sum(counts: Sequence[Whole]) -> Whole:
    total: Whole = np.sum(counts, axis=0)
    return total


def _table(counts: Whole, count: int) -> _Table:
    """The table with which numbers that occur so often are shortest, itself included."""
    used = np.flatnonzero(counts)
    first, last = int(used[0]), int(used[-1])
    some = counts[first : last + 1]
    best: _Table | None = None
    for code, precision in enumerate(_PRECISIONS):
        if 2 * len(used) > 1 << precision and precision < BITS:
            continue
        shares = _shares(some, 1 << precision)
        told, order = _told(shares[:-1])
        wide = width(count)
        text = f"{code:02b}{first:0{wide}b}{last:0{wide}b}{order:04b}{told}"
        frequencies = np.zeros(count, np.uint32)
        frequencies[first : last + 1] = shares << (BITS - precision)
        length = _length(counts, frequencies) + len(text)
        if best is None or length < best.bits:
            best = _Table(text, frequencies, length)
    assert best is not None
    return best


def _shares(counts: Whole, total: int) -> Whole:
    """Whole numbers in the proportions of counts that add up to `total`, none of them lost."""
    size = int(counts.sum())
    shares = np.maximum((2 * counts * total + size) // (2 * size), counts > 0)
    while excess := int(shares.sum()) - total:
        place = int(shares.argmax())
        # Never below half: then the next largest gives, too.
        shares[place] -= excess if excess < 0 else min(excess, int(shares[place]) // 2)
    return shares


def _length(counts: Whole, frequencies: Counts) -> float:
    """The bits of numbers that occur so often, by a table that has all of them."""
    used = counts > 0
    lengths = (BITS << _FINE) - _logarithms()[frequencies[used]]
    return int((counts[used] * lengths).sum()) / (1 << _FINE)


@cache
def _logarithms() -> Whole:
    """Binary logarithms of 0 (unused) to `2 ** 15`, rounded down, the same on every host."""
    numbers = np.arange(1, (2 << BITS) + 1, dtype=np.uint64)
    whole = np.array([int(each).bit_length() - 1 for each in numbers], np.uint64)
    rest = numbers << (np.uint64(31) - whole)
    logarithms = whole.astype(np.int64)
    for _ in range(_FINE):
        rest = (rest * rest) >> np.uint64(31)
        bit = rest >> np.uint64(32)
        rest >>= bit
        logarithms = 2 * logarithms + bit.astype(np.int64)
    return np.concatenate([np.zeros(1, np.int64), logarithms])


def _told(values: Whole) -> tuple[str, int]:
    """Numbers in the exponential-Golomb code of the order that makes them shortest."""
    moved = values[:, None] + (1 << np.arange(_ORDERS))
    lengths = 2 * (_logarithms()[moved] >> _FINE).sum(axis=0) - np.arange(_ORDERS) * len(values)
    order = int(lengths.argmin())
    return "".join(_golomb(value, order) for value in values.tolist()), order


def _golomb(value: int, order: int) -> str:
    text = f"{value + (1 << order):b}"
    return "0" * (len(text) - 1 - order) + text


def _bytes(text: str) -> bytes:
    text += "0" * (-len(text) % 8)
    return int(text or "0", 2).to_bytes(len(text) // 8, "big")


class _Segments:
    """Reads the coded form of a block."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)
        self.position = 0
        self.text = ""
        self.place = 0

    def read(self, sizes: Sequence[int], count: int) -> list[Symbols]:
        """The numbers of every tensor, given how many it has."""
        head = bytes(self._take(self._number()))
        self.text = bin(int.from_bytes(b"\1" + head, "big"))[3:]
        full = [place for place, size in enumerate(sizes) if size]
        apart = [place for place in full if self._bits(1)]
        groups = [[place] for place in apart]
        if shared := [place for place in full if place not in apart]:
            groups.insert(0, shared)
        tables = [self._table(count) for _ in groups]
        if len(self.text) - self.place >= 8 or "1" in self.text[self.place :]:
            raise WireError("something follows the tables of levels")
        parts: list[Symbols] = [np.empty(0, np.uint16) for _ in sizes]
        for group, frequencies in zip(groups, tables, strict=True):
            each = [sizes[place] for place in group]
            found = _split(self._segment(frequencies, sum(each)), each)
            for place, part in zip(group, found, strict=True):
                parts[place] = part
        if self.position != len(self.data):
            raise WireError(f"{len(self.data) - self.position} bytes follow the last level")
        return parts

    def _segment(self, frequencies: Counts, count: int) -> Symbols:
        states = np.frombuffer(self._take(STATE * coder.lanes_for(count)), "<u4").astype(np.uint32)
        words = np.frombuffer(self._take(WORD * self._number()), "<u2").astype(np.uint16)
        return coder.decode(states, words, frequencies, count)

    def _table(self, count: int) -> Counts:
        wide = width(count)
        precision = _PRECISIONS[self._bits(2)]
        first, last, order = self._bits(wide), self._bits(wide), self._bits(4)
        if not first <= last < count:
            raise WireError(f"a table of levels goes from {first} to {last} of {count}")
        frequencies = np.zeros(count, np.uint32)
        left = 1 << precision
        for place in range(first, last):
            frequencies[place] = share = self._golomb(order)
            left -= share
            if left < 1:
                raise WireError("the frequencies of levels add up to more than there is")
        frequencies[last] = left
        return frequencies << np.uint32(BITS - precision)

    def _golomb(self, order: int) -> int:
        one = self.text.find("1", self.place, self.place + BITS + 2)
        if one < 0:
            raise WireError("a frequency of levels is too large")
        zeros, self.place = one - self.place, one
        return self._bits(zeros + order + 1) - (1 << order)

    def _bits(self, count: int) -> int:
        if self.place + count > len(self.text):
            raise WireError("the tables of levels are cut short")
        self.place += count
        return int(self.text[self.place - count : self.place] or "0", 2)

    def _number(self) -> int:
        value = 0
        for place in range(_VARINT):
            byte = self._take(1)[0]
            value |= (byte & 127) << (7 * place)
            if byte < 128:
                return value
        raise WireError("a length in levels is too large")

    def _take(self, size: int) -> memoryview:
        left = len(self.data) - self.position
        if size > left:
            raise WireError(f"levels need {size} bytes, but only {left} are left")
        self.position += size
        return self.data[self.position - size : self.position]
