"""Few changes of a known mask as one whole number: what is lost of its ones, gained in its zeros.

A Golomb code needs a parameter and wastes a part of a bit on each gap. Here all places go into one
number: a place that is one of `m` makes the number `m` times as large and adds which it is. As the
order of places means nothing, it is not told: the remainder of the number by how many places are
left picks the one that goes in next, and the quotient takes its place. So the number ends about as
large as there are choices of so many places, and no choice had to be counted. The idea is from

Daniel Severo, James Townsend, Ashish Khisti, Alireza Makhzani, Karen Ullrich: Compressing Multisets
with Large Alphabets using Bits-Back Coding. IEEE Journal on Selected Areas in Information Theory,
2023. https://arxiv.org/abs/2107.09202

Differs from the paper: a set has no place twice, so that each is counted among those still free,
and the number is kept whole.

A message is a line of bits behind its tag:

    lost        how many ones are lost, as a number near `2 ** 4`
    gained      how many are gained beyond that: 0, 1, 2 for 0, -1, 1 and so on, as one near 1
    number      its bits, the lowest first, without zeros above the highest one

The reader takes places out in the opposite order and puts back what picked them, until the zero is
left that the number began with. So a choice of places has one number, and a number that does not
end in zero is none. Where most ones are lost, or those of one row, gaps are shorter.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from gossamer.wire.errors import WireError
from gossamer.wire.masks.bits import BitReader, Bits, Line, Whole, near, pack, places, size

MOST = 512
"""Changes that are told this way, at most; the time for them grows with their square."""
_LOST, _MORE = 4, 0  # orders of the two counts


def write(lost: Bits, gained: Bits) -> list[Line] | None:
    """What follows the tag, given which ones are lost and which zeros gained; None if too many."""
    losses, gains = int(np.count_nonzero(lost)), int(np.count_nonzero(gained))
    if losses + gains > MOST:
        return None
    number = _put(_put(0, lost), gained)
    more = gains - losses
    counts = [near(losses, _LOST), near(2 * more if more >= 0 else -2 * more - 1, _MORE)]
    return [*counts, _bits(number)]


def read(reader: BitReader, ones: int, zeros: int) -> tuple[Whole, Whole]:
    """Which of so many ones are lost and which zeros gained; takes all that the reader has."""
    losses = reader.near(_LOST, "changes")
    more = reader.near(_MORE, "changes")
    gains = losses + (-(more + 1) // 2 if more % 2 else more // 2)
    if not 0 <= losses <= ones or not 0 <= gains <= zeros:
        raise WireError(
            f"a mask of {ones} ones and {zeros} zeros loses {losses} and gains {gains} ones"
        )
    if losses + gains > MOST:
        raise WireError(f"a mask has {losses + gains} changes, but only {MOST} are told as few")
    left = reader.left
    number = int.from_bytes(pack(reader.take(left, "changes")), "little")
    used = number.bit_length()
    if left - used >= 8:
        raise WireError(f"{(left - used) // 8} bytes follow the end of a mask")
    if used > losses * ones.bit_length() + gains * zeros.bit_length():
        raise WireError(f"a mask has {losses + gains} changes in a number of {used} bits")
    number, gained = _take(number, gains, zeros)
    number, lost = _take(number, losses, ones)
    if number:
        raise WireError("a mask has changes in a number that tells more than them")
    return np.array(lost, np.int64), np.array(gained, np.int64)


def revise(reader: BitReader, bits: Bits) -> None:
    """Changes a known line of bits as a message says."""
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
    """Where places stand that are told by their numbers among all that are not held."""
    passed = held - np.arange(len(held))
    positions: Whole = numbers + np.searchsorted(passed, numbers, side="right")
    return positions


def _put(number: int, chosen: Bits) -> int:
    """The number with places added: each is counted among those that are free of the rest."""
    rest = places(chosen).tolist()
    free = len(chosen) - len(rest)
    for count in range(len(rest), 0, -1):
        number, index = divmod(number, count)
        free += 1
        number = number * free + rest.pop(index) - index
    return number


def _take(number: int, count: int, length: int) -> tuple[int, list[int]]:
    """The number without so many places, and these."""
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
