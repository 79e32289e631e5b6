"""Which weights of a model share a gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gossamer.fields import option
from gossamer.sparsity.groups import Groups
from gossamer.task.layout import Layout


@dataclass(frozen=True)
class Grouping:
    """Which weights of a model share a gate."""

    granularity: Literal["groups", "weights"] = option(
        "groups", "a gate per filter and neuron, or per weight"
    )
    linear_axis: Literal["out", "in"] = option(
        "out", "gates of linear layers: on their outputs, or on their inputs"
    )
    gate_head: Literal["auto", "gated", "dense"] = option(
        "auto", "gates on the last linear layer; auto: unless they would remove whole classes"
    )

    def groups(self, layout: Layout) -> Groups:
        """The groups of every prunable tensor."""
        linear = [name for name, leaf in layout.leaves.items() if leaf.kind == "linear"]
        by_class = self.granularity == "groups" and self.linear_axis == "out"
        ungated = linear[-1:] if self.gate_head == "dense" else []
        if self.gate_head == "auto" and by_class:
            ungated = linear[-1:]
        names, axes, shapes, weights = [], list[int | None](), [], []
        for name in layout.prunable:
            if name in ungated:
                continue
            leaf = layout.leaves[name]
            axis: int | None = None
            if self.granularity == "groups":
                axis = 1 if leaf.kind == "linear" and self.linear_axis == "in" else 0
            names.append(name)
            axes.append(axis)
            shapes.append(leaf.shape if axis is None else (leaf.shape[axis],))
            weights.append(1 if axis is None else leaf.count // leaf.shape[axis])
        if not names:
            raise ValueError(
                "this model has no layer with gates: the last linear layer has none, and there is "
                "no other; use --gate-head gated, or see --prunable"
            )
        return Groups(tuple(names), tuple(axes), tuple(shapes), tuple(weights))
