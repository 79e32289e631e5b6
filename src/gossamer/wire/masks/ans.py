"""Range-coded masks with classes of rows and columns: `ans-rowcol`, smaller and slower.

The rows of a tensor are ranked by density and divided into `2 ** i` classes, input channels into
`2 ** j`, with the best `i` and `j` up to 4 (`ans-row`: `j` = 0). Each pair of classes is a cell
with a density from a fixed grid. All bits of one density, over all tensors, are coded eight at a
time with the table of that density. A message has

    tag         0: bitmap (only the bitmap follows); 5: the range coder of constriction 0.5
    one byte per non-empty tensor: i in the low four bits, j in the high four
    per tensor  the classes of rows, the classes of columns, the density of each cell
    32-bit words of the range coder, little-endian

Tables are computed from integers and exact products, so every host decodes the same bits. The
coder is an optional dependency: `pip install gossamer[ans]`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from gossamer.wire.errors import WireError
from gossamer.wire.masks.bits import Bits, Reader, Whole, pack, pack_planes, size
from gossamer.wire.masks.rows import Shape, edges, line, split, view

BITMAP, RANGE = 0, 5
_VERSION = "0.5"

_NEVER, _ALWAYS = 0, 255  # densities 0 and 1: bits of such cells are not sent
_LEVELS = 5  # classes: 1, 2, 4, 8 or 16
_FINEST = 16
_PART = 1 << 16  # bits sorted at a time, sixteen bytes of memory each


def _odds(density: int) -> tuple[int, int]:
    """The odds of a one at a point of the grid: powers of 9/8, even in the middle."""
    steps = density - 127
    return (9**steps, 8**steps) if steps >= 0 else (8**-steps, 9**-steps)


_PRECISION = 28
_CHANCES = np.array([(a << _PRECISION) // (a + b) for a, b in map(_odds, range(1, _ALWAYS))])
_MIDDLES = (_CHANCES[:-1] + _CHANCES[1:]) // 2

_NODES = np.concatenate([np.repeat(np.eye(1 << i, dtype=np.int64), 16 >> i, 1) for i in range(5)])
"""The finest classes in each class of each level, coarsest level first."""
_LEVEL = np.repeat(np.eye(_LEVELS), [1, 2, 4, 8, 16], axis=1)


@dataclass(frozen=True)
class Table:
    """A tensor as a table of rows and input channels; their classes divide it into cells."""

    rows: int
    columns: int
    depth: int
    """The number of bits per row and input channel."""

    @classmethod
    def of(cls, shape: Shape) -> Table:
        """The table of a shape, with the rows of `view`; a single row has a single channel."""
        rows, length = view(shape)
        columns = shape[1] if rows > 1 else 1
        return cls(rows, columns, length // columns)

    def densities(self, rows: Whole, columns: Whole, cells: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The density of each bit."""
        return np.repeat(cells[rows][:, columns].reshape(-1), self.depth)


def encode(masks: Sequence[Bits], columns: bool = True) -> bytes:
    """Encodes all masks of a message; at most one byte longer than their bitmap."""
    bits = line(masks)
    bitmap = bytes([BITMAP]) + pack(bits)
    present = [mask for mask in masks if mask.size]
    if not present:
        return bitmap
    tables = [Table.of(mask.shape) for mask in present]
    head, density = _describe(present, tables, columns)
    order = np.argsort(density, kind="stable")
    words = _code(bits[order], np.bincount(density, minlength=256))
    return min(bitmap, bytes([RANGE]) + head + words, key=len)


def decode(data: bytes | memoryview, shapes: Sequence[Shape]) -> list[Bits]:
    """The masks that were encoded; any other input raises a `WireError`."""
    total = sum(math.prod(shape) for shape in shapes)
    reader = Reader(data)
    tag = int(reader.take(1, "the tag")[0])
    if tag not in (BITMAP, RANGE):
        raise WireError(f"a mask has the tag {tag}; known are {BITMAP} and {RANGE}")
    if reader.left > size(total) or (tag != BITMAP and reader.left == size(total)):
        raise WireError(f"a mask is encoded in {reader.left} bytes; its bitmap has {size(total)}")
    if tag == BITMAP:
        bits = reader.bits(total, "the bits")
        reader.end()
        return split(bits, shapes)
    density = _read_densities(reader, [Table.of(shape) for shape in shapes if math.prod(shape)])
    if reader.left % 4:
        raise WireError(f"a mask has {reader.left} bytes of code, not a multiple of 4")
    words = reader.take(reader.left, "the code").tobytes()
    counts = _counts(density)
    return split(_unsorted(_decode(words, counts), density, counts), shapes)


def _counts(density: NDArray[np.uint8]) -> Whole:
    """The number of bits of each density, counted in parts: NumPy takes eight bytes per bit."""
    parts = (density[start : start + _PART] for start in range(0, len(density), _PART))
    return sum((np.bincount(part, minlength=256) for part in parts), np.zeros(256, np.int64))


def _unsorted(ordered: Bits, density: NDArray[np.uint8], counts: Whole) -> Bits:
    """Restores the original order of bits that are sorted by density."""
    bits = np.empty(len(ordered), np.bool_)
    at = edges(counts)
    for start in range(0, len(ordered), _PART):
        part = density[start : start + _PART]
        some = np.bincount(part, minlength=256)
        pieces = [ordered[at[each] : at[each] + some[each]] for each in np.flatnonzero(some)]
        bits[start : start + _PART][np.argsort(part, kind="stable")] = np.concatenate(pieces)
        at[:-1] += some
    return bits


def _describe(
    masks: Sequence[Bits], tables: Sequence[Table], columns: bool
) -> tuple[bytes, NDArray[np.uint8]]:
    """The encoded classes and cells of all tensors, and the density of each bit."""
    ranked = [_rank(mask, table) for mask, table in zip(masks, tables, strict=True)]
    ones = np.stack([pairs for _, _, pairs in ranked])
    sizes = np.stack(
        [
            np.outer(np.bincount(rows, minlength=16), np.bincount(some, minlength=16)) * table.depth
            for (rows, some, _), table in zip(ranked, tables, strict=True)
        ]
    )
    ones, sizes = (_NODES @ counts @ _NODES.T for counts in (ones, sizes))
    levels = _cheapest(ones, sizes, tables, columns)
    heads, parts, densities = [], [], []
    for index, ((rows, some, _), table) in enumerate(zip(ranked, tables, strict=True)):
        i, j = levels[index]
        rows, some = rows >> (4 - i), some >> (4 - j)
        chosen = np.ix_([index], _nodes(i), _nodes(j))
        cells = _nearest(ones[chosen][0], sizes[chosen][0])
        heads.append(i | j << 4)
        parts += [pack_planes(rows, i), pack_planes(some, j), cells.tobytes()]
        densities.append(table.densities(rows, some, cells))
    return bytes(heads) + b"".join(parts), np.concatenate(densities)


def _nodes(level: int) -> range:
    return range((1 << level) - 1, (2 << level) - 1)


def _rank(mask: Bits, table: Table) -> tuple[Whole, Whole, Whole]:
    """The finest classes of rows and columns, and the number of ones in each pair."""
    row, place = np.divmod(np.flatnonzero(mask), table.columns * table.depth)
    column = place // table.depth
    rows, columns = _sixteenths(row, table.rows), _sixteenths(column, table.columns)
    pairs = rows[row] * _FINEST + columns[column]
    return rows, columns, np.bincount(pairs, minlength=_FINEST**2).reshape(_FINEST, _FINEST)


def _sixteenths(places: Whole, length: int) -> Whole:
    """Sixteen classes of equal size, sparsest first."""
    classes = np.empty(length, np.int64)
    ranking = np.argsort(np.bincount(places, minlength=length), kind="stable")
    classes[ranking] = np.arange(length) * _FINEST // length
    return classes


def _cheapest(
    ones: Whole, sizes: Whole, tables: Sequence[Table], columns: bool
) -> list[tuple[int, int]]:
    """The cheapest levels of rows and columns for each tensor.

    Logarithms affect only this choice, which is sent, so they need not be exact.
    """
    share = ones / np.maximum(sizes, 1)
    inner = np.clip(share, 1e-300, 1 - 1e-16)
    bits = sizes * -(share * np.log2(inner) + (1 - share) * np.log2(1 - inner))
    costs = _LEVEL @ bits @ _LEVEL.T
    levels = []
    for cost, table in zip(costs, tables, strict=True):
        level = np.arange(_LEVELS)
        cost = cost + 8 * (1 << (level[:, None] + level))
        cost += level[:, None] * table.rows + level * table.columns
        cost[1 << level > table.rows] = np.inf
        cost[:, (1 << level > table.columns) | (level > 4 * columns)] = np.inf
        i, j = divmod(int(cost.argmin()), _LEVELS)
        levels.append((i, j))
    return levels


def _nearest(ones: Whole, sizes: Whole) -> NDArray[np.uint8]:
    """The nearest point of the grid for each cell."""
    grid = 1 + np.searchsorted(_MIDDLES, (ones << _PRECISION) // np.maximum(sizes, 1))
    grid[ones == sizes] = _ALWAYS
    grid[ones == 0] = _NEVER
    return grid.astype(np.uint8)


def _read_densities(reader: Reader, tables: Sequence[Table]) -> NDArray[np.uint8]:
    parts = [np.empty(0, np.uint8)]
    for head, table in zip(reader.take(len(tables), "levels").tolist(), tables, strict=True):
        i, j = head & 15, head >> 4
        if max(i, j) >= _LEVELS or 1 << i > table.rows or 1 << j > table.columns:
            raise WireError(
                f"a mask has {1 << i} x {1 << j} classes in {table.rows} rows of "
                f"{table.columns} channels; at most 16 x 16 are allowed, and no empty ones"
            )
        rows = reader.planes(table.rows, i, "classes of rows")
        columns = reader.planes(table.columns, j, "classes of columns")
        cells = reader.take(1 << i + j, "densities").reshape(1 << i, 1 << j)
        parts.append(table.densities(rows, columns, cells))
    return np.concatenate(parts)


def _code(bits: Bits, counts: Whole) -> bytes:
    """Encodes bits that are sorted by density, given the number of each density."""
    encoder = _package().stream.queue.RangeEncoder()
    ends = edges(counts)
    for density in np.flatnonzero(counts[:_ALWAYS]).tolist():
        if density != _NEVER:
            symbols = np.packbits(bits[ends[density] : ends[density + 1]], bitorder="little")
            encoder.encode(symbols.astype(np.int32), _model(density))
    words: NDArray[np.uint32] = encoder.get_compressed()
    return words.astype("<u4").tobytes()


def _decode(words: bytes, counts: Whole) -> Bits:
    """Decodes bits, and checks that encoding them gives the same words."""
    decoder = _package().stream.queue.RangeDecoder(np.frombuffer(words, "<u4").astype(np.uint32))
    ends = edges(counts)
    bits = np.zeros(int(ends[-1]), np.bool_)
    bits[ends[_ALWAYS] :] = True
    for density in np.flatnonzero(counts[:_ALWAYS]).tolist():
        if density != _NEVER:
            count = int(counts[density])
            try:
                symbols = decoder.decode(_model(density), size(count))
            except AssertionError as refusal:
                raise WireError("a mask has words that the range coder cannot decode") from refusal
            decoded = np.unpackbits(symbols.astype(np.uint8), count=count, bitorder="little")
            bits[ends[density] : ends[density + 1]] = decoded
    if _code(bits, counts) != words:
        raise WireError("a mask has words that differ from the encoding of its bits")
    return bits


@lru_cache(maxsize=256)
def _model(density: int) -> object:
    """The coder's model of eight independent bits of one density."""
    one, zero = _odds(density)
    whole = (one + zero) ** 8
    weights = [(one**ones * zero ** (8 - ones) << 52) // whole for ones in range(9)]
    table = np.array([weights[symbol.bit_count()] for symbol in range(256)], np.float64)
    model: object = _package().stream.model.Categorical(table, perfect=False)
    return model


@lru_cache(maxsize=1)
def _package() -> ModuleType:
    try:
        version = importlib.metadata.version("constriction")
        package = importlib.import_module("constriction")
    except ImportError as missing:
        raise ImportError(
            f"range coding of masks needs constriction {_VERSION}; `pip install gossamer[ans]`"
        ) from missing
    if version.split(".")[:2] != _VERSION.split("."):
        raise ImportError(
            f"masks are coded by constriction {_VERSION}, but {version} is installed; "
            "`pip install gossamer[ans]`"
        )
    return package
