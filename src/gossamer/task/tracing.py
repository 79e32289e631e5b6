"""Watching a forward pass: what each parameter is multiplied with, and who draws random numbers."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

SEEDED = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Modules the engine replaces by ones that draw from a key of the step."""

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


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
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
            for factor in (left, right):
                self.add(factor, left.numel() * columns)
        elif packet is aten.convolution:
            source, weight, transposed = args[0], args[1], args[6]
            assert isinstance(source, Tensor) and isinstance(weight, Tensor)
            image = source if transposed else result
            assert isinstance(image, Tensor)
            self.add(weight, image.numel() // image.shape[1] * weight.numel())
        elif packet is aten.mkldnn_rnn_layer:
            sequence = args[0]
            assert isinstance(sequence, Tensor)
            for weight in args[1:3]:
                assert isinstance(weight, Tensor)
                self.add(weight, sequence.shape[0] * sequence.shape[1] * weight.numel())
        return result

    def add(self, factor: Tensor, macs: int) -> None:
        index = bisect_right(self.starts, factor.data_ptr()) - 1
        if index >= 0 and factor.data_ptr() < self.spans[index][1]:
            name = self.spans[index][2]
            self.macs[name] = self.macs.get(name, 0) + macs


def count_products(module: nn.Module, batch: Tensor) -> dict[str, int]:
    """Multiply-accumulates of one example by parameter; `module` is put in evaluation mode."""
    module.eval()
    fast = torch.backends.mha.get_fastpath_enabled()
    # The fused encoder layer would hide its products in one call.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with untouched_generators(), torch.no_grad(), Products(module) as products:
            run(module, batch)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return {name: macs // len(batch) for name, macs in products.macs.items()}


def refuse_randomness(module: nn.Module, batch: Tensor) -> None:
    """Raise ValueError if `module` draws from a global generator while training.

    Such draws depend on which client is computed when. nn.Dropout modules are exempt, because the
    engine gives them a seed of their own; they are switched off here.
    """
    culprits: list[str] = []
    before: list[tuple[object, ...]] = []

    def enter(part: nn.Module, _: object) -> None:
        before.append(draws())

    def leave(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(part: nn.Module, _: object, __: object) -> None:
            if before.pop() != draws():
                culprits.append(f"{type(part).__name__} {name!r}" if name else type(part).__name__)

        return hook

    module.train()
    for name, part in module.named_modules():
        if isinstance(part, SEEDED):
            part.eval()
        part.register_forward_pre_hook(enter)
        part.register_forward_hook(leave(name))
    with untouched_generators(), torch.no_grad():
        run(module, batch)
    if culprits:
        raise ValueError(
            f"{culprits[0]} draws its own random numbers in training, so results would depend on "
            f"scheduling; set its dropout to 0 and use nn.Dropout modules, which Gossamer seeds"
        )


def run(module: nn.Module, batch: Tensor) -> None:
    try:
        module(batch)
    except Exception as error:
        first, *_ = (str(error) or type(error).__name__).splitlines()
        raise ValueError(
            f"{type(module).__name__} does not accept inputs of shape {tuple(batch.shape[1:])} "
            f"and type {batch.dtype} ({first}); choose a model made for them"
        ) from error


def draws() -> tuple[object, ...]:
    """The state of every global generator, comparable with `==`."""
    legacy = np.random.get_state()  # noqa: NPY002
    return (torch.get_rng_state().numpy().tobytes(), random.getstate(), repr(legacy))


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Put the global generators back to where they were, whatever the body draws."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
