"""A sparse model as it is stored: steps, and tensors without their zeros."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from gossamer.arithmetic.chain import Chain, Shape, Step
from gossamer.arithmetic.structs import Kind

Floats = NDArray[np.float32]

MOST_NUMBERS = 2**25
"""Numbers that all activations of one example may have together, with their padding."""
MOST_POOLED = 255
"""Pixels of the largest pooling window."""


class Unreadable(ValueError):
    """A file that is not a whole sparse model; the message says why."""


@dataclass(frozen=True, eq=False)
class Packed:
    """A tensor, or what is not zero of it. Filters are [output][row][column][input]."""

    shape: tuple[int, ...]
    values: Floats
    bits: NDArray[np.uint8] | None = None
    """One bit for each number, the first in the lowest of a byte; None if all values are there."""

    @classmethod
    def of(cls, tensor: Floats) -> Packed:
        """A tensor in the form that takes less room."""
        flat = np.ascontiguousarray(tensor, np.float32).reshape(-1)
        kept = flat != 0
        bits = np.packbits(kept, bitorder="little")
        if 4 * int(kept.sum()) + len(bits) >= 4 * len(flat):
            return cls(tensor.shape, flat)
        return cls(tensor.shape, flat[kept], bits)

    @property
    def count(self) -> int:
        """The number of numbers, zeros included."""
        return prod(self.shape)

    @property
    def density(self) -> float:
        """The share of numbers that are not zero."""
        return float(np.count_nonzero(self.values)) / max(self.count, 1)

    @property
    def marks(self) -> NDArray[np.uint8]:
        """1 where a value is stored, in memory order."""
        if self.bits is None:
            return np.ones(self.count, np.uint8)
        return np.unpackbits(self.bits, count=self.count, bitorder="little")

    def full(self) -> Floats:
        """The whole tensor."""
        if self.bits is None:
            return self.values.reshape(self.shape)
        full = np.zeros(self.count, np.float32)
        full[self.marks.view(np.bool_)] = self.values
        return full.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class Stored:
    """A model: its steps, the tensors they name, and facts about it."""

    chain: Chain
    tensors: Mapping[str, Packed]
    vector: bool
    """Whether an example is a vector rather than an image."""
    facts: Mapping[str, object]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example."""
        shape = self.chain.shapes[self.chain.input]
        return shape[:1] if self.vector else shape

    @property
    def classes(self) -> int:
        """The number of outputs."""
        return self.chain.shapes[self.chain.output][0]


# whether steps fit their values ------------------------------------------------------------------


def check(stored: Stored) -> None:
    """Refuses steps that do not fit their values and tensors: the kernels rely on it.

    Raises:
        Unreadable: something does not fit.
    """
    chain = stored.chain
    _require(all(min(shape) >= 1 for shape in chain.shapes), "a value is empty")
    values = range(len(chain.shapes))
    _require(chain.input in values and chain.output in values, "its ends are no values")
    _require(not stored.vector or chain.shapes[chain.input][1:] == (1, 1), "its input is no vector")
    _require(chain.shapes[chain.output][1:] == (1, 1), "its output is no vector")
    written = {chain.input}
    for number, step in enumerate(chain.steps):
        fits = written.issuperset(step.reads) and step.output in values
        _require(fits and step.output not in written, f"step {number} reads or writes no value")
        written.add(step.output)
        _require(_fits(stored, step), f"step {number} does not fit its values")
    _require(chain.output in written, "nothing computes its output")
    numbers = sum(map(prod, chain.shapes)) + sum(_padded(stored, step) for step in chain.steps)
    _require(numbers <= MOST_NUMBERS, f"its values have {numbers:,} numbers an example")


def _padded(stored: Stored, step: Step) -> int:
    channels, height, width = stored.chain.shapes[step.input]
    return channels * (height + 2 * step.window.pad_y) * (width + 2 * step.window.pad_x)


def _fits(stored: Stored, step: Step) -> bool:
    before, after = (stored.chain.shapes[value] for value in (step.input, step.output))
    window = step.window
    sizes = (window.height, window.width, window.stride_y, window.stride_x)
    if min(sizes) < 1 or min(window.pad_y, window.pad_x) < 0:
        return False
    return RULES[step.kind](stored, step, before, after)


def _windows(step: Step, before: Shape, after: Shape) -> bool:
    """Whether an output has a pixel for every place of the window."""
    window = step.window
    room_y = before[1] + 2 * window.pad_y - window.height
    room_x = before[2] + 2 * window.pad_x - window.width
    places = (room_y // window.stride_y + 1, room_x // window.stride_x + 1)
    return min(room_y, room_x) >= 0 and after[1:] == places


def _tensor(stored: Stored, name: str | None, *shape: int, needed: bool = False) -> bool:
    if name is None:
        return not needed
    return stored.tensors[name].shape == shape


def _convolution(stored: Stored, step: Step, before: Shape, after: Shape) -> bool:
    window = step.window
    padded = window.pad_y < window.height and window.pad_x < window.width
    kernel = (after[0], window.height, window.width, before[0])
    weights = _tensor(stored, step.weight, *kernel, needed=True)
    return (
        padded
        and weights
        and _tensor(stored, step.bias, after[0])
        and _windows(step, before, after)
    )


def _linear(stored: Stored, step: Step, before: Shape, after: Shape) -> bool:
    weights = _tensor(stored, step.weight, after[0], before[0], needed=True)
    return weights and _tensor(stored, step.bias, after[0]) and before[1:] == after[1:] == (1, 1)


def _norm(stored: Stored, step: Step, before: Shape, after: Shape) -> bool:
    size, measured = before[0], step.kind is Kind.BATCH_NORM
    own = all(_tensor(stored, name, size) for name in (step.weight, step.bias))
    names = (step.mean, step.variance)
    statistics = all(_tensor(stored, name, size, needed=measured) for name in names)
    grouped = step.groups >= 1 and size % step.groups == 0
    return own and statistics and grouped and before == after and step.epsilon >= 0


def _pool(stored: Stored, step: Step, before: Shape, after: Shape) -> bool:
    window = step.window
    padded = 2 * window.pad_y <= window.height and 2 * window.pad_x <= window.width
    if step.kind is Kind.AVERAGE_POOL:
        padded = window.pad_y == window.pad_x == 0
    elif window.height * window.width > MOST_POOLED:
        return False
    return padded and before[0] == after[0] and _windows(step, before, after)


def _same(stored: Stored, step: Step, before: Shape, after: Shape) -> bool:
    return before == after


def _add(stored: Stored, step: Step, before: Shape, after: Shape) -> bool:
    return step.other is not None and before == after == stored.chain.shapes[step.other]


def _flatten(stored: Stored, step: Step, before: Shape, after: Shape) -> bool:
    return after == (prod(before), 1, 1)


def _subsample(stored: Stored, step: Step, before: Shape, after: Shape) -> bool:
    every = step.window.stride_y
    pixels = (-(-before[1] // every), -(-before[2] // every))
    return step.window.stride_x == every and after[0] >= before[0] and after[1:] == pixels


def _softmax(stored: Stored, step: Step, before: Shape, after: Shape) -> bool:
    return before == after and before[1:] == (1, 1)


RULES: dict[Kind, Callable[[Stored, Step, Shape, Shape], bool]] = {
    Kind.CONVOLUTION: _convolution,
    Kind.LINEAR: _linear,
    Kind.BATCH_NORM: _norm,
    Kind.GROUP_NORM: _norm,
    Kind.RELU: _same,
    Kind.MAX_POOL: _pool,
    Kind.AVERAGE_POOL: _pool,
    Kind.ADD: _add,
    Kind.FLATTEN: _flatten,
    Kind.SUBSAMPLE: _subsample,
    Kind.SOFTMAX: _softmax,
}
"""Dropout does nothing in inference and is not stored."""


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Unreadable(otherwise)
