"""Stored models run by the kernels: one example at a time, or batches."""

from __future__ import annotations

import ctypes
import weakref
from math import prod

import numpy as np

from gossamer.arithmetic import choice
from gossamer.arithmetic.library import Library
from gossamer.arithmetic.memory import c_steps, compiled
from gossamer.arithmetic.structs import CCall, CParam, CStep, CStored, CValue, Kind
from gossamer.deploy.stored import Floats, Stored

CHUNK = 64
"""Examples of one call, if they are of a usual size."""
MOST = 2**26
"""Numbers that the activations of a call may have."""


def _sparse(stored: Stored, batch: int) -> set[str]:
    """The weights whose layers are computed at their non-zeros only."""
    return {
        step.weight
        for step in stored.chain.steps
        if step.layer
        and step.weight is not None
        and stored.tensors[step.weight].density
        <= choice.bound(step.kind is Kind.CONVOLUTION, batch)
    }


class Singles:
    """One example after the other: lanes are pixels."""

    def __init__(self, library: Library, stored: Stored) -> None:
        self.library, self.classes = library, stored.classes
        chain = stored.chain
        index = {name: number for number, name in enumerate(stored.tensors)}
        steps = c_steps(chain, index)
        values = [CValue(*shape) for shape in chain.shapes]
        sparse = _sparse(stored, 1)
        params = (CStored * len(index))()
        for name, number in index.items():
            tensor = stored.tensors[name]
            params[number].values = tensor.values.ctypes.data
            params[number].bits = None if tensor.bits is None else tensor.bits.ctypes.data
            params[number].sparse = name in sparse
        self.handle: int = library.single(
            (CStep * len(steps))(*steps),
            len(steps),
            (CValue * len(values))(*values),
            len(values),
            chain.input,
            chain.output,
            params,
        )
        weakref.finalize(self, library.free_single, self.handle)
        self._free: list[_Memory] = []

    def __call__(self, x: Floats) -> Floats:
        out = np.empty((len(x), self.classes), np.float32)
        # Every thread takes memory of its own.
        memory = self._free.pop() if self._free else _Memory(self.library, self.handle)
        self.library.run_single(self.handle, memory.handle, x.ctypes.data, len(x), out.ctypes.data)
        self._free.append(memory)
        return out


class _Memory:
    def __init__(self, library: Library, single: int) -> None:
        self.handle: int = library.single_memory(single)
        weakref.finalize(self, library.free_single_memory, self.handle)


class Batches:
    """Chunks of examples: lanes are examples."""

    def __init__(self, library: Library, stored: Stored) -> None:
        self.library, self.classes, self.vector = library, stored.classes, stored.vector
        chain = stored.chain
        index = {name: number for number, name in enumerate(stored.tensors)}
        self.handle = compiled(library, chain, index, gradients=False)
        weakref.finalize(self, library.free_plan, self.handle)
        numbers = {step.weight: number for number, step in enumerate(chain.steps) if step.layer}
        self.table = (CParam * len(index))()
        self.held: list[Floats] = []
        for name in _sparse(stored, CHUNK):
            marks = stored.tensors[name].marks
            lists: int = library.lists(self.handle, numbers[name], marks.ctypes.data)
            weakref.finalize(self, library.free_lists, lists)
            self.table[index[name]].lists = lists
        for name, number in index.items():
            entry, tensor = self.table[number], stored.tensors[name]
            values = tensor.values if entry.lists else tensor.full()
            entry.values, entry.count = values.ctypes.data, values.size
            self.held.append(values)
        numbers_each = sum(prod(shape) for shape in chain.shapes)
        self.chunk = max(1, min(CHUNK, MOST // numbers_each))
        self._free: list[_Workspace] = []

    def __call__(self, x: Floats) -> Floats:
        out = np.empty((len(x), self.classes), np.float32)
        memory = self._free.pop() if self._free else _Workspace(self.library)
        for start in range(0, len(x), self.chunk):
            part = x[start : start + self.chunk]
            call = CCall(params=ctypes.addressof(self.table), param_count=len(self.table))
            call.x, call.batch = part.ctypes.data, len(part)
            strides = [stride // part.itemsize for stride in part.strides]
            call.stride_n, call.stride_c = strides[:2]
            if not self.vector:
                call.stride_y, call.stride_x = strides[2:]
            call.outputs = out[start:].ctypes.data
            self.library.run(self.handle, memory.handle, call, None)
        self._free.append(memory)
        return out


class _Workspace:
    def __init__(self, library: Library) -> None:
        self.handle: int = library.workspace()
        weakref.finalize(self, library.free_workspace, self.handle)
