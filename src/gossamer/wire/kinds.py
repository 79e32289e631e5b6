"""What a record may hold, and the nodes by which a schema describes it.

Besides tensors, numbers and texts there are values that travel in their own way: values on a mask
(`Packed`), a mask's change (`Revision`) and a mask's seed (`Drawn`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.core import Key, Masks, Params
from gossamer.wire.errors import WireError

T = TypeVar("T")

Shapes: TypeAlias = dict[str, tuple[int, ...]]
Held: TypeAlias = Mapping[bytes, Masks]
"""Masks that a receiver holds, by their fingerprints."""

EXACT: Mapping[str, str] = {"wire": "exact"}
"""Metadata of a field whose numbers are never rounded on the way, such as thresholds."""


@dataclass(frozen=True)
class Packed:
    """Tensors that are zero outside masks the receiver knows: their values alone, in mask order."""

    values: Params
    """One-dimensional."""
    shapes: Shapes
    """Of the whole tensors; agreed on, never sent."""


@dataclass(frozen=True)
class Revision:
    """A mask for a receiver that may hold an older one, and is then told the changes only."""

    masks: Masks
    base: Masks | None = None
    """What the receiver holds; it is named by its fingerprint, never sent."""


@dataclass(frozen=True)
class Drawn:
    """Random masks that sender and receiver draw alike: a seed and counts travel, no place does."""

    seed: int
    """Any number of 64 bits."""
    kept: dict[str, int]
    """How many weights of each tensor are kept, exactly."""
    shapes: Shapes
    """Of the tensors; agreed on, never sent."""

    def __post_init__(self) -> None:
        if type(self.seed) is not int or self.seed not in range(-(2**63), 2**63):
            raise ValueError(f"masks are drawn from a whole number of 64 bits, not {self.seed!r}")
        if self.kept.keys() != self.shapes.keys():
            odd = ", ".join(sorted(self.kept.keys() ^ self.shapes.keys()))
            raise ValueError(f"drawn masks need a count and a shape of each tensor; see {odd}")
        for name, kept in self.kept.items():
            size = math.prod(self.shapes[name])
            if type(kept) is not int or not 0 <= kept <= size:
                raise ValueError(f"a drawn mask of {name} cannot keep {kept!r} of {size} weights")

    @classmethod
    def by(cls, key: Key, kept: dict[str, int], shapes: Shapes) -> Drawn:
        """Masks with a seed from a key, of which 63 bits travel."""
        return cls(key.digest() % 2**63, kept, shapes)

    def masks(self) -> Masks:
        """The masks: every choice of `kept` places is as likely, and the same on every host."""
        key = Key(self.seed).fold("mask")
        drawn = {n: _drawn(key.fold(n), self.shapes[n], kept) for n, kept in self.kept.items()}
        return {name: torch.from_numpy(mask) for name, mask in drawn.items()}


def pack(params: Params, masks: Masks) -> Packed:
    """The values at the True entries of masks; a tensor without a mask is packed whole."""
    values = {
        name: tensor[masks[name]] if name in masks else tensor.flatten()
        for name, tensor in params.items()
    }
    return Packed(values, {name: tuple(tensor.shape) for name, tensor in params.items()})


def unpack(packed: Packed, masks: Masks) -> Params:
    """The tensors that were packed, zero outside their masks; other masks are a `WireError`."""
    tensors = {}
    for name, values in packed.values.items():
        shape = packed.shapes[name]
        if name not in masks:
            if values.numel() != math.prod(shape):
                raise WireError(
                    f"{name} came with {values.numel()} values for a tensor of {math.prod(shape)}; "
                    "sender and receiver have different masks"
                )
            tensors[name] = values.reshape(shape)
            continue
        mask = masks[name]
        kept = int(mask.sum())
        if kept != values.numel() or tuple(mask.shape) != shape:
            raise WireError(
                f"{name} came with {values.numel()} values for a mask that keeps {kept} of "
                f"{mask.numel()}; sender and receiver have different masks"
            )
        tensors[name] = torch.zeros(shape, dtype=values.dtype).masked_scatter_(mask, values)
    return tensors


def fingerprint_of(masks: Masks) -> bytes:
    """Eight bytes that name masks and check them at once."""
    digest = hashlib.blake2b(digest_size=8)
    for name, mask in masks.items():
        digest.update(f"{name}{tuple(mask.shape)}".encode())
        digest.update(mask.detach().cpu().contiguous().numpy().data)
    return digest.digest()


def held(*records: object) -> dict[bytes, Masks]:
    """Every set of masks in some records, by fingerprint: what a receiver can build on."""
    return {fingerprint_of(masks): masks for record in records for masks in _masks_in(record)}


def whole(record: T) -> T:
    """The record with every revision told as a whole mask, for a receiver that lacks its base."""
    value: Any = record
    if isinstance(value, Revision):
        return replace(value, base=None)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}  # type: ignore[return-value]
    if isinstance(value, tuple | list):
        return type(value)(whole(each) for each in value)  # type: ignore[return-value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Packed | Drawn):
        changes = {f.name: whole(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return replace(value, **changes)  # type: ignore[return-value]
    return record


def is_masks(value: object) -> bool:
    """Whether a value is a dictionary of masks (and not an empty one)."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(name, str) and isinstance(mask, Tensor) and mask.dtype == torch.bool
            for name, mask in value.items()
        )
    )


def _masks_in(record: Any) -> Iterator[Masks]:
    if is_masks(record):
        yield record
    elif isinstance(record, Drawn):
        yield record.masks()
    elif isinstance(record, dict):
        for value in record.values():
            yield from _masks_in(value)
    elif isinstance(record, tuple | list):
        for value in record:
            yield from _masks_in(value)
    elif dataclasses.is_dataclass(record) and not isinstance(record, type):
        for field in dataclasses.fields(record):
            yield from _masks_in(getattr(record, field.name))


def _drawn(key: Key, shape: Sequence[int], kept: int) -> NDArray[np.bool_]:
    """Marks the first distinct numbers of a random sequence until enough are marked.

    Of NumPy only the raw stream of its bit generator is used: that one is promised never to change,
    while what its other functions make of it may differ between versions.
    """
    size = math.prod(shape)
    swapped = 2 * kept > size
    wanted = size - kept if swapped else kept
    stream = key.numpy().bit_generator
    fair = 2**64 - 2**64 % size if size else 0  # below it, every remainder is as likely
    mask = np.zeros(size, np.bool_)
    marked = 0
    while marked < wanted:
        raw = np.asarray(stream.random_raw(wanted - marked), np.uint64)
        if fair < 2**64:
            raw = raw[raw < np.uint64(fair)]
        mask[(raw % np.uint64(size)).view(np.int64)] = True
        marked = int(np.count_nonzero(mask))
    if swapped:
        np.logical_not(mask, out=mask)
    return mask.reshape(tuple(shape))


# nodes of a schema -------------------------------------------------------------------------------

Leaf: TypeAlias = Tensor | int | float | bool | str | Masks | Packed | Revision | Drawn


@dataclass(frozen=True)
class TensorNode:
    """A tensor of known dtype and shape; `exact` ones are never rounded on the way."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    exact: bool = False

    @cached_property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ScalarNode:
    """A Python number or text."""

    kind: str


@dataclass(frozen=True)
class MasksNode:
    """Masks of known shapes, which travel together."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    revises: bool = False
    """Whether they may be told as changes of masks that the receiver holds."""


@dataclass(frozen=True)
class DrawnNode:
    """Masks of known shapes that the receiver draws itself, from a seed and counts."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PackedNode:
    """Values on masks that the receiver knows; how many there are depends on the masks."""

    names: tuple[str, ...]
    tensors: tuple[TensorNode, ...]
    """Type and shape of the whole tensors."""


@dataclass(frozen=True)
class NoneNode:
    """Nothing, where something optional might be."""


@dataclass(frozen=True)
class DictNode:
    """A dictionary from names to values, in a known order."""

    keys: tuple[str | int, ...]
    children: tuple[Node, ...]


@dataclass(frozen=True)
class TupleNode:
    """A tuple or list of known length."""

    kind: type
    children: tuple[Node, ...]


@dataclass(frozen=True)
class RecordNode:
    """A dataclass and its fields."""

    type: type
    names: tuple[str, ...]
    children: tuple[Node, ...]


LeafNode: TypeAlias = TensorNode | ScalarNode | MasksNode | DrawnNode | PackedNode
Node: TypeAlias = LeafNode | NoneNode | DictNode | TupleNode | RecordNode


def branches(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """What a node holds, with the path of each part; nothing for a leaf."""
    match node:
        case DictNode():
            for key, child in zip(node.keys, node.children, strict=True):
                yield f"{path}[{key}]", child
        case TupleNode():
            for index, child in enumerate(node.children):
                yield f"{path}[{index}]", child
        case RecordNode():
            for name, child in zip(node.names, node.children, strict=True):
                yield f"{path}.{name}" if path else name, child
        case _:
            return


def walk(node: Node, path: str) -> Iterator[tuple[str, LeafNode]]:
    """Every leaf below a node with its path, in the order of the payload."""
    match node:
        case TensorNode() | ScalarNode() | MasksNode() | DrawnNode() | PackedNode():
            yield path, node
        case _:
            for where, child in branches(node, path):
                yield from walk(child, where)


def rebuild(node: Node, leaves: Iterator[Leaf]) -> Any:
    """The value that a node describes, made of the given leaves."""
    match node:
        case NoneNode():
            return None
        case TensorNode() | ScalarNode() | MasksNode() | DrawnNode() | PackedNode():
            return next(leaves)
        case DictNode():
            pairs = zip(node.keys, node.children, strict=True)
            return {key: rebuild(child, leaves) for key, child in pairs}
        case TupleNode():
            return node.kind(rebuild(child, leaves) for child in node.children)
        case RecordNode():
            fields = zip(node.names, node.children, strict=True)
            return node.type(**{name: rebuild(child, leaves) for name, child in fields})
