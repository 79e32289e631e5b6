"""From a module to the steps that the kernels know, by tracing it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from gossamer.arithmetic.chain import Chain, Step, Window
from gossamer.arithmetic.structs import Kind
from gossamer.submodels.graph import watch
from gossamer.task.layout import Layout


class Unsupported(Exception):
    """The kernels cannot run this model; the message is a sentence that says why."""


def chain_of(module: nn.Module, layout: Layout) -> Chain:
    """The steps of a module.

    Raises:
        Unsupported: it does something that the kernels cannot.
    """
    if layout.input.named:
        raise Unsupported("it takes several tensors by name")
    if layout.input.dtype != torch.float32 or len(layout.input.shape) not in (1, 3):
        raise Unsupported(f"inputs of shape {layout.input.shape} and type {layout.input.dtype}")
    try:
        calls = watch(module, layout.input.blank(2), lambda part: _rule(part) is not None)
    except ValueError as error:
        raise Unsupported(str(error)) from error
    builder = _Builder(module, layout)
    for node, value in calls:
        builder.add(node, value)
    return fused(builder.finished())


class _Builder:
    """Adds one step for each traced call."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self.parts = dict(module.named_modules())
        self.layout = layout
        self.values: dict[fx.Node, int] = {}
        self.chain = Chain(0, 0, [])
        self.constants: dict[fx.Node, object] = {}
        """Numbers that the model computes from shapes."""
        self.vectors: set[int] = set()
        """Values without rows and columns; an image of one pixel has both, and zeros beside it."""
        self.used: set[str] = set()
        self.ended = False

    def add(self, node: fx.Node, value: object) -> None:
        """Adds a call that returned `value` for two examples."""
        if node.op.startswith("call_") and not isinstance(value, Tensor):
            self.constants[node] = value
            return
        match node.op:
            case "placeholder" if not self.values:
                self.values[node] = self.new(value)
            case "placeholder":
                pass  # an argument with a default
            case "output":
                self.chain.output = self.source(node.args[0])
                self.ended = True
            case "call_module":
                part = self.parts[str(node.target)]
                (_rule(part) or _unknown)(self, node, value, part)
            case _:
                FUNCTIONS.get(node.target, _unknown)(self, node, value, None)

    def finished(self) -> Chain:
        output, classes = self.chain.output, self.chain.shapes[self.chain.output][0]
        if not self.ended or not self.chain.steps or output not in self.vectors or classes < 2:
            raise Unsupported("its output is not one vector of logits for each example")
        return self.chain

    def new(self, value: object) -> int:
        if not isinstance(value, Tensor) or value.dim() not in (2, 4):
            raise Unsupported("it passes on something that is neither an image nor a vector")
        shape = tuple(value.shape[1:])
        index = len(self.chain.shapes)
        self.chain.shapes.append(shape if len(shape) == 3 else (shape[0], 1, 1))
        if len(shape) == 1:
            self.vectors.add(index)
        return index

    def source(self, argument: object) -> int:
        if not isinstance(argument, fx.Node) or argument not in self.values:
            raise Unsupported(f"{argument} is no tensor that depends on the input")
        return self.values[argument]

    def known(self, arguments: Any) -> Any:
        """Arguments of a call, with numbers in the place of what the model computes from shapes."""
        match arguments:
            case tuple() | list():
                return tuple(self.known(each) for each in arguments)
            case fx.Node():
                return self.constants.get(arguments, arguments)
        return arguments

    def alias(self, node: fx.Node) -> None:
        self.values[node] = self.source(node.args[0])

    def emit(self, node: fx.Node, value: object, kind: Kind, **more: Any) -> None:
        input = self.source(node.args[0])
        self.values[node] = output = self.new(value)
        self.chain.steps.append(Step(kind, input, output, **more))

    def names(self, node: fx.Node, part: nn.Module, *leaves: str) -> dict[str, str | None]:
        """The names of a module's tensors, None where it has none."""
        if str(node.target) in self.used:
            raise Unsupported(f"layer {node.target} is used twice")
        self.used.add(str(node.target))
        names: dict[str, str | None] = {}
        for leaf in leaves:
            name = f"{node.target}.{leaf}"
            if getattr(part, leaf) is None:
                names[leaf] = None
            elif name in self.layout.leaves or name in self.layout.constants:
                names[leaf] = name
            else:
                raise Unsupported(f"{name} is shared with another layer")
        return names


# modules -----------------------------------------------------------------------------------------


def _unknown(builder: _Builder, node: fx.Node, value: object, part: nn.Module | None) -> None:
    target = getattr(node.target, "__name__", node.target)
    raise Unsupported(f"it uses {target if part is None else type(part).__name__}")


def _rule(part: nn.Module) -> Rule | None:
    """What a module becomes; a subclass may compute anything, except that it still flattens."""
    return MODULES.get(nn.Flatten if isinstance(part, nn.Flatten) else type(part))


def _same(builder: _Builder, node: fx.Node, value: object, part: nn.Module | None) -> None:
    builder.alias(node)


def _convolution(builder: _Builder, node: fx.Node, value: object, part: Any) -> None:
    if part.groups != 1 or _pair(part.dilation) != (1, 1) or part.padding_mode != "zeros":
        raise Unsupported(f"convolution {node.target} has groups, dilation or unusual padding")
    if isinstance(part.padding, str):
        raise Unsupported(f"convolution {node.target} has padding={part.padding!r}")
    window = Window(*_pair(part.kernel_size), *_pair(part.stride), *_pair(part.padding))
    if window.pad_y >= window.height or window.pad_x >= window.width:
        raise Unsupported(f"convolution {node.target} is padded by more than its kernel")
    names = builder.names(node, part, "weight", "bias")
    builder.emit(node, value, Kind.CONVOLUTION, window=window, **names)


def _linear(builder: _Builder, node: fx.Node, value: object, part: Any) -> None:
    builder.emit(node, value, Kind.LINEAR, **builder.names(node, part, "weight", "bias"))


def _batch_norm(builder: _Builder, node: fx.Node, value: object, part: Any) -> None:
    if part.momentum is None:
        raise Unsupported(f"batch norm {node.target} averages its statistics cumulatively")
    names = builder.names(node, part, "weight", "bias", "running_mean", "running_var")
    mean, variance = names.pop("running_mean"), names.pop("running_var")
    settings = {"epsilon": part.eps, "momentum": part.momentum}
    builder.emit(node, value, Kind.BATCH_NORM, mean=mean, variance=variance, **names, **settings)


def _group_norm(builder: _Builder, node: fx.Node, value: object, part: Any) -> None:
    names = builder.names(node, part, "weight", "bias")
    builder.emit(node, value, Kind.GROUP_NORM, groups=part.num_groups, epsilon=part.eps, **names)


def _relu(builder: _Builder, node: fx.Node, value: object, part: nn.Module | None) -> None:
    builder.emit(node, value, Kind.RELU)


def _max_pool(builder: _Builder, node: fx.Node, value: object, part: Any) -> None:
    size = _pair(part.kernel_size)
    plain = _pair(part.dilation) == (1, 1) and not part.ceil_mode and not part.return_indices
    if not plain or size[0] * size[1] > 255:
        raise Unsupported(f"pooling {node.target} has dilation, ceil_mode or a huge window")
    window = Window(*size, *_pair(part.stride), *_pair(part.padding))
    builder.emit(node, value, Kind.MAX_POOL, window=window)


def _average_pool(builder: _Builder, node: fx.Node, value: object, part: Any) -> None:
    if part.ceil_mode or _pair(part.padding) != (0, 0) or part.divisor_override:
        raise Unsupported(f"pooling {node.target} has padding, ceil_mode or a divisor")
    window = Window(*_pair(part.kernel_size), *_pair(part.stride))
    builder.emit(node, value, Kind.AVERAGE_POOL, window=window)


def _adaptive_pool(builder: _Builder, node: fx.Node, value: object, part: Any) -> None:
    _, height, width = builder.chain.shapes[builder.source(node.args[0])]
    assert isinstance(value, Tensor)
    rows, columns = value.shape[2:]
    if height % rows or width % columns:
        raise Unsupported(f"pooling {node.target} has windows of different sizes")
    size = (height // rows, width // columns)
    builder.emit(node, value, Kind.AVERAGE_POOL, window=Window(*size, *size))


def _flatten(builder: _Builder, node: fx.Node, value: object, part: Any) -> None:
    assert isinstance(value, Tensor)
    source = builder.source(node.args[0])
    channels, height, width = builder.chain.shapes[source]
    if tuple(value.shape) != (2, channels * height * width):
        raise Unsupported("it flattens something other than whole examples")
    if source in builder.vectors:
        builder.alias(node)
    else:
        builder.emit(node, value, Kind.FLATTEN)


def _dropout(builder: _Builder, node: fx.Node, value: object, part: Any) -> None:
    if part.p == 0:
        return builder.alias(node)
    whole = not isinstance(part, nn.Dropout)
    return builder.emit(node, value, Kind.DROPOUT, rate=part.p, whole_channels=whole)


def _softmax(builder: _Builder, node: fx.Node, value: object, part: Any) -> None:
    if part.dim != 1 or not isinstance(value, Tensor) or value.dim() != 2:
        raise Unsupported("it has a softmax over something other than classes")
    builder.emit(node, value, Kind.SOFTMAX)


def _add(builder: _Builder, node: fx.Node, value: object, part: nn.Module | None) -> None:
    first, second = (builder.source(argument) for argument in node.args)
    if builder.chain.shapes[first] != builder.chain.shapes[second]:
        raise Unsupported("it adds tensors of different shapes")
    builder.emit(node, value, Kind.ADD, other=second)


def _slice(builder: _Builder, node: fx.Node, value: object, part: nn.Module | None) -> None:
    """Every stride-th pixel, as in a shortcut without parameters."""
    every = slice(None)
    match node.args[1]:
        case (first, channels, slice() as rows, columns) if first == channels == every:
            if rows == columns == slice(None, None, rows.step) and isinstance(rows.step, int):
                window = Window(1, 1, rows.step, rows.step)
                return builder.emit(node, value, Kind.SUBSAMPLE, window=window)
    raise Unsupported("it indexes a tensor")


def _pad(builder: _Builder, node: fx.Node, value: object, part: nn.Module | None) -> None:
    """Zero channels behind the others, as in a shortcut without parameters."""
    zeros = node.kwargs.get("mode", "constant") == "constant" and not node.kwargs.get("value")
    match builder.known(node.args[1:]):
        case ((0, 0, 0, 0, 0, int(more)),) if more >= 0 and zeros:
            return builder.emit(node, value, Kind.SUBSAMPLE)
    raise Unsupported("it pads a tensor")


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


Rule = Callable[[_Builder, fx.Node, object, Any], None]

MODULES: dict[type[nn.Module], Rule] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.ReLU: _relu,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _average_pool,
    nn.AdaptiveAvgPool2d: _adaptive_pool,
    nn.Flatten: _flatten,
    nn.Identity: _same,
    nn.Dropout: _dropout,
    nn.Dropout2d: _dropout,
    nn.Softmax: _softmax,
}

FUNCTIONS: dict[Any, Rule] = {
    operator.add: _add,
    operator.iadd: _add,
    torch.add: _add,
    torch.relu: _relu,
    functional.relu: _relu,
    "relu": _relu,
    torch.flatten: _flatten,
    "flatten": _flatten,
    "view": _flatten,
    "reshape": _flatten,
    operator.getitem: _slice,
    functional.pad: _pad,
}


# fusion ------------------------------------------------------------------------------------------

_WITH_RELU = {
    Kind.CONVOLUTION,
    Kind.LINEAR,
    Kind.BATCH_NORM,
    Kind.GROUP_NORM,
    Kind.MAX_POOL,
    Kind.AVERAGE_POOL,
    Kind.ADD,
}


def fused(chain: Chain) -> Chain:
    """The same chain with every ReLU made a part of the step before or of the pooling behind it.

    The largest of several numbers is the same before and after ReLU; pooling first is less work.
    """
    makers = {step.output: step for step in chain.steps}
    for step in list(chain.steps):
        if step.kind is not Kind.RELU or step.output == chain.output:
            continue
        maker, behind = makers.get(step.input), chain.consumers(step.output)
        alone = len(chain.consumers(step.input)) == 1
        if len(behind) == 1 and behind[0].kind is Kind.MAX_POOL and alone:
            behind[0].input, behind[0].relu = step.input, True
        elif maker is not None and maker.kind in _WITH_RELU and not maker.relu and alone:
            maker.output, maker.relu = step.output, True
            makers[step.output] = maker
        else:
            continue
        chain.steps.remove(step)
    return chain
