"""Notes the calls of functions and layers while a module computes, as nodes of a graph."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

Calls = list[tuple[fx.Node, Any]]
"""Every node of a graph, with its value for an example."""
_READ = (
    *("dim", "ndimension", "numel", "__len__", "__repr__", "stride", "is_contiguous"),
    *("is_floating_point", "is_complex", "element_size", "get_device"),
)
"""Methods that say nothing about the values of a tensor, nor how many units it has."""


class Unclear(Exception):
    """Raised by a part that cannot be recorded."""


class Recorder(TorchFunctionMode):
    """Notes functions and layers of one part as nodes of a graph."""

    def __init__(self, leaf: Mapping[nn.Module, str]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.leaf = leaf
        self.inside = 0
        self.nodes: dict[int, fx.Node] = {}
        self.calls: Calls = []
        self.times: Counter[nn.Module] = Counter()

    def note(self, op: str, target: Any, args: Any, kwargs: Any, value: Any) -> fx.Node:
        """A node with its value; tensors among the arguments are the nodes that made them."""
        args, kwargs = _nodes(args, self.node), _nodes(dict(kwargs), self.node)
        node = self.graph.create_node(op, target, tuple(args), kwargs)
        self.calls.append((node, value))  # keeps the value, so that its id stays its own
        if isinstance(value, Tensor | Shape):
            self.nodes[id(value)] = node
            return node
        for place, each in enumerate(value if isinstance(value, tuple | list) else ()):
            if isinstance(each, Tensor):
                part = self.graph.call_function(operator.getitem, (node, place))
                self.calls.append((part, each))
                self.nodes[id(each)] = part
        return node

    def node(self, value: object) -> fx.Node:
        """The node of a tensor; one that was not computed here is an input."""
        if id(value) not in self.nodes:
            node = self.graph.placeholder(f"input{len(self.calls)}")
            self.calls.append((node, value))
            self.nodes[id(value)] = node
        return self.nodes[id(value)]

    def before(self, part: nn.Module, args: Any, kwargs: Any) -> None:
        self.times[part] += 1
        self.inside += part in self.leaf

    def after(self, part: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        if part in self.leaf:
            self.inside -= 1
            if not self.inside:
                self.note("call_module", self.leaf[part], args, kwargs, out)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.inside or name in _READ:
            return func(*args, **kwargs)
        value = func(*args, **kwargs)
        if isinstance(value, torch.Size):
            return self._shape(args[0], value)
        if name == "size" or tensors_in((value,)):
            self.note("call_function", func, args, kwargs, value)
        elif name != "__get__":  # a Python value to branch by, or an assignment to some elements
            raise Unclear
        return value

    def _shape(self, source: Tensor, value: torch.Size) -> Shape:
        shape = Shape(value)
        shape.recorder = self
        self.note("call_function", getattr, (source, "shape"), {}, shape)
        return shape


class Shape(tuple[int, ...]):
    """A shape that notes which of its numbers are read."""

    recorder: Recorder

    def __getitem__(self, index: Any) -> Any:
        value = tuple.__getitem__(self, index)
        self.recorder.note("call_function", operator.getitem, (self, index), {}, None)
        return value

    def __iter__(self) -> Iterator[int]:
        return (self[place] for place in range(len(self)))

    def numel(self) -> int:
        return int(torch.Size(tuple.__iter__(self)).numel())


def tensors_in(value: Any) -> list[Tensor]:
    match value:
        case Tensor():
            return [value]
        case Shape():
            return []
        case Mapping():
            return tensors_in(list(value.values()))
        case tuple() | list():
            return [tensor for each in value for tensor in tensors_in(each)]
    return []


def _nodes(value: Any, node: Callable[[object], fx.Node]) -> Any:
    """Arguments with nodes for tensors; what a graph cannot hold is left out."""
    match value:
        case Tensor() | Shape():
            return node(value)
        case tuple() | list():
            inner = [_nodes(each, node) for each in value]
            return tuple(inner) if isinstance(value, tuple) else inner
        case Mapping():
            return {str(name): _nodes(each, node) for name, each in value.items()}
        case bool() | int() | float() | str() | None | slice() | torch.dtype():
            return value
    return None
