"""Schemas: the structure of records, known to both sides and therefore never sent."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gossamer.core import Masks
from gossamer.wire.drawn import Drawn
from gossamer.wire.kinds import (
    EXACT,
    DictNode,
    DrawnNode,
    Leaf,
    LeafNode,
    Levels,
    LevelsNode,
    MasksNode,
    Node,
    NoneNode,
    Packed,
    PackedNode,
    RecordNode,
    Revision,
    ScalarNode,
    TensorNode,
    TupleNode,
    is_masks,
    rebuild,
    walk,
)

Types: TypeAlias = Mapping[str, type]

_SCALARS: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "str"}
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
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
    )
}
_DTYPES = frozenset(DTYPES.values())
_INT64 = range(-(2**63), 2**63)
_OWN_ENCODINGS = frozenset({Packed, Revision, Drawn, Levels})


@dataclass(frozen=True)
class Schema:
    """The structure of a record; records with equal schemas differ only in their leaves."""

    root: Node

    @classmethod
    def of(cls, record: object) -> Schema:
        """The schema of a record; records of equal structure share one instance and its caches."""
        try:
            outline = _outline(record)
        except TypeError:
            _node(record, "record", False)  # whose error names the leaf
            raise
        known = _by_outline.get(outline)
        if known is None:
            if len(_by_outline) >= _OUTLINES:
                _by_outline.clear()
            known = _by_outline[outline] = _shared(cls(_node(record, "record", False)))
        return known

    def __hash__(self) -> int:
        return self._number

    def __reduce__(self) -> tuple[type[Schema], tuple[Node]]:
        return Schema, (self.root,)  # hashes differ between processes

    @cached_property
    def _number(self) -> int:
        return hash(self.root)

    @property
    def hash(self) -> bytes:
        """An 8-byte hash by which a receiver checks that it uses the sender's schema."""
        return _hash(self)

    @property
    def name(self) -> str:
        """The name of the record's type, used as the name of the message."""
        root = self.root
        return root.type.__name__ if isinstance(root, RecordNode) else type(root).__name__

    @cached_property
    def leaves(self) -> tuple[tuple[str, LeafNode], ...]:
        """The path and node of every leaf, in payload order."""
        return tuple(walk(self.root, "" if isinstance(self.root, RecordNode) else "record"))

    @cached_property
    def revises(self) -> bool:
        """Whether decoding may require masks that the receiver holds."""
        return any(isinstance(node, MasksNode) and node.revises for _, node in self.leaves)

    def rebuild(self, leaves: Iterator[Leaf]) -> Any:
        """Rebuilds a record from its leaves, in schema order."""
        return rebuild(self.root, leaves)

    def plain(self) -> Any:
        """The schema as JSON values; types are represented by their names."""
        return _plain(self.root)

    @classmethod
    def read(cls, plain: Any, types: Types) -> Schema:
        """The inverse of `plain`; the schema may contain only the given record types."""
        return cls(_read(plain, types))


@lru_cache(maxsize=256)
def _shared(schema: Schema) -> Schema:
    """The first instance among equal schemas."""
    return schema


@lru_cache(maxsize=256)
def _hash(schema: Schema) -> bytes:
    return hashlib.blake2b(json.dumps(schema.plain()).encode(), digest_size=8).digest()


_by_outline: dict[Hashable, Schema] = {}
_OUTLINES = 256
"""Structures that are remembered."""


def _outline(value: Any) -> Hashable:
    """All that the schema of a value depends on, several times cheaper than the schema itself."""
    kind: Any = type(value)
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.layout
    if kind is dict:  # of tensors, most of the time: a call for each of them would take longer
        tensors = (type(part) is Tensor for part in value.values())
        if all(tensors):
            return kind, tuple(value), tuple([(t.dtype, t.shape, t.layout) for t in value.values()])
        return kind, tuple(value), tuple(map(_outline, value.values()))
    if kind is tuple or kind is list:
        return kind, tuple(map(_outline, value))
    if hasattr(kind, "__dataclass_fields__") and kind not in _OWN_ENCODINGS:
        return kind, tuple(_outline(getattr(value, name)) for name, _ in _fields(kind))
    return _node(value, "record", False)


def flatten(record: object) -> list[Leaf]:
    """The leaves of a record, in schema order."""
    leaves: list[Leaf] = []
    _gather(record, leaves)
    return leaves


def _gather(record: object, leaves: list[Leaf]) -> None:
    match record:
        case Tensor() | Packed() | Revision() | Drawn() | Levels():
            leaves.append(record)
        case bool() | int() | float() | str():
            leaves.append(record)
        case None:
            pass
        case dict() if is_masks(record):
            leaves.append(record)
        case dict():
            for value in record.values():
                if isinstance(value, Tensor):  # most are: a call for each of them would take longer
                    leaves.append(value)
                else:
                    _gather(value, leaves)
        case tuple() | list():
            for value in record:
                _gather(value, leaves)
        case _ if dataclasses.is_dataclass(record):
            kind: Any = type(record)
            for name, _ in _fields(kind):
                _gather(getattr(record, name), leaves)


@cache
def _fields(record: Any) -> tuple[tuple[str, bool], ...]:
    """The fields of a record type, and whether each is exact (never rounded in transit)."""
    known = dataclasses.fields(record)
    return tuple((field.name, field.metadata.get("wire") == EXACT["wire"]) for field in known)


def record_types(method: object) -> dict[str, type]:
    """All record types that a method sends or stores, by name; taken from its type hints.

    A method that is made of another one lists them itself, in a function `records`.
    """
    if (known := getattr(method, "records", None)) is not None:
        listed: dict[str, type] = known()
        return listed
    records: dict[str, type] = {}
    for name in ("init", "down", "begin", "finish"):
        hints = typing.get_type_hints(getattr(type(method), name))
        for label, hint in hints.items():
            # Work, which `begin` returns and `finish` takes, never leaves a client.
            if label != "ctx" and (name, label) not in (("begin", "return"), ("finish", "work")):
                _collect(hint, records)
    return records


def type_name(kind: type) -> str:
    """The name of a record type in schemas: the name of the class without its module.

    Moving or copying a module therefore changes neither checkpoints nor hashes.
    """
    return kind.__qualname__


def _collect(hint: Any, records: dict[str, type]) -> None:
    for argument in typing.get_args(hint):
        _collect(argument, records)
    if isinstance(hint, types.UnionType | type(None)):
        return
    kind = typing.get_origin(hint) or hint
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        known = records.get(type_name(kind))
        if known is kind:
            return
        if known is not None:
            raise TypeError(
                f"two record types of the method are called {type_name(kind)!r}, in "
                f"{known.__module__} and in {kind.__module__}; rename one of them"
            )
        records[type_name(kind)] = kind
        for inner in typing.get_type_hints(kind).values():
            _collect(inner, records)


def _node(value: object, path: str, exact: bool) -> Node:
    match value:
        case Tensor():
            if value.dtype not in _DTYPES or value.layout is not torch.strided:
                raise TypeError(
                    f"{path} is a tensor of {value.dtype} ({value.layout}); "
                    f"a record may hold dense tensors of {', '.join(DTYPES)}"
                )
            return _tensor_node(value.dtype, value.shape, exact)
        case None:
            return NoneNode()
        case bool() | int() | float() | str() if type(value) in _SCALARS:
            if type(value) is int and value not in _INT64:
                raise TypeError(f"{path} is {value}, which does not fit in 64 bits")
            return ScalarNode(_SCALARS[type(value)])
        case Packed():
            return PackedNode(tuple(value.values), _packed_tensors(value, path, exact))
        case Revision():
            return _masks_node(value.masks, True)
        case Drawn():
            sizes = tuple(tuple(value.shapes[name]) for name in value.kept)
            return DrawnNode(tuple(value.kept), sizes)
        case Levels():
            sizes = tuple(tuple(each.shape) for each in value.values.values())
            return LevelsNode(tuple(value.values), sizes, value.least, value.most)
        case dict():
            for key in value:
                if not isinstance(key, str | int):
                    raise TypeError(f"{path} has the key {key!r}; keys must be strings or integers")
            if is_masks(value):
                return _masks_node(value, False)
            children = tuple(_node(inner, f"{path}.{key}", exact) for key, inner in value.items())
            return DictNode(tuple(value), children)
        case tuple() | list() if type(value) in (tuple, list):
            children = tuple(_node(inner, f"{path}[{i}]", exact) for i, inner in enumerate(value))
            return TupleNode(type(value), children)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = _fields(type(value))
            inner = tuple(
                _node(getattr(value, name), f"{path}.{name}", exact or marked)
                for name, marked in fields
            )
            return RecordNode(type(value), tuple(name for name, _ in fields), inner)
    raise TypeError(
        f"{path} is a {type(value).__name__}; a record may hold tensors, numbers, text, None, "
        "and dataclasses, dictionaries, tuples or lists of these"
    )


@lru_cache(maxsize=1024)
def _tensor_node(dtype: torch.dtype, shape: torch.Size, exact: bool) -> TensorNode:
    return TensorNode(dtype, tuple(shape), exact)


def _packed_tensors(packed: Packed, path: str, exact: bool) -> tuple[TensorNode, ...]:
    nodes = []
    for name, values in packed.values.items():
        where = f"{path}[{name}]"
        travels = values.dtype.is_floating_point and values.dtype in _DTYPES
        if values.dim() != 1 or not travels:
            raise TypeError(
                f"{where} is packed, but is not a vector of floats; send bool tensors as Masks"
            )
        if name not in packed.shapes:
            raise TypeError(f"{where} is packed without the shape of its full tensor")
        node = TensorNode(values.dtype, tuple(packed.shapes[name]), exact)
        if values.numel() > node.count:
            raise TypeError(f"{where} has {values.numel()} values, {node.count} at most")
        nodes.append(node)
    return tuple(nodes)


def _masks_node(masks: Masks, revises: bool) -> MasksNode:
    return MasksNode(tuple(masks), tuple(tuple(mask.shape) for mask in masks.values()), revises)


def _plain(node: Node) -> Any:
    match node:
        case NoneNode():
            return None
        case TensorNode():
            kind = "exact" if node.exact else "tensor"
            return [kind, str(node.dtype).removeprefix("torch."), list(node.shape)]
        case ScalarNode():
            return ["scalar", node.kind]
        case MasksNode():
            kind = "revision" if node.revises else "masks"
            return [kind, list(node.names), [list(shape) for shape in node.shapes]]
        case DrawnNode():
            return ["drawn", list(node.names), [list(shape) for shape in node.shapes]]
        case LevelsNode():
            sizes = [list(shape) for shape in node.shapes]
            return ["levels", list(node.names), sizes, node.least, node.most]
        case PackedNode():
            return ["packed", list(node.names), [_plain(tensor) for tensor in node.tensors]]
        case DictNode():
            return ["dict", list(node.keys), [_plain(child) for child in node.children]]
        case TupleNode():
            return [node.kind.__name__, [_plain(child) for child in node.children]]
        case RecordNode():
            children = [_plain(child) for child in node.children]
            return ["record", type_name(node.type), list(node.names), children]


def _read(plain: Any, types: Types) -> Node:
    match plain:
        case None:
            return NoneNode()
        case ["tensor" | "exact" as kind, str(dtype), list(shape)] if dtype in DTYPES:
            if _is_shape(shape):
                return TensorNode(DTYPES[dtype], tuple(shape), kind == "exact")
        case ["scalar", str(kind)] if kind in _SCALARS.values():
            return ScalarNode(kind)
        case ["masks" | "revision" as kind, list(names), list(shapes)]:
            if len(names) == len(shapes) and _are_names(names) and all(map(_is_shape, shapes)):
                return MasksNode(tuple(names), tuple(map(tuple, shapes)), kind == "revision")
        case ["drawn", list(names), list(shapes)]:
            if len(names) == len(shapes) and _are_names(names) and all(map(_is_shape, shapes)):
                return DrawnNode(tuple(names), tuple(map(tuple, shapes)))
        case ["levels", list(names), list(shapes), int(least), int(most)]:
            if len(names) == len(shapes) and _are_names(names) and all(map(_is_shape, shapes)):
                Levels({}, least, most)  # which checks the range
                return LevelsNode(tuple(names), tuple(map(tuple, shapes)), least, most)
        case ["packed", list(names), list(tensors)] if len(names) == len(tensors):
            nodes = [_read(tensor, types) for tensor in tensors]
            parts = tuple(node for node in nodes if isinstance(node, TensorNode))
            if len(parts) == len(names) and _are_names(names):
                return PackedNode(tuple(names), parts)
        case ["dict", list(keys), list(children)] if len(keys) == len(children):
            if all(isinstance(key, str | int) for key in keys):
                return DictNode(tuple(keys), tuple(_read(child, types) for child in children))
        case ["tuple" | "list" as kind, list(children)]:
            inner = tuple(_read(child, types) for child in children)
            return TupleNode(tuple if kind == "tuple" else list, inner)
        case ["record", str(name), list(names), list(children)] if len(names) == len(children):
            if name not in types:
                raise ValueError(f"{name} is not a record of this method, which has {list(types)}")
            wanted = [field.name for field in dataclasses.fields(types[name])]
            if names != wanted:
                raise ValueError(f"{name} was written with fields {names}, but has {wanted}")
            inner = tuple(_read(child, types) for child in children)
            return RecordNode(types[name], tuple(names), inner)
    raise ValueError(f"{plain!r} is not a schema node")


def _is_shape(sizes: Any) -> bool:
    return isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)


def _are_names(names: list[Any]) -> bool:
    return all(isinstance(name, str) for name in names)
