"""Parts of records that travel in their own way: values on a known mask, a mask's change."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from gossamer.core import Masks, Params
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


def pack(params: Params, masks: Masks) -> Packed:
    """The values at the True entries of masks; a tensor without a mask is packed whole."""
    values = {
        name: tensor[masks[name]] if name in masks else tensor.flatten()
        for name, tensor in params.items()
    }
    return Packed(values, {name: tuple(tensor.shape) for name, tensor in params.items()})


def unpack(packed: Packed, masks: Masks) -> Params:
    """The tensors that were packed, zero outside their masks; other masks are a `WireError`."""
    found = {}
    for name, values in packed.values.items():
        shape = packed.shapes[name]
        if name not in masks:
            if values.numel() != math.prod(shape):
                raise WireError(
                    f"{name} came with {values.numel()} values for a tensor of {math.prod(shape)}; "
                    "sender and receiver have different masks"
                )
            found[name] = values.reshape(shape)
            continue
        mask = masks[name]
        kept = int(mask.sum())
        if kept != values.numel() or tuple(mask.shape) != shape:
            raise WireError(
                f"{name} came with {values.numel()} values for a mask that keeps {kept} of "
                f"{mask.numel()}; sender and receiver have different masks"
            )
        found[name] = torch.zeros(shape, dtype=values.dtype).masked_scatter_(mask, values)
    return found


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
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Packed):
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
    elif isinstance(record, dict):
        for value in record.values():
            yield from _masks_in(value)
    elif isinstance(record, tuple | list):
        for value in record:
            yield from _masks_in(value)
    elif dataclasses.is_dataclass(record) and not isinstance(record, type):
        for field in dataclasses.fields(record):
            yield from _masks_in(getattr(record, field.name))
