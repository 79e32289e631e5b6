"""Units in a forward pass: which ones a tensor has, what a call does, and the resulting wiring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import fx, nn

Units = NDArray[np.int64]


@dataclass(frozen=True)
class Flow:
    """A tensor with units: the unit of each position along `axis`."""

    units: Units
    axis: int


@dataclass(frozen=True)
class Sizes:
    """The shape of a tensor with units, as read by the forward pass."""

    flow: Flow
    rank: int


Traced = Flow | Sizes | None


class Stuck(Exception):
    """Raised for a call through which units cannot be traced; its text is the reason."""


@dataclass(frozen=True)
class Call:
    """One call in the forward pass, as the tracing rules see it."""

    node: fx.Node
    label: str
    path: str
    part: nn.Module | None
    value: Any
    """Its result for an example."""
    samples: dict[fx.Node, Any]
    flows: dict[fx.Node, Traced]

    def sample(self, argument: object) -> Any:
        """The value of an argument for an example."""
        return self.samples[argument] if isinstance(argument, fx.Node) else argument

    @property
    def source(self) -> Any:
        """The value of the first argument for an example."""
        return self.sample(self.node.args[0])

    def traced(self, argument: object) -> Traced:
        """The units of an argument, if it has any."""
        return self.flows.get(argument) if isinstance(argument, fx.Node) else None

    @property
    def flow(self) -> Flow:
        """The units of the first argument, which must be a tensor with units."""
        flow = self.traced(self.node.args[0]) if self.node.args else None
        if not isinstance(flow, Flow):
            raise Stuck(f"they feed {self.label}, which cannot be cut")
        return flow

    def option(self, place: int, name: str, default: Any) -> Any:
        """An argument by position or by name."""
        if len(self.node.args) > place:
            return self.node.args[place]
        return self.node.kwargs.get(name, default)


@dataclass(frozen=True)
class Wiring:
    """The unit of every row and column of every tensor."""

    rows: dict[str, Units]
    columns: dict[str, Units]
    widths: dict[str, Units]
    """Output units of modules without tensors that declare a number of channels, by path."""
    norms: dict[str, int]
    """Number of groups of each group norm, by path."""
    layers: tuple[str, ...]
    """Weights whose rows are units."""
    removable: NDArray[np.bool_]
    fixed: dict[str, str]
    """Why the units of a layer cannot be removed, by the name of its weight."""
