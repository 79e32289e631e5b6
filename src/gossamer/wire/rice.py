"""Masks as Rice-coded gaps, row by row: `rice-row`, the codec of every mask unless told otherwise.

A row of density p is a run of gaps between ones, and a gap is cheapest as its quotient by `2 ** k`
in unary and its remainder in `k` bits, with `k` to match p. Each row is of one of 16 classes: full,
`k` = 0 to 13, or empty. Rows of one class, over all tensors, are one stream. A message is

    tag         0 bitmap (and then only that), 1 Rice, 2 Rice given a known mask
    one byte per tensor that is not empty: its densest class, how many bits tell a row's class from
                that one (0: all rows are of one class), and whether ones and zeros are swapped
    the classes of rows, in tensors where they differ
    k = 0       the bits themselves
    k = 1..13   the length of the unary part; unary, a one at the end of each quotient; remainders

The class is sent, never computed by the receiver, and all arithmetic is on whole numbers, so the
bytes are the same on every host. A tensor of more ones than zeros is swapped. Given a mask that the
receiver holds, two masks travel instead: what it loses of its ones, what it gains in its zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gossamer.wire.bits import Bits, Reader, Whole, number, pack, pack_planes, size
from gossamer.wire.errors import WireError
from gossamer.wire.rows import Rows, Shape, counts, edges, line, row_lengths, split

BITMAP, RICE, GIVEN = range(3)

FULL, EMPTY = 0, 15
_LARGEST = 13  # class k + 1 is Rice with parameter k
_ONE = 1 << 24  # probabilities are multiples of 1 / _ONE
_WIDTHS = 5  # a class is told by 0 to 4 bits
_BASES = np.concatenate([np.arange(17 - (1 << width)) for width in range(_WIDTHS)])
_WIDTH = np.repeat(np.arange(_WIDTHS), [17 - (1 << width) for width in range(_WIDTHS)])
_NEEDED = np.array([spread.bit_length() for spread in range(16)])


def encode(masks: Sequence[Bits]) -> bytes:
    """All masks of one message; never more than a byte longer than their bitmap."""
    bits = line(masks)
    return _plain(bits, [mask.shape for mask in masks])


def decode(data: bytes | memoryview, shapes: Sequence[Shape]) -> list[Bits]:
    """The masks that were encoded; anything else is a `WireError`."""
    lengths = row_lengths(shapes)
    tag, reader = _open(data, lengths)
    if tag == GIVEN:
        raise WireError("the message gives a mask by another one, which is not known here")
    return split(_read_plain(tag, reader, lengths), shapes)


def encode_given(masks: Sequence[Bits], known: Sequence[Bits]) -> bytes:
    """All masks for a receiver that holds `known`; never longer than `encode` makes it."""
    shapes = _same_shapes(masks, known)
    new, old = line(masks), line(known)
    rows = Rows.of(_given_lengths(old, row_lengths(shapes)))
    changes = np.concatenate([~new[old], new[~old]])
    return min(_plain(new, shapes), bytes([GIVEN]) + _body(changes, rows), key=len)


def decode_given(data: bytes | memoryview, known: Sequence[Bits]) -> list[Bits]:
    """The masks from `encode_given`, by a receiver that holds the same `known`."""
    shapes = [mask.shape for mask in known]
    lengths = row_lengths(shapes)
    tag, reader = _open(data, lengths)
    if tag != GIVEN:
        return split(_read_plain(tag, reader, lengths), shapes)
    old = line(known)
    changes = _read_body(reader, Rows.of(_given_lengths(old, lengths)))
    kept = int(np.count_nonzero(old))
    new = np.empty_like(old)
    new[old] = ~changes[:kept]
    new[~old] = changes[kept:]
    return split(new, shapes)


def _plain(bits: Bits, shapes: Sequence[Shape]) -> bytes:
    bitmap = bytes([BITMAP]) + pack(bits)
    coded = bytes([RICE]) + _body(bits, Rows.of(row_lengths(shapes)))
    return min(bitmap, coded, key=len)


def _open(data: bytes | memoryview, lengths: Sequence[Whole]) -> tuple[int, Reader]:
    """The tag, once the length is known to be one that an encoder can have made."""
    longest = size(int(sum(row.sum() for row in lengths)))
    reader = Reader(data)
    tag = int(reader.take(1, "the tag")[0])
    if tag not in (BITMAP, RICE, GIVEN):
        raise WireError(f"a mask has the tag {tag}; known are {BITMAP} to {GIVEN}")
    if reader.left > longest or (tag != BITMAP and reader.left == longest):
        raise WireError(f"a mask has {reader.left} bytes where its bitmap has {longest}")
    return tag, reader


def _read_plain(tag: int, reader: Reader, lengths: Sequence[Whole]) -> Bits:
    rows = Rows.of(lengths)
    if tag == RICE:
        return _read_body(reader, rows)
    bits = reader.bits(int(rows.edges[-1]), "the bits")
    reader.end()
    return bits


def _same_shapes(masks: Sequence[Bits], known: Sequence[Bits]) -> list[Shape]:
    shapes, others = [mask.shape for mask in masks], [mask.shape for mask in known]
    if shapes != others:
        raise ValueError(f"the masks have shapes {shapes}, the known ones have {others}")
    return shapes


def _given_lengths(old: Bits, lengths: Sequence[Whole]) -> list[Whole]:
    """Rows of the two streams: the ones of each old row, then the zeros of each."""
    ones = np.flatnonzero(old)
    ends = edges([int(row.sum()) for row in lengths])
    held = [counts(ones, start + edges(row)) for start, row in zip(ends[:-1], lengths, strict=True)]
    return [*held, *(row - some for row, some in zip(lengths, held, strict=True))]


def _body(bits: Bits, rows: Rows) -> bytes:
    """The Rice code of a line of bits, which is spoilt: tensors are swapped in place."""
    swapped = np.zeros(len(rows.spans), np.int64)
    for group, span in enumerate(rows.spans):
        some = bits[span]
        if 2 * int(np.count_nonzero(some)) > len(some):
            np.logical_not(some, out=some)
            swapped[group] = 1
    ones = np.flatnonzero(bits)
    starts = np.searchsorted(ones, rows.edges)
    number_of = np.diff(starts)
    classes = _choose(rows, number_of)
    parts = [_class_bytes(classes, rows, swapped)]
    order = np.argsort(classes, kind="stable")
    ends = edges(rows.lengths[order])  # rows from here on in the order of their classes
    taken = edges(number_of[order])
    if len(order) and classes[order[0]] != classes[order[-1]]:
        index = np.repeat(starts[order] - taken[:-1], number_of[order])
        moved = np.repeat(ends[:-1] - rows.edges[order], number_of[order])
        index += np.arange(len(ones))
        ones = ones[index] + moved
    cuts = np.searchsorted(classes[order], np.arange(17))
    for k in range(_LARGEST + 1):
        first, last = cuts[k + 1], cuts[k + 2]
        if ends[first] < ends[last]:
            inside = ones[taken[first] : taken[last]] - ends[first]
            parts.append(_stream(inside, int(ends[last] - ends[first]), k))
    return b"".join(parts)


def _stream(ones: Whole, length: int, k: int) -> bytes:
    """One class of rows: the positions of their ones within it."""
    if k == 0:
        bitmap = np.zeros(length, np.uint8)
        bitmap[ones] = 1
        return pack(bitmap)
    gaps = np.diff(ones, prepend=-1) - 1
    ends = np.cumsum((gaps >> k) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    unary[ends] = 1
    return b"".join([number(len(unary)), pack(unary), pack_planes(gaps, k)])


def _read_body(reader: Reader, rows: Rows) -> Bits:
    classes, swapped = _read_classes(reader, rows)
    bits = np.repeat(classes == FULL, rows.lengths)
    order = np.argsort(classes, kind="stable")
    ends = edges(rows.lengths[order])
    cuts = np.searchsorted(classes[order], np.arange(17))
    for k in range(_LARGEST + 1):
        first, last = cuts[k + 1], cuts[k + 2]
        length = int(ends[last] - ends[first])
        if length and k == 0:
            bits[np.repeat(classes == 1, rows.lengths)] = reader.bits(length, "plain bits")
        elif length:
            ones = _read_stream(reader, length, k)
            if length < len(bits):
                inside = ends[first : last + 1] - ends[first]
                moved = rows.edges[order[first:last]] - inside[:-1]
                ones += np.repeat(moved, counts(ones, inside))
            bits[ones] = True
    reader.end()
    for span, swap in zip(rows.spans, swapped.tolist(), strict=True):
        some = bits[span]
        if 2 * int(np.count_nonzero(some)) > len(some) - swap:
            raise WireError("a mask has ones and zeros swapped where that makes it longer")
        if swap:
            np.logical_not(some, out=some)
    return bits


def _read_stream(reader: Reader, length: int, k: int) -> Whole:
    extent = reader.number("gaps")
    if extent > min(length, 8 * reader.left):
        raise WireError(f"a mask has gaps of {extent} bits in rows of {length} bits")
    ends = np.flatnonzero(reader.bits(extent, "gaps"))
    if extent and (not len(ends) or ends[-1] != extent - 1):
        raise WireError("a mask has a gap that does not end")
    remainders = reader.planes(len(ends), k, "remainders")
    gaps = ((np.diff(ends, prepend=-1) - 1) << k) | remainders
    ones = np.cumsum(gaps + 1) - 1
    if extent and ones[-1] >= length:
        raise WireError(f"a mask has a one at {ones[-1]} in rows of {length} bits")
    return ones


def _choose(rows: Rows, ones: Whole) -> Whole:
    """The class of each row, by the expected cost in bits of every way to write its tensor."""
    if not len(ones):
        return np.empty(0, np.int64)
    never = int(rows.edges[-1]) + 1
    costs = np.empty((16, len(ones)), np.int64)
    costs[FULL] = np.where(ones == rows.lengths, 0, never)
    costs[EMPTY] = np.where(ones == 0, 0, never)
    costs[1] = rows.lengths
    power = _ONE * (rows.lengths - ones) // np.maximum(rows.lengths, 1)
    for k in range(1, _LARGEST + 1):
        power = power * power // _ONE  # the chance of a gap of 2 ** k or more
        quotients = ones * power // np.maximum(_ONE - power, 1)
        unary = np.where(ones == 0, (rows.lengths >> k) + 1, quotients)
        costs[k + 1] = ones * (k + 1) + unary
    within, sums = costs, []
    for width in range(_WIDTHS):
        if width:
            half = 1 << (width - 1)
            within = np.minimum(within[:-half], within[half:])
        of_group = np.add.reduceat(within, rows.groups[:-1], axis=1)
        sums.append(of_group + width * np.diff(rows.groups))
    best = np.concatenate(sums).argmin(axis=0)
    base, width_of = _BASES[best][rows.owners], _WIDTH[best][rows.owners]
    steps = np.arange(16)[:, None] - base
    allowed = (steps >= 0) & (steps < 1 << width_of)
    classes: Whole = np.where(allowed, costs, never + 1).argmin(axis=0)
    return classes


def _class_bytes(classes: Whole, rows: Rows, swapped: Whole) -> bytes:
    if not len(classes):
        return b""
    base = np.minimum.reduceat(classes, rows.groups[:-1])
    width = _NEEDED[np.maximum.reduceat(classes, rows.groups[:-1]) - base]
    parts = [(base | width << 4 | swapped << 7).astype(np.uint8).tobytes()]
    steps = classes - base[rows.owners]
    of_row = width[rows.owners]
    parts += [pack_planes(steps[of_row == bits], bits) for bits in range(1, _WIDTHS)]
    return b"".join(parts)


def _read_classes(reader: Reader, rows: Rows) -> tuple[Whole, Whole]:
    heads = reader.take(len(rows.groups) - 1, "classes of tensors").astype(np.int64)
    base, width, swapped = heads & 15, heads >> 4 & 7, heads >> 7
    if (width >= _WIDTHS).any():
        raise WireError(f"a mask tells classes of rows by {width.max()} bits; 4 are enough")
    if not len(heads):
        return np.empty(0, np.int64), swapped
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
        raise WireError("a mask tells classes of rows by more bits than they need")
    return classes, swapped
