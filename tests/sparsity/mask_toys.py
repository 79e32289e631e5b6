"""Layouts, weights and masks small enough to see through, and strategies that draw them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer import Key, Layout, Masks, Params
from gossamer.sparsity import Counts, random_masks
from gossamer.task.layout import Input, Kind, Leaf

Shape = tuple[int, ...]

fewer_examples = settings(max_examples=40)
"""For properties of calls that take milliseconds."""


def leaf(name: str, shape: Shape) -> Leaf:
    kind: Kind = "conv" if len(shape) > 2 else "linear"
    return Leaf(name, kind, shape, prod(shape[1:]), shape[0], 0, True, True)


def layout_with(*shapes: Shape) -> Layout:
    """Prunable layers `a`, `b`, ... of the given shapes."""
    names = "abcdefghij"[: len(shapes)]
    leaves = {name: leaf(name, shape) for name, shape in zip(names, shapes, strict=True)}
    return Layout(leaves, False, Input((1,), torch.float32))


def mask(text: str) -> Tensor:
    """A mask of zeros and ones."""
    return torch.tensor([letter == "1" for letter in text])


def weights(layout: Layout, seed: int, levels: int = 5) -> Params:
    """Weights with few different magnitudes, so that ties are everywhere."""
    draw = Key(seed).fold("weights").numpy()
    found = {}
    for name in layout.prunable:
        values = draw.integers(-levels, levels + 1, layout[name].shape)
        found[name] = torch.from_numpy(values.astype(np.float32))
    return found


def channels_last(params: Params) -> Params:
    """The same values with other strides."""
    return {
        name: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
        for name, tensor in params.items()
    }


def equal(first: Params, second: Params) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[name]) for name, tensor in first.items()
    )


def inside(first: Masks, second: Masks) -> bool:
    """Whether all that the first keeps is kept by the second."""
    return not any(bool((kept & ~second[name]).any()) for name, kept in first.items())


@dataclass(frozen=True)
class Case:
    """Masked weights with as many ties as there can be."""

    layout: Layout
    params: Params
    masks: Masks
    counts: Counts
    key: Key


shapes = st.one_of(
    st.tuples(st.integers(1, 6), st.integers(1, 9)),
    st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)),
)
layouts = st.lists(shapes, min_size=1, max_size=4).map(lambda drawn: layout_with(*drawn))
densities = st.fractions(0, 1, max_denominator=1000).map(float) | st.floats(0, 1, width=32)
seeds = st.integers(0, 2**32)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    layout, seed = draw(layouts), draw(seeds)
    counts = {name: draw(st.integers(0, layout[name].count)) for name in layout.prunable}
    masks = random_masks(Key(seed), layout, counts)
    return Case(layout, weights(layout, seed), masks, counts, Key(seed).fold("draws"))


def share(counts: Counts, of: Fraction) -> Counts:
    """The floor of a share of each count."""
    return {name: int(number * of) for name, number in counts.items()}
