"""The kernels at work: gradients, outputs and whole training steps of a planned model.

Every thread has its own `Native`, because a call uses memory that is kept from call to call.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gossamer.arithmetic import choice, turns
from gossamer.arithmetic.indices import true_count
from gossamer.arithmetic.plan import Lists, Plan, in_memory_order
from gossamer.arithmetic.structs import CCall, CParam
from gossamer.core import Batch, Masks, Params
from gossamer.task.task import CHUNK


@dataclass(frozen=True)
class InputCut:
    """Which inputs of a layer the gradient of its weights reads."""

    least: Tensor
    """The smallest magnitude, one float32; if it is negative, it is found and written here."""
    share: Fraction
    """The part of the inputs that is as large."""


class Native:
    """One thread's memory and index lists for a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.library = plan.library
        self.workspace: int = self.library.workspace()
        weakref.finalize(self, self.library.free_workspace, self.workspace)
        self._lists: dict[str, tuple[Tensor, float, Lists]] = {}

    @property
    def bytes(self) -> int:
        """Memory for activations, their gradients and partial sums."""
        return int(self.library.workspace_bytes(self.workspace))

    # index lists -------------------------------------------------------------------------------

    def lists(self, name: str, mask: Tensor) -> Lists:
        """The index lists of a mask; those of the last mask are kept."""
        held = self._lists.get(name)
        if held is None or held[0] is not mask or held[1] != version(mask):
            # Clients of a round often have equal masks, each a copy of its own.
            lists = self.plan.lists(name, mask, held[2] if held else None)
            held = self._lists[name] = (mask, version(mask), lists)
        return held[2]

    def chosen(self, masks: Mapping[str, Tensor], batch: int, wanted: choice.Arithmetic) -> bool:
        """Whether the kernels compute a model with these masks; see `choice`."""
        if wanted != "auto":
            return wanted == "native"
        return choice.native(self.plan, self.densities(masks), batch)

    def densities(self, masks: Mapping[str, Tensor]) -> dict[str, float]:
        """The density of every layer that has a mask, or weights with zeros."""
        named = ((name, masks[name]) for name in self.plan.layers if name in masks)
        return {name: true_count(mask) / max(mask.numel(), 1) for name, mask in named}

    def sparse_layers(self, masks: Mapping[str, Tensor], batch: int) -> dict[str, Lists]:
        """The lists of the layers that are computed at their non-zeros only."""
        return {
            name: self.lists(name, masks[name])
            for name, density in self.densities(masks).items()
            if choice.sparse(self.plan.layers[name], density, batch)
        }

    # calls -------------------------------------------------------------------------------------

    def gradients(
        self,
        params: Params,
        batch: Batch,
        masks: Masks,
        everywhere: bool,
        cuts: Mapping[str, InputCut] | None = None,
    ) -> tuple[float, Params]:
        """The loss, and gradients in the memory order of their parameters.

        Args:
            params: zero outside of the masks; running statistics are updated in place.
            batch: a batch of at least one example.
            masks: where weights may differ from zero, by name.
            everywhere: whether gradients of masked weights are wanted too; otherwise they are zero.
            cuts: layers whose gradients read their largest inputs only, which needs `everywhere`.
        """
        lists = self.sparse_layers(masks, batch.full or len(batch.y))
        params = self.plan.whole(params)
        held: list[Tensor] = []
        table = (CParam * len(self.plan.names))()
        grads: Params = {}
        packed: dict[str, Tensor] = {}
        for number, name in enumerate(self.plan.names):
            tensor = self.ordered(name, params)
            if name in self.plan.batch_norms and tensor.data_ptr() != params[name].data_ptr():
                raise ValueError(f"the running statistics {name} must be contiguous")
            held.append(tensor)
            entry, trained = table[number], number < self.plan.trained
            entry.count = tensor.numel()
            if trained:
                grads[name] = torch.empty_like(tensor)
                entry.grad = grads[name].data_ptr()
            if name in lists:
                values = lists[name].pack(tensor)
                held.append(values)
                entry.lists, entry.everywhere = lists[name].handle, everywhere
                entry.count, entry.values = lists[name].count, values.data_ptr()
                if not everywhere:
                    packed[name] = torch.empty_like(values)
                    entry.grad = packed[name].data_ptr()
            else:
                entry.values = tensor.data_ptr()
            if cuts and name in cuts:
                entry.input_cut, share = cuts[name].least.data_ptr(), cuts[name].share
                entry.share_numerator, entry.share_denominator = share.numerator, share.denominator
        call = self._call(table, batch.x, batch.y)
        call.training = call.backward = 1
        held_seeds = self.plan.seeds(batch.key)
        call.seeds = ctypes.addressof(held_seeds) if held_seeds is not None else None
        self.run(call)
        for name, values in packed.items():
            lists[name].unpack(values, grads[name].zero_())
        if not everywhere:
            for name, mask in masks.items():
                if name in grads and name not in packed:
                    grads[name].mul_(mask)
        for name in self.plan.batch_norms:
            increment_version(params[name])
        for name, grad in grads.items():
            if grad.stride() != params[name].stride():  # optimisers pair elements by address
                grads[name] = torch.empty_like(params[name]).copy_(grad)
        return call.loss, grads

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """The outputs in evaluation mode; zeros of weights are left out of the computation."""
        params = self.plan.whole(params)
        weights = {name: params[name] for name in self.plan.layers}
        lists = self.sparse_layers(weights, CHUNK)
        table = (CParam * len(self.plan.names))()
        held = []
        for number, name in enumerate(self.plan.names):
            tensor = self.ordered(name, params)
            values = lists[name].pack(tensor) if name in lists else tensor
            table[number].values, table[number].count = values.data_ptr(), values.numel()
            if name in lists:
                table[number].lists = lists[name].handle
            held.append(values)
        out = torch.empty(len(x), self.plan.classes)
        for start in range(0, len(x), CHUNK):
            call = self._call(table, x[start : start + CHUNK], None)
            call.outputs = out[start:].data_ptr()
            self.run(call)
        return out

    def _call(self, table: ctypes.Array[CParam], x: Tensor, y: Tensor | None) -> CCall:
        call = CCall(params=ctypes.addressof(table), param_count=len(table))
        self.set_batch(call, x, y)
        return call

    def set_batch(self, call: CCall, x: Tensor, y: Tensor | None) -> None:
        """Points a call to a batch, whose tensors must outlive it.

        Raises:
            ValueError: the batch is empty, or not of the shape that the model was traced with.
        """
        shape = x.shape
        batch = shape[0]  # len() of a tensor takes longer
        if not batch:
            raise ValueError("a batch has no examples; batches need at least one")
        if shape[1:] != self.plan.input:
            wanted, found = tuple(self.plan.input), tuple(shape[1:])
            raise ValueError(f"the model takes examples of shape {wanted}, not {found}")
        call.x, call.batch = x.data_ptr(), batch
        if len(shape) == 4:
            call.stride_n, call.stride_c, call.stride_y, call.stride_x = x.stride()
        else:
            call.stride_n, call.stride_c = x.stride()
        if y is not None:
            if y.shape != shape[:1] or not y.is_contiguous():
                raise ValueError(f"{batch} examples have labels of shape {tuple(y.shape)}")
            call.labels = y.data_ptr()

    def ordered(self, name: str, params: Params) -> Tensor:
        """A parameter in memory order; a copy only if it is not so already.

        Raises:
            ValueError: it has another shape or type than the model's.
        """
        tensor = params[name]
        if tensor.shape != self.plan.shapes[name] or tensor.dtype is not torch.float32:
            wanted = f"{tuple(self.plan.shapes[name])} of float32"
            raise ValueError(
                f"{name} has the shape {tuple(tensor.shape)} of {tensor.dtype}, not {wanted}"
            )
        return in_memory_order(tensor.detach())

    def run(self, call: CCall) -> None:
        """Executes a call.

        Raises:
            IndexError: a label is not a class of the model.
        """
        if self.library.run(self.plan.handle, self.workspace, call, turns.mine()):
            raise IndexError(f"a label is not one of the model's {self.plan.classes} classes")


def version(tensor: Tensor) -> float:
    """A number that changes when the tensor does; equal to nothing where torch does not count."""
    return math.nan if tensor.is_inference() else tensor._version
