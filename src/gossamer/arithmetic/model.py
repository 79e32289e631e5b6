"""A model in training: parameters and momentum that are updated in place, dense or packed.

The kernels keep the weights of sparse layers packed, without their zeros, from step to step.
Whoever reads `params` gets ordinary tensors; the next step packs them again.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gossamer import optim
from gossamer.arithmetic.native import Native
from gossamer.arithmetic.plan import in_memory_order
from gossamer.arithmetic.structs import CCall, CParam
from gossamer.core import Batch, Masks, Params
from gossamer.optim import Moments

if TYPE_CHECKING:
    from gossamer.optim import Training, Velocity
    from gossamer.task import Task


class Model:
    """Parameters, momentum and masks of a model in training.

    Masked weights are zero and stay zero. Everything may be read and changed between steps.
    """

    def __init__(
        self,
        task: Task,
        params: Params,
        masks: Masks | None = None,
        moments: Moments | None = None,
    ) -> None:
        self.task = task
        self._params = params
        self._moments = moments or Moments()
        self._masks: Masks = masks or {}
        self._fixed: Masks = {}
        self._packed: _Packed | None = None
        self._native: Native | None = None
        self._chosen = False

    @property
    def params(self) -> Params:
        """All tensors of the model, which may be changed in place."""
        self._unpack()
        return self._params

    @params.setter
    def params(self, params: Params) -> None:
        self._unpack()
        self._params = params

    @property
    def velocity(self) -> Velocity:
        """The momentum of every trained parameter, in the layout's order; empty before a step."""
        return self.moments.first

    @property
    def moments(self) -> Moments:
        """What the optimiser remembers, in the layout's order; empty before a step."""
        self._unpack()
        return self._moments

    @property
    def masks(self) -> Masks:
        """Where weights may differ from zero."""
        return self._masks

    @masks.setter
    def masks(self, masks: Masks) -> None:
        self._unpack()
        self._masks = masks
        self._chosen = False

    @property
    def fixed(self) -> Masks:
        """Weights that never change, beside those that are zero."""
        return self._fixed

    @fixed.setter
    def fixed(self, fixed: Masks) -> None:
        self._unpack()
        self._fixed = fixed

    def clamp(self, most: float) -> None:
        """Bounds the magnitude of the active weights of masked layers."""
        held = self._params if self._packed is None else self._packed.values
        for name in self._masks:
            held[name].clamp_(-most, most)

    def step(
        self,
        batch: Batch,
        training: Training,
        rate: float,
        prox: float = 0.0,
        anchor: Params | None = None,
    ) -> Tensor | float:
        """One step of the optimiser on the active weights.

        The kernels take whole steps of SGD. For Adam they compute gradients, and torch steps.

        Args:
            batch: the examples.
            training: the optimiser, with weight decay and clipping.
            rate: the learning rate.
            prox: strength of a pull towards `anchor`.
            anchor: a model in the layout of the parameters.

        Returns:
            The loss before the step.
        """
        if training.optimiser != "sgd":
            self._unpack()
            return self._torch_step(batch, training, rate, prox, anchor)
        if not self._chosen:
            # Once for a job: a smaller last batch does not change the arithmetic.
            self._native = self.task.native_for(self._masks, batch)
            self._chosen = True
        if self._native is None:
            return self._torch_step(batch, training, rate, prox, anchor)
        if self._packed is None:
            self._packed = _Packed(self._native, self, batch.full or len(batch.y))
        return self._packed.step(batch, training, rate, prox, anchor)

    def _torch_step(
        self, batch: Batch, training: Training, rate: float, prox: float, anchor: Params | None
    ) -> Tensor:
        loss, grads = self.task.gradients(self._params, batch, self._masks)
        if prox and anchor:
            optim.pull(grads, self._params, anchor, prox)
        held = {}
        if self._fixed:
            # Fixed weights are not zero, so weight decay must not see them.
            if training.optimiser == "adamw":
                held = {name: self._params[name][fixed] for name, fixed in self._fixed.items()}
            elif training.weight_decay:
                weights = [self._params[name] for name in grads]
                torch._foreach_add_(list(grads.values()), weights, alpha=training.weight_decay)
                training = replace(training, weight_decay=0.0)
            for name, fixed in self._fixed.items():
                grads[name].masked_fill_(fixed, 0)
        training.update(self._params, grads, self._moments, rate)
        for name, values in held.items():
            self._params[name][self._fixed[name]] = values
        return loss

    def _unpack(self) -> None:
        if self._packed is not None:
            self._packed.write(self)
            self._packed = None


class _Packed:
    """The same model as the kernels hold it."""

    def __init__(self, native: Native, model: Model, batch: int) -> None:
        self.native = native
        plan, masks = native.plan, model._masks
        self.names = plan.names
        self.trained = plan.names[: plan.trained]
        self.lists = native.sparse_layers(masks, batch)
        whole = plan.whole(model._params)
        self.values = {name: self._pack(name, native.ordered(name, whole)) for name in self.names}
        self.grads = {name: torch.empty_like(self.values[name]) for name in self.trained}
        self.velocity = {
            name: self._pack(name, tensor)
            for name, tensor in zip(self.trained, model._moments.first, strict=False)
            if tensor is not None
        }
        self.marks = self._marks(masks, model._fixed)
        self.anchor: Params = {}
        self.anchored: Params | None = None
        """The model that `anchor` was packed from."""
        self.training: Training | None = None
        self.prox = 0.0
        self.table = (CParam * len(self.names))()
        for number, name in enumerate(self.names):
            entry = self.table[number]
            entry.values, entry.count = self.values[name].data_ptr(), self.values[name].numel()
            if name in self.grads:
                entry.grad = self.grads[name].data_ptr()
            if name in self.lists:
                entry.lists = self.lists[name].handle
            if name in self.marks:
                entry.mask = self.marks[name].data_ptr()
        self.call = CCall(params=ctypes.addressof(self.table), param_count=len(self.table))
        self.call.training = self.call.backward = self.call.update = 1
        self.call.first = not self.velocity

    def _marks(self, masks: Masks, fixed: Masks) -> dict[str, Tensor]:
        """Which values are trained, where not all of them are."""
        marks = {name: mask != 0 for name, mask in masks.items() if name not in self.lists}
        for name, each in fixed.items():
            marks[name] = marks[name] & ~each if name in marks else ~each
        return {
            name: self._pack(name, each.float()).to(torch.bool)
            for name, each in marks.items()
            if name in self.grads
        }

    def step(
        self, batch: Batch, training: Training, rate: float, prox: float, anchor: Params | None
    ) -> float:
        """Forward, backward and one step of SGD, in one call."""
        call = self.call
        if self.training is not training or self.prox != prox or self.anchored is not anchor:
            self._set(training, prox, anchor)
        self.native.set_batch(call, batch.x, batch.y)
        call.rate = rate
        seeds = self.native.plan.seeds(batch.key)
        call.seeds = None if seeds is None else ctypes.addressof(seeds)
        self.native.run(call)
        call.first = 0
        return float(call.loss)

    def write(self, model: Model) -> None:
        """Brings the tensors of the model up to date."""
        for name in self.names:
            if name in model._params:  # constants are not
                self._unpack(name, self.values[name], model._params[name])
        if self.velocity:
            if not model._moments.first:
                model._moments.first = [torch.zeros_like(model._params[n]) for n in self.trained]
            for name, tensor in zip(self.trained, model._moments.first, strict=True):
                assert tensor is not None
                self._unpack(name, self.velocity[name], tensor)
        elif not model._moments.first:
            model._moments.first = [None] * len(self.trained)

    def _set(self, training: Training, prox: float, anchor: Params | None) -> None:
        call = self.call
        call.momentum, call.weight_decay = training.momentum, training.weight_decay
        call.clip, call.prox = training.clip, prox if anchor else 0.0
        if training.momentum and not self.velocity:
            self.velocity = {name: torch.empty_like(grad) for name, grad in self.grads.items()}
            call.first = 1
        if prox and anchor:
            self.anchor = {name: self._pack(name, anchor[name]) for name in self.trained}
        for number, name in enumerate(self.trained):
            if self.velocity:
                self.table[number].velocity = self.velocity[name].data_ptr()
            if self.anchor:
                self.table[number].anchor = self.anchor[name].data_ptr()
        self.training, self.prox, self.anchored = training, prox, anchor

    def _pack(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor itself where it is as the kernels want it, otherwise a copy."""
        ordered = in_memory_order(tensor.detach())
        return self.lists[name].pack(ordered) if name in self.lists else ordered

    def _unpack(self, name: str, values: Tensor, tensor: Tensor) -> None:
        if name in self.lists:
            ordered = in_memory_order(tensor)
            self.lists[name].unpack(values, ordered)
            values = ordered
        if values.data_ptr() != tensor.data_ptr():
            tensor.copy_(values)
        else:
            increment_version(tensor)  # the kernels do not, and caches rely on it
