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
    loud: bool = False
    """Whether units that output zeros are not zero here, as scores of attention are not."""


@dataclass(frozen=True)
class Sizes:
    """The shape of a tensor with units, as read by the forward pass."""

    flow: Flow
    rank: int


@dataclass(frozen=True)
class Attended:
    """What attention returns: its output, and weights that depend on the units of its heads."""

    flow: Flow
    heads: Units


Traced = Flow | Sizes | Attended | None


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
        return self.silent(self.carried)

    @property
    def carried(self) -> Flow:
        """The same, for calls that work on every unit by itself, whatever its values are."""
        flow = self.traced(self.first)
        if not isinstance(flow, Flow):
            raise Stuck(f"they feed {self.label}, which cannot be cut")
        return flow

    @property
    def first(self) -> object:
        """The first argument, also if it is given by name."""
        args = (*self.node.args, *self.node.kwargs.values())
        return args[0] if args else None

    def silent(self, flow: Flow) -> Flow:
        """Units that are zero where they were removed."""
        if flow.loud:
            raise Stuck(f"they are not zero where they reach {self.label}")
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
    tables: dict[str, Units]
    """Embeddings, whose columns are units."""
    quiet: dict[str, NDArray[np.bool_]]
    """Rows that go with units and never make them other than zero: queries and keys of heads."""
    widths: dict[str, Units]
    """Output units of modules without tensors that declare a number of channels, by path."""
    norms: dict[str, int]
    """Number of groups of each group norm, by path."""
    layers: tuple[str, ...]
    """Weights whose rows, or columns of embeddings, are units."""
    removable: NDArray[np.bool_]
    fixed: dict[str, str]
    """Why the units of a layer cannot be removed, by the name of its weight."""

    def outputs(self, name: str) -> Units:
        """The unit of each output of a layer."""
        return self.rows[name] if name in self.rows else self.tables[name]

    def distinct(self, name: str) -> Units:
        """The units of a layer, each of them once: a head has several outputs."""
        outputs = self.outputs(name)
        return outputs[np.sort(np.unique(outputs, return_index=True)[1])]

    def writing(self, name: str) -> Units:
        """The units of a layer that its weights make other than zero."""
        outputs = self.outputs(name)
        return outputs[~self.quiet[name]] if name in self.quiet else outputs
