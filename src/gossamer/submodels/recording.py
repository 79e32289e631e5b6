"""Parts of a model, recorded while they compute: for forward passes that torch.fx cannot trace.

A model of Hugging Face prepares its masks by code that looks at numbers, and its layers are plain
functions of tensors. So each part is run by itself, on what it is called with in the whole model,
and its calls of functions and layers are noted. A part that turns a tensor into a Python number may
compute something else for other inputs: it is not recorded, but its own parts may be.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from gossamer.named import called
from gossamer.submodels.recorder import Calls, Recorder, Unclear, tensors_in
from gossamer.task.randomness import untouched_generators

Whole = Callable[[nn.Module], bool]


def record_parts(module: nn.Module, example: Tensor, whole: Whole) -> Calls:
    """The calls of all parts that can be recorded; layers that `whole` knows are single calls."""
    tensors = [*module.parameters(), *module.buffers()]
    shared = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors}).eval()
    leaf = _leaves(shared, whole)
    calls: Calls = []
    with torch.no_grad(), untouched_generators():
        seen = _Inputs(shared, leaf)
        with _hooked(shared, seen.before, seen.after), seen:
            called(shared, example)
        waiting = [path for path, _ in shared.named_children()]
        while waiting:
            path = waiting.pop(0)
            try:
                calls += _record(shared, path, seen, leaf)
            except Unclear:
                part = shared.get_submodule(path)
                waiting = [f"{path}.{name}" for name, _ in part.named_children()] + waiting
        return [*_direct(shared, seen.direct), *calls] if calls else []


def _leaves(module: nn.Module, whole: Whole) -> dict[nn.Module, str]:
    """Layers that are single calls, with their paths."""
    return {
        part: path
        for path, part in module.named_modules()
        if path
        and (whole(part) or type(part).__module__.startswith("torch.nn"))
        and not isinstance(part, nn.Sequential | nn.ModuleList | nn.ModuleDict)
    }


class _Inputs(TorchFunctionMode):
    """Watches the whole model: what its parts are called with, and who reads their tensors."""

    def __init__(self, module: nn.Module, leaf: Mapping[nn.Module, str]) -> None:
        super().__init__()
        self.names = {id(tensor): name for name, tensor in module.named_parameters()}
        self.leaf = leaf
        self.inside = 0
        self.given: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.times: Counter[nn.Module] = Counter()
        self.direct: set[str] = set()

    def before(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.times[part] += 1
        self.given.setdefault(part, (args, kwargs))
        self.inside += part in self.leaf

    def after(self, part: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        self.inside -= part in self.leaf

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.inside and "__get__" not in getattr(func, "__name__", ""):
            found = tensors_in((args, kwargs or {}))
            self.direct |= {self.names[id(each)] for each in found if id(each) in self.names}
        return func(*args, **(kwargs or {}))


def _record(module: nn.Module, path: str, seen: _Inputs, leaf: Mapping[nn.Module, str]) -> Calls:
    """The calls of one part, which is called once in the whole model.

    Raises:
        Unclear: it is a layer, or not called once, or its code looks at numbers.
    """
    part = module.get_submodule(path)
    if part in leaf or seen.times[part] != 1:
        raise Unclear
    recorder = Recorder(leaf)
    args, kwargs = seen.given[part]
    with _hooked(part, recorder.before, recorder.after), recorder:
        out = part(*args, **kwargs)
    if any(seen.times[each] != times for each, times in recorder.times.items()):
        raise Unclear
    ends = [each for each in tensors_in((out,)) if id(each) in recorder.nodes]
    recorder.note("output", "output", (ends,), {}, None)
    return recorder.calls


def _direct(module: nn.Module, names: set[str]) -> Calls:
    """Parameters that are read by code outside of layers."""
    graph, tensors = fx.Graph(), dict(module.named_parameters())
    return [(graph.create_node("get_attr", name), tensors[name]) for name in sorted(names)]


@contextmanager
def _hooked(module: nn.Module, before: Any, after: Any) -> Iterator[None]:
    parts = list(module.modules())
    hooks = [part.register_forward_pre_hook(before, with_kwargs=True) for part in parts]
    hooks += [part.register_forward_hook(after, with_kwargs=True) for part in parts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
