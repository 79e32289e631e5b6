"""What schemas are made of: a kind of node for each kind of thing that a record may hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gossamer.core import Masks
from gossamer.wire.kinds import Drawn, Packed, Revision

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
        return prod(self.shape)


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
