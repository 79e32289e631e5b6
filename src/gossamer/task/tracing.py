"""Watching a forward pass: what each parameter is multiplied with, and who draws random numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gossamer.task.randomness import run, untouched_generators

aten = torch.ops.aten


# Positions of the two factors among the arguments; everything torch.nn computes with weights ends
# in one of these, whichever module or function it was called through.
PRODUCTS = {
    aten.mm: (0, 1),
    aten.bmm: (0, 1),
    aten.mv: (0, 1),
    aten.dot: (0, 1),
    aten.addmm: (1, 2),
    aten.baddbmm: (1, 2),
    aten.addmv: (1, 2),
}


@dataclass(frozen=True)
class Products:
    """What the parameters of a module are multiplied with, for one example."""

    macs: dict[str, int]
    crossed: frozenset[str]
    """Parameters whose other factor depends on a trained one, so that gradients pass through."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts multiply-accumulates by the parameter in whose memory a factor lies.

    Going by memory also finds slices (the projections packed into one attention matrix),
    transposes, tied weights and weights that are used without their module's `forward`.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Never: marking this mode for the compiler would import all of it, a second's work."""
        return False

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        spans = sorted(
            (tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(), name)
            for name, tensor in module.named_parameters()
            if tensor.numel()
        )
        self.starts = [start for start, _, _ in spans]
        self.spans = spans
        self.macs: dict[str, int] = {}
        self.crossed: set[str] = set()

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in PRODUCTS:
            left, right = (args[index] for index in PRODUCTS[packet])
            assert isinstance(left, Tensor) and isinstance(right, Tensor)
            columns = right.shape[-1] if right.ndim > 1 else 1
            for factor, other in ((left, right), (right, left)):
                self.add(factor, left.numel() * columns, other)
        elif packet is aten.convolution:
            source, weight, transposed = args[0], args[1], args[6]
            assert isinstance(source, Tensor) and isinstance(weight, Tensor)
            image = source if transposed else result
            assert isinstance(image, Tensor)
            self.add(weight, image.numel() // image.shape[1] * weight.numel(), source)
        elif packet is aten.mkldnn_rnn_layer:
            sequence = args[0]
            assert isinstance(sequence, Tensor)
            for weight in args[1:3]:
                assert isinstance(weight, Tensor)
                self.add(weight, sequence.shape[0] * sequence.shape[1] * weight.numel(), sequence)
        return result

    def add(self, factor: Tensor, macs: int, other: Tensor) -> None:
        index = bisect_right(self.starts, factor.data_ptr()) - 1
        if index >= 0 and factor.data_ptr() < self.spans[index][1]:
            name = self.spans[index][2]
            self.macs[name] = self.macs.get(name, 0) + macs
            if other.requires_grad:
                self.crossed.add(name)


def count_products(module: nn.Module, batch: Tensor) -> Products:
    """What one example is multiplied with, by parameter; `module` is put in evaluation mode."""
    module.eval()
    # Only a frozen parameter asks which inputs depend on a trained one.
    frozen = not all(parameter.requires_grad for parameter in module.parameters())
    fast = torch.backends.mha.get_fastpath_enabled()
    # The fused encoder layer would hide its products in one call.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with untouched_generators(), torch.set_grad_enabled(frozen), _Watch(module) as watch:
            run(module, batch)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    macs = {name: macs // len(batch) for name, macs in watch.macs.items()}
    return Products(macs, frozenset(watch.crossed))
