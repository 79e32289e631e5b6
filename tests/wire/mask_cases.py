"""Masks for the tests of their codecs, and damage to what was encoded."""

from __future__ import annotations

import lzma
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

LENET = [(20, 1, 5, 5), (50, 20, 5, 5), (500, 800), (10, 500)]
FUZZ = int(os.environ.get("GOSSAMER_FUZZ", "4000"))
Masks = list[NDArray[np.bool_]]


def independent(shapes: list[tuple[int, ...]], density: float, seed: int = 0) -> Masks:
    """Every weight kept with the same chance."""
    generator = np.random.default_rng(seed)
    return [np.asarray(generator.random(shape) < density) for shape in shapes]


def moved(masks: Masks, rate: float, seed: int = 0) -> Masks:
    """As many weights lost as gained: a share `rate` of those held."""
    generator = np.random.default_rng(seed)
    flat = np.concatenate([mask.reshape(-1) for mask in masks])
    count = round(rate * np.count_nonzero(flat))
    lost = generator.choice(np.flatnonzero(flat), count, replace=False)
    gained = generator.choice(np.flatnonzero(~flat), count, replace=False)
    flat[lost], flat[gained] = False, True
    ends = np.cumsum([mask.size for mask in masks])[:-1]
    parts = np.split(flat, ends)
    return [part.reshape(mask.shape) for part, mask in zip(parts, masks, strict=True)]


def trained() -> Masks:
    """The largest tenth of the weights of a LeNet; made by tools/make_mask_fixture.py."""
    file = Path(__file__).parent / "fixtures/lenet5_caffe_top10.npy.xz"
    with lzma.open(file) as packed:
        bits = np.unpackbits(np.load(packed), bitorder="little").view(np.bool_)
    ends = np.cumsum([math.prod(shape) for shape in LENET])
    parts = np.split(bits[: ends[-1]], ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, LENET, strict=True)]


def mixed(draw: st.DrawFn, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """A mask whose rows have densities of their own, often none or all."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ends = [0.0, 0.01, 0.5, 0.99, 1.0]
    density = st.sampled_from(ends) | st.floats(0, 1)
    low, high = draw(density), draw(density)
    levels = generator.choice([low, high, 0.0, 1.0], p=[0.6, 0.3, 0.05, 0.05], size=shape[:1])
    if draw(st.booleans()):
        levels = np.full(shape[:1], low)
    chance = levels.reshape(shape[:1] + (1,) * (len(shape) - 1))
    return np.asarray(generator.random(shape) < chance)


shapes = st.lists(st.integers(0, 40), max_size=2).flatmap(
    lambda start: st.lists(st.integers(0, 5), max_size=2).map(lambda end: (*start, *end))
)


@st.composite
def mask_lists(draw: st.DrawFn) -> Masks:
    """Several masks of any shapes; some have no dimensions, some no weights."""
    return [mixed(draw, shape) for shape in draw(st.lists(shapes, max_size=6))]


@st.composite
def mask_pairs(draw: st.DrawFn) -> tuple[Masks, Masks]:
    """New masks and old ones of the same shapes, alike or not."""
    old = draw(mask_lists())
    if draw(st.booleans()):
        return [mixed(draw, mask.shape) for mask in old], old
    change = draw(st.sampled_from([0.0, 0.01, 0.3, 1.0]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [np.asarray(mask ^ (generator.random(mask.shape) < change)) for mask in old], old


def same(found: Masks, wanted: Masks) -> bool:
    """Whether two lists of masks agree in dtype, shape and every bit."""
    return len(found) == len(wanted) and all(
        a.dtype == np.bool_ and a.shape == b.shape and np.array_equal(a, b)
        for a, b in zip(found, wanted, strict=True)
    )


def damaged(messages: list[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """Messages with bytes changed, cut, added, spliced, and some that never were messages."""
    generator = np.random.default_rng(seed)
    for turn in range(count):
        data = bytearray(messages[generator.integers(len(messages))])
        place = int(generator.integers(len(data)))
        junk = generator.bytes(int(generator.integers(1, 9)))
        match turn % 8:
            case 0:
                data[place] ^= 1 << int(generator.integers(8))
            case 1:
                data[place : place + len(junk)] = junk
            case 2:
                del data[place:]
            case 3:
                del data[place : place + len(junk)]
            case 4:
                data[place:place] = junk
            case 5:
                other = messages[generator.integers(len(messages))]
                data[place:] = other[place:]
            case 6:
                data[: 1 + int(generator.integers(12))] = data[:1] + generator.bytes(4)
            case 7:
                data = bytearray(generator.bytes(len(data)))
                data[0] = messages[generator.integers(len(messages))][0]
        yield bytes(data)
