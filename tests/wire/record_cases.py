"""Records of every shape for the tests of messages, and damage to what was encoded."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from gossamer.wire import EXACT, Drawn, Mode, Packed, Revision, held
from gossamer.wire.schema import type_name

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
FLOATS = [dtype for dtype in DTYPES if dtype.is_floating_point]
MODES = [Mode(half, zstd, ans) for half in (0, 1) for zstd in (0, 1) for ans in (0, 1)]


@dataclass(frozen=True)
class Inner:
    left: Any
    right: Any


@dataclass(frozen=True)
class Outer:
    body: Any
    inner: Inner
    note: str = "kept"
    precise: Any = field(default=None, metadata=EXACT)


TYPES = {type_name(kind): kind for kind in (Inner, Outer)}


def tensor(dtype: torch.dtype, shape: list[int], seed: int, finite: bool) -> Tensor:
    """Random bits: if they need not be finite, NaN and infinity are among them."""
    draw = np.random.default_rng(seed)
    if dtype == torch.bool:
        chance = draw.choice([0.0, 0.1, 0.5, 1.0])
        return torch.from_numpy(np.asarray(draw.random(shape) < chance)).reshape(shape)
    if not (count := math.prod(shape)):
        return torch.empty(shape, dtype=dtype)
    raw = draw.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    found = torch.from_numpy(raw).view(dtype).reshape(shape)
    if finite and dtype.is_floating_point:
        found = torch.where(torch.isfinite(found), found, torch.ones((), dtype=dtype))
    return found


shapes = st.lists(st.integers(0, 5), max_size=4)
seeds = st.integers(0, 2**32)
names = st.text(max_size=4)


def tensors(finite: bool) -> st.SearchStrategy[Tensor]:
    """Every type and shape, also without any number."""
    return st.builds(tensor, st.sampled_from(DTYPES), shapes, seeds, st.just(finite))


@st.composite
def packed(draw: st.DrawFn, finite: bool) -> Packed:
    """Some of the values of some tensors."""
    values, whole = {}, {}
    for name in draw(st.lists(names, max_size=3, unique=True)):
        whole[name] = tuple(draw(shapes))
        count = draw(st.integers(0, math.prod(whole[name])))
        values[name] = tensor(draw(st.sampled_from(FLOATS)), [count], draw(seeds), finite)
    return Packed(values, whole)


@st.composite
def mask_sets(draw: st.DrawFn) -> dict[str, Tensor]:
    return {
        name: tensor(torch.bool, draw(shapes), draw(seeds), True)
        for name in draw(st.lists(names, min_size=1, max_size=3, unique=True))
    }


@st.composite
def revisions(draw: st.DrawFn) -> Revision:
    masks = draw(mask_sets())
    if draw(st.booleans()):
        return Revision(masks)
    base = {
        name: mask ^ (torch.from_numpy(np.random.default_rng(draw(seeds)).random(mask.shape)) < 0.2)
        for name, mask in masks.items()
    }
    return Revision(masks, base)


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """Seeds and counts for some tensors, also for such without any weight."""
    kept, whole = {}, {}
    for name in draw(st.lists(names, max_size=3, unique=True)):
        whole[name] = tuple(draw(shapes))
        kept[name] = draw(st.integers(0, math.prod(whole[name])))
    return Drawn(draw(st.integers(-(2**63), 2**63 - 1)), kept, whole)


def records(finite: bool = True, kinds: bool = True) -> st.SearchStrategy[Any]:
    """Anything that may travel; with `kinds`, packed values and masks by change or seed too."""
    numbers = st.floats(allow_nan=not finite, allow_infinity=not finite)
    whole = st.integers(-(2**63), 2**63 - 1)
    leaves = st.none() | st.booleans() | whole | numbers | st.text(max_size=8) | tensors(finite)
    leaves |= mask_sets()
    if kinds:
        leaves |= packed(finite) | revisions() | drawn()
    keys = st.text(max_size=5) | st.integers(0, 2**31)
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=4).map(tuple)
            | st.dictionaries(keys, inner, max_size=4)
            | st.builds(Inner, inner, inner)
            | st.builds(Outer, inner, st.builds(Inner, inner, inner), st.text(max_size=4), inner)
        ),
        max_leaves=10,
    )


def bases(record: Any) -> dict[bytes, dict[str, Tensor]]:
    """The masks that a receiver needs: those that revisions in a record build on."""
    found: dict[bytes, dict[str, Tensor]] = {}
    match record:
        case Revision(base=dict() as base):
            found |= held({"": base})
        case dict():
            for value in record.values():
                found |= bases(value)
        case list() | tuple():
            for value in record:
                found |= bases(value)
        case Inner() | Outer():
            found |= bases(list(vars(record).values()))
    return found


def alike(left: Any, right: Any) -> bool:
    """Equal in type, structure and bits; NaN equals itself."""
    if type(left) is not type(right):
        return False
    match left:
        case Tensor():
            return (
                left.dtype == right.dtype
                and left.shape == right.shape
                and (not left.numel() or torch.equal(_bytes(left), _bytes(right)))
            )
        case float():
            return struct.pack("<d", left) == struct.pack("<d", right)
        case dict():
            return list(left) == list(right) and all(alike(left[k], right[k]) for k in left)
        case list() | tuple():
            return len(left) == len(right) and all(map(alike, left, right))
        case _ if is_dataclass(left):
            return alike(vars(left), vars(right))
    return bool(left == right)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
