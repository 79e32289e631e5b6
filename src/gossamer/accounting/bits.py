"""Bits of messages, in three columns: sent, information, and as the method's paper counts.

*Sent* is the encoded bytes, *information* the values plus the entropy of the masks (the limit), and
*paper* follows the conventions of the method's paper (`Accounting`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import Masks
from gossamer.fields import option
from gossamer.wire import Detail, Drawn, Levels, Packed, Revision, Schema, Written, flatten
from gossamer.wire.format import field_of
from gossamer.wire.kinds import Leaf, LevelsNode, ScalarNode, TensorNode
from gossamer.wire.numbers import levels

Recipients = Literal["sampled", "all"]
MaskCode = Literal[
    "bitmap", "none", "coo", "csr-flat", "csr-2d", "entropy", "counted", "seed", "auto"
]
"""`entropy` is that of each tensor; `counted` that of all together, and how many are kept."""

LevelCode = Literal["width", "entropy", "golomb"]
"""`golomb`: Golomb codes of the gaps between levels other than zero, and a bit for their signs."""


@dataclass(frozen=True)
class Cost:
    """Bits each way in three columns, floating-point operations, and examples trained on."""

    up: int = 0
    down: int = 0
    information_up: float = 0.0
    information_down: float = 0.0
    paper_up: int = 0
    paper_down: int = 0
    flops: int = 0
    examples: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Cost)))


@dataclass(frozen=True)
class Entry:
    """A row of the ledger: what one field of one message cost, in bits."""

    direction: Literal["up", "down"]
    message: str
    leaf: str
    sent: float
    information: float
    paper: float


@dataclass(frozen=True)
class Accounting:
    """How a paper counts bits; a method whose paper differs from the default has it as a field."""

    recipients: Recipients = option(
        "sampled", "which clients the paper charges for downloads: sampled, or all"
    )
    mask_code: MaskCode = option("bitmap", "how the paper counts a mask")
    level_code: LevelCode = option("width", "how the paper counts a number of few levels")
    uncharged: str = option("", "message fields that the paper does not count, comma-separated")


def paper_bits(record: object, accounting: Accounting = Accounting()) -> float:
    """The bits of a record as papers count them: numbers by their type, and no header.

    An element of a tensor has the width of its type, whatever the wire makes of it: 32 bits for
    float32, 8 for int8. A Python number has 32. A number of few levels has as many as tell them
    apart, unless the paper codes them.
    """
    return sum(bits for _, bits in paper_rows(record, accounting))


def paper_rows(
    record: object, accounting: Accounting, schema: Schema | None = None
) -> Sequence[tuple[str, float]]:
    """The paper's bits of every leaf, with the field it belongs to."""
    schema = schema or Schema.of(record)
    known = _known_rows(schema, accounting)
    if None not in known:
        return [row for row in known if row]
    return [
        row or (field_of(path), _leaf_bits(leaf, accounting))
        for row, (path, _), leaf in zip(known, schema.leaves, flatten(record), strict=True)
    ]


@lru_cache(maxsize=256)
def _known_rows(schema: Schema, accounting: Accounting) -> list[tuple[str, float] | None]:
    """The rows of leaves whose cost does not depend on their values, and None for the others."""
    uncharged = {name.strip() for name in accounting.uncharged.split(",") if name.strip()}
    rows: list[tuple[str, float] | None] = []
    for path, node in schema.leaves:
        field = field_of(path)
        match node:
            case _ if names_of(field) & uncharged:
                rows.append((field, 0.0))
            case TensorNode() if node.dtype != torch.bool:
                rows.append((field, float(width(node.dtype) * node.count)))
            case LevelsNode() if accounting.level_code == "width":
                rows.append((field, float(levels.width(node.count) * node.total)))
            case ScalarNode():
                rows.append((field, 32.0))
            case _:
                rows.append(None)
    return rows


def _leaf_bits(leaf: Leaf, accounting: Accounting) -> float:
    code = accounting.mask_code
    match leaf:
        case Levels():
            return math.fsum(_level_bits(leaf, accounting.level_code).values())
        case Packed():
            return float(sum(map(_bits_of, leaf.values.values())))
        case Revision():
            return mask_bits(leaf.masks, code)
        case Drawn():
            return 0.0 if code == "none" else seed_bits(len(leaf.kept))
        case dict():
            return mask_bits(leaf, code)
        case Tensor():
            return mask_bits({"": leaf}, code)
        case _:
            return 32.0


def _level_bits(leaf: Levels, code: LevelCode) -> dict[str, float]:
    """The paper's bits of every tensor of levels."""
    if code == "width":
        return {n: float(levels.width(leaf.count) * t.numel()) for n, t in leaf.values.items()}
    if code == "entropy":
        return {n: levels.entropy(t.numpy(), leaf.least) for n, t in leaf.values.items()}
    return {n: golomb_bits(t.numel(), int(t.count_nonzero())) for n, t in leaf.values.items()}


def golomb_bits(size: int, kept: int) -> float:
    """Expected bits of so many signs and their places (Sattler et al. 2019, eq. 17)."""
    if not kept or kept == size:
        return float(kept)
    share = kept / size
    exponent = 1 + math.floor(math.log2(math.log((math.sqrt(5) - 1) / 2) / math.log1p(-share)))
    exponent = max(exponent, 0)
    return kept * (exponent + 1 / (1 - math.pow(1 - share, 2**exponent)) + 1)


def width(dtype: torch.dtype) -> int:
    """The bits of one element."""
    return 8 * dtype.itemsize


def _bits_of(tensor: Tensor) -> int:
    return width(tensor.dtype) * tensor.numel()


def names_of(field: str) -> set[str]:
    """What a nested field may be called: `frozen.values`, or just `frozen`.

    A sparse model's own fields need no prefix: `buffers` is `model.buffers`.
    """
    parts = field.split(".")
    names = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return names | {field.removeprefix("model.")}


def paper_tensors(
    record: object, accounting: Accounting, schema: Schema | None = None
) -> Iterator[tuple[str, float]]:
    """The paper's bits of every tensor; bits counted for several at once are shared by cost."""
    schema = schema or Schema.of(record)
    rows = paper_rows(record, accounting, schema)
    for (path, _), leaf, (_, bits) in zip(schema.leaves, flatten(record), rows, strict=True):
        match leaf:
            case Packed():
                parts = {name: float(_bits_of(values)) for name, values in leaf.values.items()}
            case Levels():
                parts = _level_bits(leaf, accounting.level_code)
            case Revision():
                parts = {n: mask_bits({n: m}, accounting.mask_code) for n, m in leaf.masks.items()}
            case dict():
                parts = {n: mask_bits({n: m}, accounting.mask_code) for n, m in leaf.items()}
            case Drawn():
                parts = dict.fromkeys(leaf.kept, seed_bits(1))
            case _:
                yield path, bits
                continue
        if not (total := math.fsum(parts.values())):
            yield path, bits
            continue
        for name, part in parts.items():
            yield f"{path}[{name}]", bits * part / total


def ledger_rows(
    message: Written,
    record: object,
    direction: Literal["up", "down"],
    accounting: Accounting,
    detail: Detail,
    charged: float = 1.0,
) -> list[Entry]:
    """A message's rows of the ledger.

    Args:
        message: The encoded message.
        record: What it encodes, as its receiver has it.
        direction: Up to the server, or down to a client.
        accounting: How the paper counts.
        detail: A row for each field of the record, or for each tensor.
        charged: How many times the paper counts the message.
    """
    paper = _known_paper(message.schema, accounting, charged) if detail == "field" else None
    if paper is None:
        count = paper_rows if detail == "field" else paper_tensors
        paper = _by_leaf(count(record, accounting, message.schema), charged)
    return [
        Entry(
            direction, message.message, row.leaf, row.sent, row.information, paper.get(row.leaf, 0)
        )
        for row in message.rows
    ]


@lru_cache(maxsize=256)
def _known_paper(schema: Schema, accounting: Accounting, charged: float) -> dict[str, float] | None:
    """The paper's bits of every field, unless they depend on the values."""
    known = _known_rows(schema, accounting)
    return None if None in known else _by_leaf([row for row in known if row], charged)


def _by_leaf(rows: Iterable[tuple[str, float]], charged: float) -> dict[str, float]:
    totals: dict[str, float] = {}
    for leaf, bits in rows:
        totals[leaf] = totals.get(leaf, 0) + charged * bits
    return totals


def mask_bits(masks: Masks, code: MaskCode) -> float:
    """The cost of masks in a paper's code."""
    if code == "auto":
        return min(mask_bits(masks, other) for other in ("bitmap", "coo", "csr-flat", "csr-2d"))
    if code == "seed":
        return seed_bits(len(masks))
    if code == "entropy":
        return float(math.ceil(sum(_mask_bits(mask, code) for mask in masks.values())))
    if code == "counted":
        size = sum(mask.numel() for mask in masks.values())
        kept = sum(int(mask.sum()) for mask in masks.values())
        return float(math.ceil(_entropy(size, kept) + math.log2(max(size, 1))))
    return sum(_mask_bits(mask, code) for mask in masks.values())


def seed_bits(tensors: int) -> float:
    """The cost of masks drawn from a seed: the seed, and a count for each tensor."""
    return 64.0 + 32.0 * tensors


def _entropy(size: int, kept: int) -> float:
    return 0.0 if kept in (0, size) else -size * _plogp(kept / size)


def _mask_bits(mask: Tensor, code: MaskCode) -> float:
    size, kept = mask.numel(), int(mask.sum())
    match code:
        case "bitmap":
            return float(size)
        case "coo":
            return float(kept * math.ceil(math.log2(size))) if size > 1 else 0.0
        case "csr-flat":
            return 32.0 * kept + 64.0
        case "csr-2d":
            return 32.0 * kept + 32.0 * ((mask.shape[0] if mask.dim() else 1) + 1)
        case "entropy":
            return _entropy(size, kept)
        case _:
            return 0.0


def _plogp(share: float) -> float:
    return share * math.log2(share) + (1 - share) * math.log2(1 - share)


def stale_share(rate: float, every: int) -> float:
    """The share of downloads that must include the mask.

    Args:
        rate: A client's chance to take part in a round; one that took part since the last
            change has the current mask.
        every: Rounds between changes of the mask.
    """
    return (1 - (1 - rate) ** every) / (every * rate)


def visitors(pool: int, clients: int, rounds: int) -> float:
    """The expected number of clients that take part at least once."""
    return pool * (1 - (1 - clients / pool) ** rounds)
