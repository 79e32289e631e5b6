"""Few changes of a known mask as one integer: which ones are lost, and which zeros become ones.

A Golomb code needs a parameter and wastes a fraction of a bit on each gap. Here all positions are
encoded in one integer: a position among `m` multiplies it by `m` and is added. The order of the
positions carries no information, so it is used to save bits (bits-back coding): the integer modulo
the number of positions left selects the next position, and the quotient remains. The result is
about as large as the number of possible sets, and no sets are enumerated. The idea is from

Daniel Severo, James Townsend, Ashish Khisti, Alireza Makhzani, Karen Ullrich: Compressing Multisets
with Large Alphabets using Bits-Back Coding. IEEE Journal on Selected Areas in Information Theory,
2023. https://arxiv.org/abs/2107.09202

Differs from the paper: a set has no duplicates, so each position is encoded among those still free;
and the state is one arbitrary-precision integer.

The bits after the tag are:

    lost        the number of lost ones, by `near` of order 4
    gained      the number of gained ones minus `lost`, zigzag-coded, by `near` of order 0
    number      the bits of the integer, the lowest first, without leading zeros

The decoder extracts positions in reverse order and restores the selections, until it reaches the
initial zero. Each set thus has exactly one code, and an integer that does not lead back to zero is
invalid. If most ones are lost, or all of one row, gaps are shorter.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from gossamer.wire.errors import WireError
from gossamer.wire.masks.bits import BitReader, Bits, Line, Whole, near, pack, places, size

MOST = 512
"""The maximum number of changes in this encoding; its time is quadratic in them."""
_LOST, _MORE = 4, 0  # orders of the codes of the two counts


def write(lost: Bits, gained: Bits) -> list[Line] | None:
    """The bits after the tag, given the lost ones and the gained zeros; None if too many."""
    losses, gains = int(np.count_nonzero(lost)), int(np.count_nonzero(gained))
    if losses + gains > MOST:
        return None
    number = _put(_put(0, lost), gained)
    more = gains - losses
    counts = [near(losses, _LOST), near(2 * more if more >= 0 else -2 * more - 1, _MORE)]
    return [*counts, _bits(number)]


def read(reader: BitReader, ones: int, zeros: int) -> tuple[Whole, Whole]:
    """The indices of lost ones and of gained zeros; consumes all input."""
    losses = reader.near(_LOST, "changes")
    more = reader.near(_MORE, "changes")
    gains = losses + (-(more + 1) // 2 if more % 2 else more // 2)
    if not 0 <= losses <= ones or not 0 <= gains <= zeros:
        raise WireError(
            f"a mask of {ones} ones and {zeros} zeros cannot lose {losses} and gain {gains}"
        )
    if losses + gains > MOST:
        raise WireError(f"a mask has {losses + gains} changes; this encoding has at most {MOST}")
    left = reader.left
    number = int.from_bytes(pack(reader.take(left, "changes")), "little")
    used = number.bit_length()
    if left - used >= 8:
        raise WireError(f"{(left - used) // 8} bytes follow the end of a mask")
    if used > losses * ones.bit_length() + gains * zeros.bit_length():
        raise WireError(f"{losses + gains} changes of a mask do not take {used} bits")
    number, gained = _take(number, gains, zeros)
    number, lost = _take(number, losses, ones)
    if number:
        raise WireError("the integer that encodes the changes of a mask has a remainder")
    return np.array(lost, np.int64), np.array(gained, np.int64)


def revise(reader: BitReader, bits: Bits) -> None:
    """Applies the encoded changes to a known bit vector, in place."""
    ones = int(np.count_nonzero(bits))
    zeros = len(bits) - ones
    lost, gained = read(reader, ones, zeros)
    if ones <= zeros:
        fewer = places(bits)
        dropped, grown = fewer[lost], _between(fewer, gained)
    else:
        fewer = places(~bits)
        dropped, grown = _between(fewer, lost), fewer[gained]
    bits[dropped], bits[grown] = False, True


def _between(held: Whole, numbers: Whole) -> Whole:
    """The positions of the elements that are not in `held`, given their indices."""
    passed = held - np.arange(len(held))
    positions: Whole = numbers + np.searchsorted(passed, numbers, side="right")
    return positions


def _put(number: int, chosen: Bits) -> int:
    """Encodes positions into the integer, each among those that are still free."""
    rest = places(chosen).tolist()
    free = len(chosen) - len(rest)
    for count in range(len(rest), 0, -1):
        number, index = divmod(number, count)
        free += 1
        number = number * free + rest.pop(index) - index
    return number


def _take(number: int, count: int, length: int) -> tuple[int, list[int]]:
    """The inverse of `_put`: the remaining integer, and `count` sorted positions."""
    taken: list[int] = []
    for held in range(count):
        number, place = divmod(number, length - held)
        index = bisect_right(range(held), place, key=lambda each: taken[each] - each)
        taken.insert(index, place + index)
        number = number * (held + 1) + index
    return number, taken


def _bits(number: int) -> Line:
    width = number.bit_length()
    data = np.frombuffer(number.to_bytes(size(width) or 1, "little"), np.uint8)
    return np.unpackbits(data, count=width, bitorder="little")
