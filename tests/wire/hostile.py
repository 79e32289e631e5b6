"""Records with a leaf of each kind, messages made by hand, and what becomes of damaged ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from mask_cases import damaged, independent, moved
from torch import Tensor

from gossamer.wire import (
    EXACT,
    HEADER,
    PLAIN,
    Drawn,
    Mode,
    Packed,
    Revision,
    Schema,
    WireError,
    decode,
    held,
    pack,
)
from gossamer.wire.format import VERSION, message_hash

ZSTD = Mode(zstd=True)


@dataclass(frozen=True)
class Small:
    """One leaf of each kind, in the order in which they travel."""

    text: str
    on: bool
    lr: float
    counts: Tensor
    mask: Tensor
    masks: dict[str, Tensor]
    new: Revision
    drawn: Drawn
    values: Packed
    params: dict[str, Tensor]
    precise: Tensor = field(metadata=EXACT)


def masks_of(shapes: list[tuple[int, ...]], density: float, seed: int = 0) -> dict[str, Tensor]:
    return named(independent(shapes, density, seed))


def named(masks: list[Any]) -> dict[str, Tensor]:
    return {f"w{index}": torch.from_numpy(mask) for index, mask in enumerate(masks)}


def values_of(shapes: list[tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    draw = np.random.default_rng(seed)
    found = [0.1 * draw.standard_normal(shape, np.float32) for shape in shapes]
    return {f"w{index}": torch.from_numpy(np.asarray(each)) for index, each in enumerate(found)}


SHAPES: list[tuple[int, ...]] = [(6, 3, 3, 3), (10, 12), (7,), ()]
OLD = masks_of(SHAPES, 0.2, seed=1)
NEW = named(moved(independent(SHAPES, 0.2, seed=1), 0.2))
WITHOUT = {**OLD, "w1": OLD["w1"] & False}
"""All ones of a tensor are lost, which is told by gaps."""
HELD = held(OLD)


def drawn(density: float, seed: int = 0) -> Drawn:
    shapes = {f"w{index}": shape for index, shape in enumerate(SHAPES)}
    kept = {name: int(density * math.prod(shape)) for name, shape in shapes.items()}
    return Drawn(seed, kept, shapes)


def small(seed: int = 0) -> Small:
    params = values_of(SHAPES, seed)
    return Small(
        text="grün",
        on=True,
        lr=0.1,
        counts=torch.arange(5, dtype=torch.int16),
        mask=torch.arange(70) % 9 == seed,
        masks=masks_of(SHAPES, 0.3, seed),
        new=Revision(NEW, OLD),
        drawn=drawn(0.5, seed),
        values=pack(params, NEW),
        params=params,
        precise=torch.arange(4.0) + seed,
    )


SMALL = Schema.of(small())


def message(schema: Schema, payload: bytes, mode: Mode = PLAIN) -> bytes:
    return bytes([VERSION]) + message_hash(schema, mode) + payload


def inside(messages: list[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """Messages damaged behind their header."""
    bodies = [data[HEADER:] for data in messages]
    for body in damaged(bodies, count, seed):
        yield messages[0][:HEADER] + body


def zeros(record: Any) -> Any:
    """The record with all its values zero, which compresses well."""
    if isinstance(record, Packed):
        return Packed(zeros(record.values), record.shapes)
    return {name: torch.zeros_like(value) for name, value in record.items()}


def outcome(
    data: bytes, schema: Schema, mode: Mode, known: Any = HELD, reference: object = None
) -> bool:
    """Whether a message is accepted, and then as what the schema says; only WireError may rise."""
    try:
        found = decode(data, schema, mode, reference, known)
    except WireError as refusal:
        assert str(refusal)
        return False
    assert Schema.of(found) == schema
    return True
