"""Range coding of symbols with known frequencies (rANS), in C++ or in NumPy: the same bytes.

Several states ("lanes") take turns: symbol `i` belongs to lane `i % lanes`. All lanes share one
sequence of 16-bit words. The encoder runs backwards, the decoder forwards; it ends in the states in
which the encoder began, which it checks. Only whole numbers are used.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossamer.wire.errors import WireError

Symbols: TypeAlias = NDArray[np.uint16]
Counts: TypeAlias = NDArray[np.uint32]

BITS = 14
"""Frequencies of a table add up to `2 ** BITS`."""
LOW = 1 << 16
"""States are at least that, and have 32 bits."""
STATE, WORD = 4, 2
"""Bytes of a state and of a word."""
VERSION = 1
"""Of the compiled loops."""
_SHARE = 1 << 15  # symbols for each lane: a state costs two bytes more than it tells
_LANES = 256
_VARIABLE = "GOSSAMER_NATIVE"


def lanes_for(count: int) -> int:
    """How many states take turns for so many symbols."""
    return min(max(count // _SHARE, 1), _LANES)


@cache
def native() -> ctypes.CDLL | None:
    """The compiled loops; None where they were not built, or are switched off."""
    path = Path(__file__).parent / "rans.so"
    if os.environ.get(_VARIABLE) == "off" or not path.is_file():
        return None
    library = ctypes.CDLL(str(path))
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.gossamer_levels_encode.argtypes = [
        *(pointer, integer, pointer, pointer, pointer, integer, pointer, integer)
    ]
    library.gossamer_levels_decode.argtypes = [
        *(pointer, integer, pointer, integer, pointer, pointer, pointer, pointer, integer)
    ]
    for function in (library.gossamer_levels_encode, library.gossamer_levels_decode):
        function.restype = integer
    return library if library.gossamer_levels_version() == VERSION else None


def encode(symbols: Symbols, frequencies: Counts) -> tuple[Counts, NDArray[np.uint16]]:
    """The final states and the words of some symbols, all of which have a frequency."""
    starts = _starts(frequencies)
    lanes = lanes_for(len(symbols))
    library = native()
    if library is None:
        return _encode(symbols, frequencies, starts, lanes)
    states = np.empty(lanes, np.uint32)
    words = np.empty(len(symbols), np.uint16)  # at most one for each symbol
    used = library.gossamer_levels_encode(
        *(symbols.ctypes.data, len(symbols), frequencies.ctypes.data, starts.ctypes.data),
        *(states.ctypes.data, lanes, words.ctypes.data, len(words)),
    )
    return states, words[len(words) - used :]


def decode(states: Counts, words: NDArray[np.uint16], frequencies: Counts, count: int) -> Symbols:
    """The inverse of `encode`; states and words that no encoder leaves raise a `WireError`."""
    if len(states) and int(states.min()) < LOW:
        raise WireError("a state of coded numbers is too small")
    starts = _starts(frequencies)
    slots = np.repeat(np.arange(len(frequencies), dtype=np.uint16), frequencies)
    library = native()
    states, symbols = states.copy(), np.empty(count, np.uint16)
    if library is None:
        used = _decode(states, words, slots, frequencies, starts, symbols)
    else:
        used = library.gossamer_levels_decode(
            *(words.ctypes.data, len(words), states.ctypes.data, len(states)),
            *(slots.ctypes.data, frequencies.ctypes.data, starts.ctypes.data),
            *(symbols.ctypes.data, count),
        )
    if used < 0:
        raise WireError(f"{count} coded numbers need more than {len(words)} words")
    if used != len(words):
        raise WireError(f"{len(words) - used} words follow the last of {count} coded numbers")
    if (states != LOW).any():
        raise WireError("coded numbers do not end where they should")
    return symbols


def _starts(frequencies: Counts) -> Counts:
    starts = np.zeros(len(frequencies), np.uint32)
    np.cumsum(frequencies[:-1], out=starts[1:])
    return starts


def _encode(
    symbols: Symbols, frequencies: Counts, starts: Counts, lanes: int
) -> tuple[Counts, NDArray[np.uint16]]:
    states = np.full(lanes, LOW, np.uint64)
    parts: list[NDArray[np.uint16]] = []
    for first in range((len(symbols) - 1) // lanes * lanes, -1, -lanes):
        row = symbols[first : first + lanes]
        frequency = frequencies[row].astype(np.uint64)
        state = states[: len(row)]
        full = state >= frequency << np.uint64(32 - BITS)
        parts.append(state[full].astype(np.uint16))
        state = np.where(full, state >> np.uint64(16), state)
        whole, rest = np.divmod(state, frequency)
        states[: len(row)] = (whole << np.uint64(BITS)) + rest + starts[row]
    words = np.concatenate(parts[::-1]) if parts else np.empty(0, np.uint16)
    return states.astype(np.uint32), words


def _decode(
    states: Counts,
    words: NDArray[np.uint16],
    slots: Symbols,
    frequencies: Counts,
    starts: Counts,
    symbols: Symbols,
) -> int:
    lanes, place = len(states), 0
    for first in range(0, len(symbols), lanes):
        row = symbols[first : first + lanes]
        state = states[: len(row)]
        slot = state & np.uint32((1 << BITS) - 1)
        row[:] = slots[slot]
        state[:] = frequencies[row] * (state >> np.uint32(BITS)) + slot - starts[row]
        low = np.flatnonzero(state < LOW)
        if place + len(low) > len(words):
            return -1
        state[low] = state[low] << np.uint32(16) | words[place : place + len(low)]
        place += len(low)
    return place
