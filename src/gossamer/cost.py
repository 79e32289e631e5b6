"""What a run costs: bits and floating-point operations, in one arithmetic for all methods.

Bits are kept in three columns: *sent* (the encoded bytes), *information* (the values and the
entropy of the masks, the limit), and *paper* (as the method's paper counts). FLOPs are counted in
one of several conventions, because papers disagree; see `FLOPS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import Masks
from gossamer.fields import option
from gossamer.layout import Layout
from gossamer.wire import Drawn, Packed, Revision, Schema, flatten
from gossamer.wire.format import field_of
from gossamer.wire.nodes import Leaf, ScalarNode, TensorNode

Recipients = Literal["sampled", "all"]
MaskCode = Literal[
    "bitmap", "none", "coo", "csr-flat", "csr-2d", "entropy", "counted", "seed", "auto"
]
"""`entropy` is that of each tensor; `counted` that of all together, and how many are kept."""


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
    """How a paper counts bits; a method that differs from the default has it as a field."""

    recipients: Recipients = option("sampled", "who is charged for what goes down, in the paper")
    mask_code: MaskCode = option("bitmap", "what a mask costs in the paper")
    uncharged: str = option("", "fields of messages that the paper does not count, with commas")


# bits ---------------------------------------------------------------------------------------------


def paper_bits(record: object, accounting: Accounting = Accounting()) -> float:
    """The bits of a record as papers count them: 32 for a number, no header."""
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
        row or (field_of(path), _leaf_bits(leaf, accounting.mask_code))
        for row, (path, _), leaf in zip(known, schema.leaves, flatten(record), strict=True)
    ]


@lru_cache(maxsize=256)
def _known_rows(schema: Schema, accounting: Accounting) -> list[tuple[str, float] | None]:
    """The rows of leaves that cost the same whatever is in them, and None for the others."""
    uncharged = {name.strip() for name in accounting.uncharged.split(",") if name.strip()}
    found: list[tuple[str, float] | None] = []
    for path, node in schema.leaves:
        field = field_of(path)
        match node:
            case _ if _names(field) & uncharged:
                found.append((field, 0.0))
            case TensorNode() if node.dtype != torch.bool:
                found.append((field, 32.0 * node.count))
            case ScalarNode():
                found.append((field, 32.0))
            case _:
                found.append(None)
    return found


def _leaf_bits(leaf: Leaf, code: MaskCode) -> float:
    match leaf:
        case Packed():
            return 32.0 * sum(values.numel() for values in leaf.values.values())
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


def _names(field: str) -> set[str]:
    """What a field of a record in a record may be called: `frozen.values`, or just `frozen`."""
    parts = field.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


def paper_tensors(
    record: object, accounting: Accounting, schema: Schema | None = None
) -> Iterator[tuple[str, float]]:
    """The paper's bits of every tensor; what it counts for several at once is shared by cost."""
    schema = schema or Schema.of(record)
    rows = paper_rows(record, accounting, schema)
    for (path, _), leaf, (_, bits) in zip(schema.leaves, flatten(record), rows, strict=True):
        match leaf:
            case Packed():
                parts = {name: float(values.numel()) for name, values in leaf.values.items()}
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


def mask_bits(masks: Masks, code: MaskCode) -> float:
    """What masks cost in a paper's code."""
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
    """What masks cost that are drawn from a seed: it, and a number for each tensor."""
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
    """The part of messages down that must carry the mask, if it changes every so many rounds.

    `rate` is a client's chance to take part in a round; who did since the change has the new mask.
    """
    return (1 - (1 - rate) ** every) / (every * rate)


def visitors(pool: int, clients: int, rounds: int) -> float:
    """Clients that are expected to take part at least once: what is sent to each of them once."""
    return pool * (1 - (1 - clients / pool) ** rounds)


# floating-point operations ------------------------------------------------------------------------


@dataclass(frozen=True)
class Effort:
    """What a client computed in one participation."""

    layout: Layout
    densities: Mapping[str, float]
    """Of prunable tensors; one that is absent is dense."""
    examples: int
    """Trained on, all epochs together."""
    steps: int
    per_epoch: int
    """Steps in one epoch."""

    trained: Mapping[str, float] = field(default_factory=dict)
    """Densities of what was trained; one that is absent was trained wherever it is active."""

    def density(self, name: str) -> float:
        """The part of a tensor that is active."""
        return self.densities.get(name, 1.0)

    def macs(self, factor: Callable[[float], float]) -> float:
        """Multiply-accumulates over all examples, each layer times a function of its density."""
        return self.layers(lambda density, trained: factor(density))

    def layers(self, factor: Callable[[float, float], float]) -> float:
        """The same, for a function of the density and of that of the trained part."""
        if not self.densities and not self.trained:
            return self.layout.macs * factor(1.0, 1.0) * self.examples
        each = math.fsum(
            leaf.macs * factor(self.density(name), self.trained.get(name, self.density(name)))
            for name, leaf in self.layout.leaves.items()
        )
        return each * self.examples

    @property
    def mean_density(self) -> float:
        """The mean over prunable layers, every layer counting the same."""
        names = self.layout.prunable
        return math.fsum(map(self.density, names)) / len(names) if names else 1.0


def _spafl(
    effort: Effort, per_layer: Callable[[float], float], every_weight: bool = False
) -> float:
    """SpaFL's work: passes, updates of weights and thresholds, masks and the importance update."""
    weights = effort.layout.total("count", effort.layout.prunable)
    updated = 1.0 if every_weight else effort.mean_density
    updates = updated * weights * effort.per_epoch
    if not effort.densities:
        return effort.macs(per_layer) + updates
    thresholds = effort.layout.rows
    return effort.macs(per_layer) + updates + 2.5 * weights + thresholds * effort.per_epoch


FLOPS: Mapping[str, Callable[[Effort], float]] = {
    "passes": lambda effort: 2 * effort.macs(lambda d: 3 * d),
    "spafl": lambda effort: _spafl(effort, lambda d: d * (2 + d)),
    "spafl-eq36": lambda effort: _spafl(effort, lambda d: 2 + d, every_weight=True),
    "spafl-text": lambda effort: _spafl(effort, lambda d: 1 + 2 * d),
    "flash": lambda effort: effort.layers(lambda d, trained: 2 * d + trained),
    "flash-dense-gradient": lambda effort: effort.macs(lambda d: 2 * d + 1),
    "swat": lambda effort: effort.macs(lambda d: 3 * d),
    "pffdst": lambda effort: effort.layers(lambda d, trained: 2 * d + trained),
    "forward": lambda effort: effort.macs(lambda d: d),
}
"""Conventions by name. `passes`, the default: a training step is three forward passes, a masked
layer costs its density times the dense cost, a multiply-accumulate is two operations. `spafl`: what
SpaFL's own figures fit, d(2 + d) a layer plus updates, in multiply-accumulates; `-eq36` and `-text`
are what its equation and its text say instead. `flash`: three passes in multiply-accumulates, the
last with gradients of all weights where a method needs them, or in `-dense-gradient` always.
`swat`: density on all three passes. `pffdst`: the gradient of the weights only where they are not
frozen. `forward`: the forward pass alone."""

FlopsModel = Literal[
    "passes",
    "spafl",
    "spafl-eq36",
    "spafl-text",
    "flash",
    "flash-dense-gradient",
    "swat",
    "pffdst",
    "forward",
]


def density(layout: Layout, masks: Masks) -> float:
    """The share of prunable weights that a set of masks keeps."""
    if not masks:
        return 1.0
    total = sum(layout.leaves[name].count for name in layout.prunable)
    kept = sum(
        int(masks[name].sum()) if name in masks else layout.leaves[name].count
        for name in layout.prunable
    )
    return kept / total if total else 1.0


def densities(masks: Masks) -> dict[str, float]:
    """The share that each mask keeps."""
    return {name: float(mask.float().mean()) for name, mask in masks.items() if mask.numel()}


# time on devices ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """Devices and their connection: what a round would take on them."""

    up: float
    """Bits a second towards the server."""
    down: float
    """Bits a second from the server."""
    latency: float
    """Seconds one way."""
    flops: float
    """Operations a second of a device."""

    def seconds(self, up: int, down: int, flops: int) -> float:
        """What one client's part in a round takes."""
        return 2 * self.latency + down / self.down + flops / self.flops + up / self.up

    @classmethod
    def parse(cls, text: str) -> Network:
        """A preset, or four numbers: `up=5e6,down=20e6,latency=0.05,flops=1e9`."""
        if text in NETWORKS:
            return NETWORKS[text]
        try:
            pairs = dict(part.split("=") for part in text.split(","))
            values = {name: float(value) for name, value in pairs.items()}
            found = cls(**values)
        except (TypeError, ValueError):
            raise ValueError(
                f"--network is one of {', '.join(NETWORKS)} or e.g. "
                f"up=5e6,down=20e6,latency=0.05,flops=1e9, not {text!r}"
            ) from None
        positive = all(speed > 0 for speed in (found.up, found.down, found.flops))
        if not positive or not 0 <= found.latency < math.inf:
            raise ValueError(f"--network needs positive speeds, not {text!r}")
        return found


NETWORKS: Mapping[str, Network] = {
    "4g": Network(up=10e6, down=30e6, latency=0.05, flops=10e9),
    "wifi": Network(up=50e6, down=100e6, latency=0.01, flops=10e9),
    "iot": Network(up=0.1e6, down=0.25e6, latency=0.5, flops=0.1e9),
}
"""Round figures for a phone on a mobile network, a phone at home, and a small sensor."""
