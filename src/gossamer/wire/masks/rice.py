"""Golomb-coded gaps between ones, row by row: `rice-row`, the default encoding of masks.

A row of density p is a sequence of gaps between ones. The best code of a gap is its quotient by
about `0.7 / p` in unary, then the remainder. Each row has one of 16 classes: full, `k` = 0 to 13,
or empty. The rows of a class, over all tensors, form one stream with the divisor `2 ** k` (a Rice
code) or, where that is shorter, `3 * 2 ** (k - 1)`. The bits of a message are:

    2 bits      0: bitmap (the tag fills a byte, and only the bitmap follows); 1: few changes of a
                known mask, see `few.py`; 2: Golomb; 3: Golomb given a known mask (two bodies)
    body        1, the class of all rows of all tensors in 4 bits, and whether ones and zeros are
                swapped; or 0 and a byte per non-empty tensor: its densest class, the bits per row
                for the difference from that class (0: all rows have it), and whether it is
                swapped; then these differences, for tensors in which rows differ
    k = 0       the uncoded bits
    k = 1..13   the length of the unary part; the quotients in unary, each ended by a one; the
                remainders: for the divisor `3 * 2 ** (k - 1)`, first their base-3 digits, five to a
                byte; then their low bits

Classes are sent, never computed by the receiver, and all arithmetic is on integers, so the bytes
are identical on every host. Tensors with more ones than zeros are swapped. Given a mask that the
receiver holds, two masks are sent instead: which of its ones are lost, and which zeros become ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gossamer.wire.errors import WireError
from gossamer.wire.masks import few
from gossamer.wire.masks.bits import (
    BitReader,
    Bits,
    Line,
    Reader,
    Whole,
    before,
    digits,
    field,
    near,
    pack,
    places,
    planes,
    size,
)
from gossamer.wire.masks.rows import Rows, Shape, counts, edges, line, split

BITMAP, FEW, GOLOMB, GIVEN = range(4)

FULL, PLAIN, EMPTY = 0, 1, 15  # class k + 1 is Golomb with parameter k
_K = np.arange(1, 14)[:, None]
_BIT = 16  # costs are multiples of 1 / _BIT bits
_HEAD = 8  # bits of the head of a tensor
_WIDTHS = 5  # a class takes 0 to 4 bits
_BASES = np.concatenate([np.arange(17 - (1 << width)) for width in range(_WIDTHS)])
_WIDTH = np.repeat(np.arange(_WIDTHS), [17 - (1 << width) for width in range(_WIDTHS)])
_CLASSES = np.arange(16)[:, None]
_NEEDED = np.array([spread.bit_length() for spread in range(16)])


def encode(masks: Sequence[Bits]) -> bytes:
    """Encodes all masks of a message; at most one byte longer than their bitmap."""
    rows = Rows.of(tuple(mask.shape for mask in masks))
    coded = _message(GOLOMB, _body(line(masks), rows))
    bitmap = size(int(rows.edges[-1]))
    return coded if len(coded) <= bitmap else bytes([BITMAP]) + pack(line(masks))


def decode(data: bytes | memoryview, shapes: Sequence[Shape]) -> list[Bits]:
    """The masks that were encoded; any other input raises a `WireError`."""
    rows = Rows.of(tuple(shapes))
    tag = _tag(data, rows)
    if tag in (FEW, GIVEN):
        raise WireError("a mask is encoded relative to another one, which is unknown here")
    return split(_read_alone(tag, data, rows), shapes)


def encode_given(masks: Sequence[Bits], known: Sequence[Bits]) -> bytes:
    """Encodes all masks for a receiver that holds `known`; never longer than `encode`."""
    rows = Rows.of(_same_shapes(masks, known))
    new, old = line(masks), line(known)
    ones, grown = places(old), places(new > old)
    lost = ~new.take(ones)
    held = before(old, np.concatenate([grown, rows.edges]))
    gained = np.zeros(len(old) - len(ones), np.bool_)
    gained[grown - held[: len(grown)]] = True
    losing, gaining = _given_rows(held[len(grown) :], rows)
    shorter = few.write(lost, gained)
    coded = _message(GIVEN, _body(lost, losing) + _body(gained, gaining))
    if shorter is not None:
        coded = min(_message(FEW, shorter), coded, key=len)
    if 8 * len(coded) < _least(new, rows):
        return coded
    return min(encode(masks), coded, key=len)


def decode_given(data: bytes | memoryview, known: Sequence[Bits]) -> list[Bits]:
    """The inverse of `encode_given`, given the same `known`."""
    shapes = tuple(mask.shape for mask in known)
    rows = Rows.of(shapes)
    tag = _tag(data, rows)
    if tag in (BITMAP, GOLOMB):
        return split(_read_alone(tag, data, rows), shapes)
    bits, reader = line(known), _open(data)
    if tag == FEW:
        few.revise(reader, bits)
        return split(bits, shapes)
    losing, gaining = _given_rows(before(bits, rows.edges), rows)
    lost, gained = _read_body(reader, losing), _read_body(reader, gaining)
    reader.end()
    dropped, grown = places(bits)[lost], places(~bits)[gained]
    bits[dropped] = False
    bits[grown] = True
    return split(bits, shapes)


def _message(tag: int, body: list[Line]) -> bytes:
    return pack(np.concatenate([field(tag, 2), *body]))


def _tag(data: bytes | memoryview, rows: Rows) -> int:
    """The tag of an encoded mask; checks that its length is one that an encoder produces."""
    if not len(data):
        raise WireError("the tag of a mask needs 1 byte, but only 0 are left")
    tag, longest = data[0] & 3, size(int(rows.edges[-1]))
    if tag == BITMAP and data[0]:
        raise WireError(f"a mask has the tag {data[0]}; the tag of a bitmap is the byte {BITMAP}")
    if len(data) - 1 > longest or (tag != BITMAP and len(data) - 1 == longest):
        raise WireError(f"a mask is encoded in {len(data) - 1} bytes; its bitmap has {longest}")
    return tag


def _open(data: bytes | memoryview) -> BitReader:
    reader = BitReader(data)
    reader.take(2, "the tag")
    return reader


def _read_alone(tag: int, data: bytes | memoryview, rows: Rows) -> Bits:
    reader: Reader | BitReader
    if tag == BITMAP:
        reader = Reader(data[1:])
        bits = reader.bits(int(rows.edges[-1]), "the bits")
    else:
        reader = _open(data)
        bits = _read_body(reader, rows)
    reader.end()
    return bits


def _same_shapes(masks: Sequence[Bits], known: Sequence[Bits]) -> tuple[Shape, ...]:
    shapes, others = [mask.shape for mask in masks], [mask.shape for mask in known]
    if shapes != others:
        raise ValueError(f"the masks have shapes {shapes}, the known ones have {others}")
    return tuple(shapes)


def _given_rows(held: Whole, rows: Rows) -> tuple[Rows, Rows]:
    """The ones of each row of a known mask as rows, and its zeros; `held` counts ones."""
    ones = np.diff(held)
    return rows.as_long_as(ones), rows.as_long_as(rows.lengths - ones)


def _least(bits: Bits, rows: Rows) -> int:
    """A lower bound on `encode` in bits: two per one of a row, or per zero if these are fewer."""
    ones = np.diff(before(bits, rows.edges))
    return 2 * int(np.minimum(ones, rows.lengths - ones).sum())


def _body(bits: Bits, rows: Rows) -> list[Line]:
    """Encodes a bit vector, and modifies it: tensors are swapped in place."""
    if not len(rows.lengths):
        return []
    swapped = [2 * int(np.count_nonzero(bits[span])) > _length(span) for span in rows.spans]
    _swap(bits, rows, swapped)
    ones = places(bits)
    starts = np.searchsorted(ones, rows.edges)
    number_of = np.diff(starts)
    classes = _choose(rows, number_of, same_swap=len(set(swapped)) == 1)
    parts = _heads(classes, rows, swapped)
    ends = rows.edges
    if classes.min() < classes.max():
        order = np.argsort(classes, kind="stable")
        some = number_of[order]
        ends, taken = edges(rows.lengths[order]), edges(some)
        index = np.repeat(starts[order] - taken[:-1], some)
        index += np.arange(len(ones))
        ones = ones[index]
        ones += np.repeat(ends[:-1] - rows.edges[order], some)
        starts = taken
    elif classes[0] == PLAIN:
        return [*parts, bits.view(np.uint8)]
    for k, first, last in _streams(classes, ends):
        inside = ones[starts[first] : starts[last]]
        parts += _stream(inside, int(ends[first]), int(ends[last]), k)
    return parts


def _length(span: slice) -> int:
    length: int = span.stop - span.start
    return length


def _swap(bits: Bits, rows: Rows, swapped: Sequence[bool]) -> None:
    for span, swap in zip(rows.spans, swapped, strict=True):
        if swap:
            np.logical_not(bits[span], out=bits[span])


def _streams(classes: Whole, ends: Whole) -> Iterator[tuple[int, int, int]]:
    """Each `k` with any bits, and its range of rows in the order of classes."""
    cuts = edges(np.bincount(classes, minlength=16)).tolist()
    for k in range(EMPTY - PLAIN):
        first, last = cuts[k + PLAIN], cuts[k + PLAIN + 1]
        if ends[first] < ends[last]:
            yield k, first, last


def _stream(ones: Whole, start: int, end: int, k: int) -> list[Line]:
    """Encodes the rows of a class, at `start` to `end`, given the positions of their ones."""
    count = len(ones)
    if k == 0:
        bitmap = np.zeros(end - start, np.uint8)
        bitmap[ones - start] = 1
        return [bitmap]
    finer = _finer(count, end - start, k)
    low = k - finer
    gaps = _whole(count, end - start)
    gaps[:1] = ones[:1] - start
    np.subtract(ones[1:], ones[:-1], out=gaps[1:], casting="same_kind")
    gaps[1:] -= 1
    quotients, middle = gaps >> low, []
    if finer:
        thirds = quotients // 3
        middle = [digits(quotients - 3 * thirds)]
        quotients = thirds
    quotients += 1
    lasts = np.cumsum(quotients, dtype=np.int64)
    unary = np.zeros(int(lasts[-1]) + 1 if count else 1, np.uint8)
    unary[lasts] = 1
    extent = near(len(unary) - 1, _order(end - start, k))
    return [extent, unary[1:], *middle, planes(gaps, low)]


def _whole(count: int, most: int) -> NDArray[np.int32] | Whole:
    """An uninitialised array for integers up to `most`; int32 is twice as fast as int64."""
    return np.empty(count, np.int32) if most < 1 << 31 else np.empty(count, np.int64)


def _finer(count: int, length: int, k: int) -> bool:
    """Whether to use the divisor with 3: saves a third of the zeros, costs 0.6 bits per one."""
    return 5 * (length - count) > 9 * count << k


def _order(length: int, k: int) -> int:
    """The order of the code of the unary part's length."""
    return (length >> k).bit_length()


def _read_body(reader: BitReader, rows: Rows) -> Bits:
    if not len(rows.lengths):
        return np.empty(0, np.bool_)
    classes, swapped = _read_heads(reader, rows)
    bits = np.zeros(int(rows.edges[-1]), np.bool_)
    if (classes == FULL).any():
        bits |= np.repeat(classes == FULL, rows.lengths)
    order = np.argsort(classes, kind="stable")
    ends = edges(rows.lengths[order])
    for k, first, last in _streams(classes, ends):
        length = int(ends[last] - ends[first])
        if length == len(bits) and k == 0:
            bits = reader.take(length, "plain bits").view(np.bool_)
        elif k == 0:
            bits[np.repeat(classes == PLAIN, rows.lengths)] = reader.take(length, "plain bits")
        else:
            ones = _read_stream(reader, length, k)
            if length < len(bits):
                inside = ends[first : last + 1] - ends[first]
                moved = rows.edges[order[first:last]] - inside[:-1]
                ones += np.repeat(moved, counts(ones, inside))
            bits[ones] = True
    for span, swap in zip(rows.spans, swapped, strict=True):
        if 2 * int(np.count_nonzero(bits[span])) > _length(span) - swap:
            raise WireError("a mask has ones and zeros swapped where that makes it longer")
    _swap(bits, rows, swapped)
    return bits


def _read_stream(reader: BitReader, length: int, k: int) -> Whole:
    extent = reader.near(_order(length, k), "gaps")
    if extent > min(length, reader.left):
        raise WireError(f"a mask has gaps of {extent} bits in rows of {length} bits")
    ends = np.flatnonzero(reader.take(extent, "gaps").view(np.bool_))
    if extent and (not len(ends) or ends[-1] != extent - 1):
        raise WireError("a mask has a gap that does not end")
    count = len(ends)
    finer = _finer(count, length, k)
    low, divisor = (k - 1, 3 << k - 1) if finer else (k, 1 << k)
    middle = reader.digits(count, "remainders") if finer else None
    remainders = reader.planes(count, low, "remainders")
    if middle is not None:
        remainders = remainders + (middle.astype(np.uint16) << low)
    ones = np.cumsum(remainders, dtype=np.int64)
    ends *= divisor
    ones += ends
    ones -= np.arange(0, count * (divisor - 1), divisor - 1)
    if extent and ones[-1] >= length:
        raise WireError(f"a mask has a one at {ones[-1]} in rows of {length} bits")
    return ones


def _choose(rows: Rows, ones: Whole, same_swap: bool) -> Whole:
    """The class of each row, by the estimated costs of all layouts of the heads."""
    first, rows_of = rows.groups[:-1], np.diff(rows.groups)
    held, sizes = np.add.reduceat(ones, first), np.add.reduceat(rows.lengths, first)
    count = len(ones)
    costs = _costs(
        np.concatenate([ones, held, held.sum(keepdims=True)]),
        np.concatenate([rows.lengths, sizes, sizes.sum(keepdims=True)]),
        count,
    )
    costs, alone, everywhere = costs[:, :count], costs[:, count:-1], costs[:, -1]
    least = np.add.reduceat(costs.min(axis=0), first) + _BIT * rows_of
    best = np.minimum(alone.min(axis=0), least) + _BIT * _HEAD
    if same_swap and everywhere.min() <= best.sum():
        return np.full(count, everywhere.argmin())
    within, sums = costs, [alone]
    for width in range(1, _WIDTHS):
        half = 1 << (width - 1)
        within = np.minimum(within[:-half], within[half:])
        sums.append(np.add.reduceat(within, first, axis=1) + _BIT * width * rows_of)
    options = np.concatenate(sums)
    if same_swap and everywhere.min() <= (options.min(axis=0) + _BIT * _HEAD).sum():
        return np.full(count, everywhere.argmin())
    best = options.argmin(axis=0)
    steps = _CLASSES - _BASES[best][rows.owners]
    outside = (steps < 0) | (steps >> _WIDTH[best][rows.owners] > 0)
    classes: Whole = np.where(outside, costs.max() + 1, costs).argmin(axis=0)
    return classes


def _costs(ones: Whole, lengths: Whole, rows: int) -> Whole:
    """The cost of each class, given numbers of ones and lengths: of rows, then of whole streams.

    The quotients of N gaps with sum Z are estimated to have the sum Z / m - N (m - 1) / 2 m, as for
    uniform remainders, so the costs of rows add up to that of their stream. Only streams use the
    divisor with 3. The last column is the stream of all rows.
    """
    costs = np.empty((16, len(ones)), np.int64)
    never = _BIT * (int(lengths[-1]) + 1)
    costs[FULL] = np.where(ones == lengths, 0, never)
    costs[PLAIN] = _BIT * lengths
    costs[EMPTY] = np.where(ones == 0, 0, never)
    unary = (_BIT * lengths - _BIT // 2 * ones) >> _K
    golomb = costs[PLAIN + 1 : EMPTY]
    np.multiply(ones, _BIT * _K + _BIT // 2, out=golomb)
    golomb += unary
    saved = unary[:, rows:] // 3 - _BIT * 3 * ones[rows:] // 5
    golomb[:, rows:] -= np.maximum(saved, 0) - 1  # never 0: empty rows have their own class
    return costs


def _heads(classes: Whole, rows: Rows, swapped: Sequence[bool]) -> list[Line]:
    if classes.min() == classes.max() and len(set(swapped)) == 1:
        return [field(1 | int(classes[0]) << 1 | swapped[0] << 5, 6)]
    base = np.minimum.reduceat(classes, rows.groups[:-1])
    width = _NEEDED[np.maximum.reduceat(classes, rows.groups[:-1]) - base]
    heads = (base | width << 4 | np.array(swapped) << 7).astype(np.uint8)
    steps = classes - base[rows.owners]
    of_row = width[rows.owners]
    parts = [planes(steps[of_row == bits], bits) for bits in range(1, _WIDTHS)]
    return [field(0, 1), np.unpackbits(heads, bitorder="little"), *parts]


def _read_heads(reader: BitReader, rows: Rows) -> tuple[Whole, list[bool]]:
    groups = len(rows.groups) - 1
    if reader.field(1, "classes of tensors"):
        head = reader.field(5, "classes of tensors")
        return np.full(len(rows.lengths), head & 15), [head > 15] * groups
    heads = reader.bytes(groups, "classes of tensors").astype(np.int64)
    base, width = heads & 15, heads >> 4 & 7
    if (width >= _WIDTHS).any():
        raise WireError(f"a mask encodes row classes in {width.max()} bits; the maximum is 4")
    steps = np.zeros(len(rows.lengths), np.int64)
    for bits in range(1, _WIDTHS):
        chosen = np.flatnonzero(width[rows.owners] == bits)
        steps[chosen] = reader.planes(len(chosen), bits, "classes of rows")
    classes = base[rows.owners] + steps
    if classes.max() > EMPTY:
        raise WireError(f"a mask has a row of class {classes.max()}; the last class is {EMPTY}")
    least = np.minimum.reduceat(steps, rows.groups[:-1])
    most = np.maximum.reduceat(steps, rows.groups[:-1])
    if least.any() or (_NEEDED[most] != width).any():
        raise WireError("a mask encodes row classes in more bits than they need")
    if heads.min() == heads.max() and not width.any():
        raise WireError("a mask encodes a class for each tensor where one suffices")
    return classes, (heads > 127).tolist()
