"""The calls of a module in order: the graph through which units are traced.

Built with torch.fx. A submodule whose code cannot be traced is one opaque call. Where that module
is the model itself, its parts are recorded one by one, as they are called with an example.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from gossamer.named import tensors_of
from gossamer.submodels.recorder import Calls
from gossamer.submodels.recording import record_parts
from gossamer.task.randomness import untouched_generators

_tracing = threading.Lock()


class _Tracer(fx.Tracer):
    """Traces one module in one thread, whatever other threads compute meanwhile.

    While tracing, torch.fx replaces `nn.Module.__call__` for the whole process.
    """

    def __init__(self, whole: Callable[[nn.Module], bool], opaque: Iterable[str]) -> None:
        super().__init__(autowrap_modules=())  # type: ignore[arg-type]
        self.whole = whole
        self.opaque = set(opaque)
        self.thread = threading.get_ident()
        self.inside = [""]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self.opaque or self.whole(m):
            return True
        return super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        self.inside.append(self.path_of_module(m))
        result = super().call_module(m, forward, args, kwargs)
        self.inside.pop()  # not after an error: the last entry is where it happened
        return result

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def watch_parts(
    module: nn.Module, example: Tensor, whole: Callable[[nn.Module], bool]
) -> list[Calls]:
    """The calls of a forward pass, or of those parts of it that can be followed.

    Returns:
        One list of calls, or two if the forward pass has a part that cannot be traced into: that
        of the whole, where the part is a single call, and that of all parts one by one.

    Raises:
        ValueError: no part can be followed.
    """
    try:
        calls = watch(module, example, whole)
    except ValueError:
        found = record_parts(module, example, whole)
        if not found:
            raise
        return [found]
    if any(_opaque(module, node, whole) for node, _ in calls):
        return [each for each in (calls, record_parts(module, example, whole)) if each]
    return [calls]


def _opaque(module: nn.Module, node: fx.Node, whole: Callable[[nn.Module], bool]) -> bool:
    """Whether a node is the call of a module with parts that its graph does not have."""
    if node.op != "call_module":
        return False
    part = module.get_submodule(str(node.target))
    return not whole(part) and next(part.children(), None) is not None


def watch(module: nn.Module, example: Tensor, whole: Callable[[nn.Module], bool]) -> Calls:
    """The calls of a forward pass; submodules for which `whole` holds are single calls.

    Raises:
        ValueError: the module's own forward cannot be traced.
    """
    tensors = [*module.parameters(), *module.buffers()]
    # A copy that shares its tensors, which are only read here.
    shared = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    graph = _graph(shared.train(), whole, tensors_of(example) or ())
    shared.eval()
    with torch.no_grad(), untouched_generators():
        return _run(shared, graph, example)


def _graph(
    module: nn.Module, whole: Callable[[nn.Module], bool], names: Collection[str]
) -> fx.Graph:
    """The graph of a module; arguments other than its inputs have their defaults."""
    opaque: set[str] = set()
    parameters = inspect.signature(module.forward).parameters
    others = [each for each in parameters.values() if each.name not in (names or [*parameters][:1])]
    fixed = {each.name: each.default for each in others if each.default is not each.empty}
    while True:
        tracer = _Tracer(whole, opaque)
        try:
            with _tracing:
                return tracer.trace(module, fixed or None)
        except Exception as error:
            path = tracer.inside[-1]
            if not path or path in opaque:
                reason, *_ = (str(error) or type(error).__name__).splitlines()
                raise ValueError(
                    f"the forward pass of {type(module).__name__} cannot be traced ({reason}), so "
                    f"no unit of it can be removed; keep its forward free of branches on tensors, "
                    f"or move them into modules of their own"
                ) from error
            opaque.add(path)


def _run(module: nn.Module, graph: fx.Graph, example: Tensor) -> Calls:
    values: dict[fx.Node, Any] = {}
    calls: Calls = []
    given = tensors_of(example)
    for node in graph.nodes:
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        match node.op:
            case "placeholder" if given is not None and node.target in given:
                value = given[node.target]
            case "placeholder":
                value = example if given is None and not calls else next(iter(node.args), None)
            case "get_attr":
                value = _attribute(module, node.target)
            case "call_module":
                value = module.get_submodule(node.target)(*args, **kwargs)
            case "call_method":
                value = getattr(args[0], node.target)(*args[1:], **kwargs)
            case "output":
                value = args[0]
            case _:
                value = node.target(*args, **kwargs)
        values[node] = value
        calls.append((node, value))
    return calls


def _attribute(module: nn.Module, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return value
