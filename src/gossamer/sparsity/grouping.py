"""Which weights of a model share a gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from gossamer.fields import option
from gossamer.sparsity.groups import Groups
from gossamer.task.layout import Layout

Granularity = Literal["groups", "weights"]
GRANULARITY_HELP = "a gate per filter and neuron, or per weight"


class Gates(Protocol):
    """A choice of the weights that share a gate."""

    def groups(self, layout: Layout) -> Groups: ...


@dataclass(frozen=True)
class Grouping:
    """A gate per filter and neuron, but for classes; or one per weight."""

    granularity: Granularity = option("groups", GRANULARITY_HELP)

    def groups(self, layout: Layout) -> Groups:
        """The groups of every prunable tensor that has gates."""
        if self.granularity == "weights":
            return gated(layout, dict.fromkeys(layout.prunable))
        return gated(layout, {n: 0 for n in layout.prunable if n not in head(layout)})


def head(layout: Layout) -> list[str]:
    """The last linear layer, if there is one: its rows are classes."""
    return [name for name, leaf in layout.leaves.items() if leaf.kind == "linear"][-1:]


def gated(layout: Layout, axes: Mapping[str, int | None]) -> Groups:
    """The groups of tensors by the dimension whose slices have a gate; None: every weight has."""
    if not axes:
        raise ValueError(
            "this model has no layer with gates: the last linear layer has none, and there is "
            "no other; use fedsparse-variants `gate_head='gated'`, or see `prunable=`"
        )
    shapes, weights = [], []
    for name, axis in axes.items():
        leaf = layout.leaves[name]
        shapes.append(leaf.shape if axis is None else (leaf.shape[axis],))
        weights.append(1 if axis is None else leaf.count // leaf.shape[axis])
    return Groups(tuple(axes), tuple(axes.values()), tuple(shapes), tuple(weights))
