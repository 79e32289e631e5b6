"""The bounds of what a message costs, where its size depends on training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer.accounting.bits import Accounting, Entry, mask_bits, names_of, width
from gossamer.accounting.forecast import Learned
from gossamer.task.layout import Layout
from gossamer.wire import Mode, Schema
from gossamer.wire.format import field_of, rounded
from gossamer.wire.kinds import DrawnNode, LevelsNode, MasksNode, PackedNode, TensorNode
from gossamer.wire.masks import entropy
from gossamer.wire.numbers import levels

OVERHEAD = 8 * 32
"""Bits that an encoded mask, or the values of a tensor, take at most beside their content."""

Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class Bounds:
    """Bounds the costs of the messages of a run."""

    learned: Learned
    layout: Layout
    accounting: Accounting
    wire: Mode

    def rows(
        self, entries: Sequence[Entry], schema: Schema, charged: float = 1.0
    ) -> tuple[list[Entry], list[Entry]]:
        """The least and the most that the rows of a message may come to.

        Args:
            entries: The rows as they are while nothing is trained.
            schema: Of the message.
            charged: How many times the paper counts the message.
        """
        learned = self.learned
        names = {*learned.values, *learned.masks, *learned.moves, *learned.levels}
        unsure = [each for each in entries if _name(each) in names]
        least = [each for each in entries if _name(each) not in names]
        most = list(least)
        found = {_name(each): replace(each, leaf=field_of(each.leaf)) for each in unsure}
        for name in learned.masks:
            message, _, field = name.partition(".")
            if message == schema.name and name not in found and entries:
                found[name] = Entry(entries[0].direction, message, field, 0.0, 0.0, 0.0)
        for name, entry in found.items():
            if name in learned.levels:
                least.append(entry)
                most.append(self._levels(entry, name, schema))
                continue
            low, high = self._bounds(entry, name, schema)
            least.append(replace(low, paper=charged * low.paper))
            most.append(replace(high, paper=charged * high.paper))
        return least, most

    def _bounds(self, entry: Entry, name: str, schema: Schema) -> tuple[Entry, Entry]:
        tensors: list[TensorNode] = []
        shapes: Shapes = []
        for path, node in schema.leaves:
            if f"{schema.name}.{field_of(path)}" != name:
                continue
            match node:
                case PackedNode():
                    tensors += node.tensors
                case MasksNode() | DrawnNode():
                    shapes += node.shapes
                case TensorNode(dtype=torch.bool):
                    shapes.append(node.shape)
                case _:
                    raise ValueError(f"{name} is said to be learned, but is no mask or packed leaf")
        if tensors:
            return self._values(entry, tensors)
        return self._masks(entry, name, shapes or self._prunable)

    def _levels(self, entry: Entry, name: str, schema: Schema) -> Entry:
        """The most that a field with levels may come to; masks in it may be anything."""
        size = 0
        for path, node in schema.leaves:
            if f"{schema.name}.{field_of(path)}" != name:
                continue
            match node:
                case LevelsNode():
                    size += levels.width(node.count) * node.total
                case MasksNode():
                    size += sum(map(math.prod, node.shapes))
                case _:
                    pass
        coded = 0 if self.accounting.level_code == "width" else size
        more = (entry.sent + size, entry.information + size, entry.paper + coded)
        return replace(entry, sent=more[0], information=more[1], paper=more[2])

    def _values(self, entry: Entry, tensors: list[TensorNode]) -> tuple[Entry, Entry]:
        low, high = self.learned.least, self.learned.most
        bits = sum(each.count * self._width(each) for each in tensors)
        paper = self._charged(entry) * sum(
            each.count * 8.0 * each.dtype.itemsize for each in tensors
        )
        lengths = OVERHEAD * len(tensors)
        return (
            replace(entry, sent=low * bits, information=low * bits, paper=low * paper),
            replace(entry, sent=high * bits + lengths, information=high * bits, paper=high * paper),
        )

    def _masks(self, entry: Entry, name: str, shapes: Shapes) -> tuple[Entry, Entry]:
        """A mask may keep anything from the least to the most, and differ little from another."""
        low, high = self.learned.least, self.learned.most
        samples = [_first(shapes, share) for share in (low, min(max(0.5, low), high), high)]
        charged = self._charged(entry)
        papers = [charged * mask_bits(masks, self.accounting.mask_code) for masks in samples]
        limits = [entropy.mask_bits([mask.numpy() for mask in each.values()]) for each in samples]
        absent = name in self.learned.masks
        least = replace(entry, sent=0.0, information=0.0, paper=0.0 if absent else min(papers))
        size = sum(map(math.prod, shapes)) + OVERHEAD
        return least, replace(entry, sent=size, information=max(limits), paper=max(papers))

    def _charged(self, entry: Entry) -> bool:
        uncharged = {each.strip() for each in self.accounting.uncharged.split(",")}
        return not names_of(entry.leaf) & uncharged

    def _width(self, node: TensorNode) -> int:
        return 16 if rounded(node, self.wire) else width(node.dtype)

    @property
    def _prunable(self) -> Shapes:
        return [self.layout[name].shape for name in self.layout.prunable]


def _name(entry: Entry) -> str:
    return f"{entry.message}.{field_of(entry.leaf)}"


def _first(shapes: Shapes, density: float) -> dict[str, Tensor]:
    """Masks that keep the first weights of each tensor."""
    masks = {}
    for number, shape in enumerate(shapes):
        size = math.prod(shape)
        masks[str(number)] = (torch.arange(size) < round(density * size)).reshape(shape)
    return masks
