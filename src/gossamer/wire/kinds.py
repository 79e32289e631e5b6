"""The types a record may hold, and the nodes of schemas.

Besides tensors, numbers and texts, four types have their own encodings: values on a mask
(`Packed`), changes of a mask (`Revision`), seeds of random masks (`Drawn`) and numbers of few bits
(`Levels`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from gossamer.arithmetic.indices import true_indices
from gossamer.core import Masks, Params
from gossamer.wire.drawn import Drawn, Shapes
from gossamer.wire.errors import WireError

T = TypeVar("T")

Held: TypeAlias = Mapping[bytes, Masks]
"""Masks that a receiver holds, by their fingerprints."""

MOST_LEVELS = 4096
"""The most levels that numbers of few bits may have."""
EXACT: Mapping[str, str] = {"wire": "exact"}
"""Metadata of a field that is never rounded in transit, such as thresholds."""


@dataclass(frozen=True)
class Packed:
    """The values of tensors inside masks that the receiver knows, in mask order."""

    values: Params
    """One-dimensional."""
    shapes: Shapes
    """Shapes of the full tensors; part of the schema, never sent."""


@dataclass(frozen=True)
class Revision:
    """Masks for a receiver that may hold older ones; then only the changes are sent."""

    masks: Masks
    base: Masks | None = None
    """The masks that the receiver holds; identified by fingerprint, never sent."""


@dataclass(frozen=True)
class Levels:
    """Whole numbers from a small range, such as those of a quantiser, which are entropy-coded."""

    values: Params
    """Tensors of int8 or int16; a receiver gets int8 if the range fits."""
    least: int
    """The lowest level; part of the schema, never sent."""
    most: int
    """The highest level; part of the schema, never sent."""

    def __post_init__(self) -> None:
        if not (-(2**15) <= self.least < self.most < 2**15 and self.count <= MOST_LEVELS):
            raise ValueError(
                f"levels are 2 to {MOST_LEVELS} whole numbers of 16 bits, not {self.least} to "
                f"{self.most}"
            )
        for name, tensor in self.values.items():
            if tensor.dtype not in (torch.int8, torch.int16):
                raise ValueError(
                    f"levels are tensors of int8 or int16, but {name} is {tensor.dtype}"
                )

    @property
    def count(self) -> int:
        """How many levels there are."""
        return self.most - self.least + 1


def pack(params: Params, masks: Masks) -> Packed:
    """Packs the values at the True entries of masks; a tensor without a mask is packed in full."""
    values = {
        name: _kept(tensor, masks[name]) if name in masks else tensor.flatten()
        for name, tensor in params.items()
    }
    return Packed(values, {name: tuple(tensor.shape) for name, tensor in params.items()})


def unpack(packed: Packed, masks: Masks) -> Params:
    """The tensors from `pack`, zero outside their masks; other masks raise a `WireError`."""
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
        found = true_indices(mask)
        if found.numel() != values.numel() or tuple(mask.shape) != shape:
            raise WireError(
                f"{name} came with {values.numel()} values for a mask that keeps {len(found)} of "
                f"{mask.numel()}; sender and receiver have different masks"
            )
        full = torch.zeros(mask.numel(), dtype=values.dtype)
        tensors[name] = full.scatter_(0, found, values).view(shape)
    return tensors


def _kept(tensor: Tensor, mask: Tensor) -> Tensor:
    """The values at the True entries of a mask, row by row."""
    if mask.shape != tensor.shape:
        raise IndexError(
            f"a mask of shape {tuple(mask.shape)} does not fit a tensor of {tuple(tensor.shape)}"
        )
    return tensor.reshape(-1).index_select(0, true_indices(mask).to(tensor.device))


def fingerprint_of(masks: Masks) -> bytes:
    """An 8-byte hash that identifies masks and verifies them."""
    digest = hashlib.blake2b(digest_size=8)
    for name, mask in masks.items():
        digest.update(f"{name}{tuple(mask.shape)}".encode())
        digest.update(mask.detach().cpu().contiguous().numpy().data)
    return digest.digest()


def held(*records: object) -> dict[bytes, Masks]:
    """All sets of masks in some records, by fingerprint: the possible bases of revisions."""
    return {fingerprint_of(masks): masks for record in records for masks in _masks_in(record)}


def whole(record: T) -> T:
    """The record with complete masks instead of changes, for a receiver that lacks their base."""
    value: Any = record
    if isinstance(value, Revision):
        return replace(value, base=None)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}  # type: ignore[return-value]
    if isinstance(value, tuple | list):
        return type(value)(whole(each) for each in value)  # type: ignore[return-value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Packed | Drawn | Levels):
        changes = {f.name: whole(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return replace(value, **changes)  # type: ignore[return-value]
    return record


def is_masks(value: object) -> bool:
    """Whether a value is a non-empty dictionary of masks."""
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


# nodes of a schema -------------------------------------------------------------------------------

Leaf: TypeAlias = Tensor | int | float | bool | str | Masks | Packed | Revision | Drawn | Levels


@dataclass(frozen=True)
class TensorNode:
    """A tensor of known dtype and shape; `exact`: never rounded in transit."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    exact: bool = False

    @cached_property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ScalarNode:
    """A Python number or text."""

    kind: str


@dataclass(frozen=True)
class MasksNode:
    """Masks of known shapes, encoded as one block."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    revises: bool = False
    """Whether they may be sent as changes of masks that the receiver holds."""


@dataclass(frozen=True)
class DrawnNode:
    """Masks of known shapes that the receiver draws from a seed and counts."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PackedNode:
    """Values inside masks that the receiver knows; the masks determine their number."""

    names: tuple[str, ...]
    tensors: tuple[TensorNode, ...]
    """Type and shape of the full tensors."""


@dataclass(frozen=True)
class LevelsNode:
    """Whole numbers from a known range in tensors of known shapes, encoded as one block."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    least: int
    most: int

    @property
    def count(self) -> int:
        """How many levels there are."""
        return self.most - self.least + 1

    @cached_property
    def total(self) -> int:
        """The number of elements of all tensors."""
        return sum(map(math.prod, self.shapes))


@dataclass(frozen=True)
class NoneNode:
    """None, as the value of an optional field."""


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


LeafNode: TypeAlias = TensorNode | ScalarNode | MasksNode | DrawnNode | PackedNode | LevelsNode
Node: TypeAlias = LeafNode | NoneNode | DictNode | TupleNode | RecordNode


def branches(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """The children of a node with their paths; none for a leaf."""
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
    """All leaves below a node with their paths, in payload order."""
    match node:
        case NoneNode() | DictNode() | TupleNode() | RecordNode():
            for where, child in branches(node, path):
                yield from walk(child, where)
        case _:
            yield path, node


def rebuild(node: Node, leaves: Iterator[Leaf]) -> Any:
    """Rebuilds the value that a node describes from its leaves."""
    match node:
        case NoneNode():
            return None
        case DictNode():
            pairs = zip(node.keys, node.children, strict=True)
            return {key: rebuild(child, leaves) for key, child in pairs}
        case TupleNode():
            return node.kind(rebuild(child, leaves) for child in node.children)
        case RecordNode():
            fields = zip(node.names, node.children, strict=True)
            return node.type(**{name: rebuild(child, leaves) for name, child in fields})
        case _:
            return next(leaves)
