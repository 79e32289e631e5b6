"""A model that the kernels can run: its steps, its memory, and its layers with weights."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gossamer.arithmetic.chain import Chain
from gossamer.arithmetic.library import Library
from gossamer.arithmetic.memory import compiled
from gossamer.arithmetic.steps import Unsupported, chain_of
from gossamer.arithmetic.structs import Kind
from gossamer.core import Key, Params
from gossamer.task.layout import Layout


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer of a plan."""

    name: str
    """Of its weight."""
    step: int
    convolution: bool
    tiled: bool
    """Computed by tiles if it is not sparse."""
    macs: int
    weights: int


class Plan:
    """A traced model in the form the kernels run; it is shared by all threads."""

    def __init__(
        self, library: Library, chain: Chain, layout: Layout, constants: Params | None = None
    ) -> None:
        self.library = library
        self.chain = chain
        self.constants = _constants(chain, constants or {})
        self.names = (*layout.parameters, *layout.buffers, *self.constants)
        """Tensors in the order of the kernels' table: first those that are trained."""
        index = {name: number for number, name in enumerate(self.names)}
        self.trained = len(layout.parameters)
        self.input = torch.Size(layout.input.shape)
        self.shapes = {name: torch.Size(layout[name].shape) for name in self.names}
        self.layers = {
            step.weight: Layer(
                step.weight,
                number,
                step.kind is Kind.CONVOLUTION,
                chain.tiled(step),
                layout[step.weight].macs,
                layout[step.weight].count,
            )
            for number, step in enumerate(chain.steps)
            if step.layer and step.weight
        }
        self.dropouts = sum(step.kind is Kind.DROPOUT for step in chain.steps)
        self.classes = chain.shapes[chain.output][0]
        self.batch_norms = tuple(
            name for step in chain.steps for name in (step.mean, step.variance) if name
        )
        self.handle = compiled(library, chain, index)
        weakref.finalize(self, library.free_plan, self.handle)

    @classmethod
    def of(
        cls,
        library: Library,
        module: nn.Module,
        layout: Layout,
        constants: Params | None = None,
    ) -> Plan:
        """The plan of a module, with the values of its frozen parameters.

        Raises:
            Unsupported: the kernels cannot run it.
        """
        return cls(library, supported(module, layout), layout, constants)

    def whole(self, params: Params) -> Params:
        """A model with its frozen parameters."""
        return {**params, **self.constants} if self.constants else params

    def lists(self, name: str, mask: Tensor, known: Lists | None = None) -> Lists:
        """The index lists of a layer's mask: those that are known, if they are."""
        if mask.shape != self.shapes[name]:
            wanted = tuple(self.shapes[name])
            raise ValueError(f"the mask of {name} has the shape {tuple(mask.shape)}, not {wanted}")
        marks = in_memory_order(mask != 0)
        if known is not None and known.fit(marks):
            return known
        return Lists(self, self.layers[name].step, marks)

    def seeds(self, key: Key) -> ctypes.Array[ctypes.c_uint64] | None:
        """Seeds of the dropouts of one training step."""
        if not self.dropouts:
            return None
        digests = (key.fold("dropout", number).digest() for number in range(self.dropouts))
        return (ctypes.c_uint64 * self.dropouts)(*(digest % 2**64 for digest in digests))


def supported(module: nn.Module, layout: Layout) -> Chain:
    """The steps of a module that the kernels can run.

    Raises:
        Unsupported: the kernels cannot run it.
    """
    chain = chain_of(module, layout)
    read = {value for step in chain.steps for value in step.reads} | {chain.output}
    if any(step.output not in read for step in chain.steps):
        raise Unsupported("it computes something that nothing reads")
    used = {step.weight for step in chain.steps} | {step.bias for step in chain.steps}
    if unused := [name for name in layout.parameters if name not in used]:
        raise Unsupported(f"{unused[0]} is not the weight or bias of a layer")
    return chain


def _constants(chain: Chain, constants: Params) -> Params:
    """The frozen parameters that a chain reads, in the order of memory."""
    read = {name for step in chain.steps for name in (step.weight, step.bias)}
    chosen = {name: tensor for name, tensor in constants.items() if name in read}
    for name, tensor in chosen.items():
        if tensor.dtype is not torch.float32:
            raise Unsupported(f"its frozen {name} is of {tensor.dtype}")
    return {name: in_memory_order(tensor.detach()) for name, tensor in chosen.items()}


class Lists:
    """Where the non-zeros of a layer are: forward and backward index lists."""

    def __init__(self, plan: Plan, step: int, marks: Tensor) -> None:
        self.library = plan.library
        self.handle: int = self.library.lists(plan.handle, step, marks.data_ptr())
        weakref.finalize(self, self.library.free_lists, self.handle)
        self.count: int = self.library.lists_count(self.handle)

    def fit(self, marks: Tensor) -> bool:
        """Whether these are the lists of a mask of the same layer, in memory order."""
        return bool(self.library.lists_fit(self.handle, marks.data_ptr(), marks.numel()))

    def pack(self, weights: Tensor) -> Tensor:
        """The weights at the non-zeros; `weights` are in memory order."""
        values = torch.empty(self.count)
        self.library.pack(self.handle, weights.data_ptr(), values.data_ptr())
        return values

    def unpack(self, values: Tensor, weights: Tensor) -> None:
        """Writes values to their places; other weights stay as they are."""
        self.library.unpack(self.handle, values.data_ptr(), weights.data_ptr())


def in_memory_order(tensor: Tensor) -> Tensor:
    """The tensor, or a copy, in the order in which the kernels read weights.

    Filters are [output][row][column][input], torch's channels-last order; everything else is
    contiguous.
    """
    if tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.contiguous()
