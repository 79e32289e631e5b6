"""A task: a plain module, a criterion, and the one interface through which methods compute.

The module never holds the parameters of a run. They are values that are bound to the module for one
call, so one module serves all clients; every worker thread has its own copy (`Task.copy`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict, Unpack, cast

import torch
from torch import Tensor, nn

from gossamer.core import Batch, Examples, Key, Masks, Params
from gossamer.named import called
from gossamer.task import first_weights
from gossamer.task.first_weights import Start
from gossamer.task.goal import CLASSIFICATION, Criterion, Goal, goal_of
from gossamer.task.layout import Layout, Leaf
from gossamer.task.runner import Runner, runner_of

if TYPE_CHECKING:
    from gossamer.arithmetic.choice import Arithmetic
    from gossamer.arithmetic.native import Native
    from gossamer.arithmetic.plan import Plan

Precision = Literal["f32", "bf16"]
Loss = Callable[[Params, Batch], Tensor]

CHUNK = 64
"""Examples that the kernels evaluate at once: as many as keep activations in the cache."""


class Gradients(NamedTuple):
    """A loss and its gradient with respect to every trainable tensor."""

    loss: Tensor
    grads: Params


class Computed(TypedDict, total=False):
    """How a task is computed."""

    precision: Precision
    device: str
    arithmetic: Arithmetic


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained: a module and a criterion, with the module's layout.

    >>> task = Task.of(nn.Linear(3, 2), torch.zeros(1, 3))
    >>> sorted(task.init(Key(0)))
    ['bias', 'weight']
    """

    module: nn.Module
    criterion: Criterion
    layout: Layout
    precision: Precision = "f32"
    device: str = "cpu"
    arithmetic: Arithmetic = "auto"
    """Whether to compute with torch or with the package's own kernels; auto: by a fixed rule."""
    start: Start = "module"
    """Where first weights come from: drawn (seed), the module's own, or the file they were in."""
    goal: Goal = CLASSIFICATION
    """What the model is judged by; `criterion` is what it is trained by."""

    def __post_init__(self) -> None:
        runner = runner_of(self.module, self.layout, self.device, self.image_format, {})
        object.__setattr__(self, "_runner", runner)

    def __repr__(self) -> str:
        loss = getattr(self.criterion, "__name__", type(self.criterion).__name__)
        count, prunable = self.layout.count, self.layout.total("count", self.layout.prunable)
        return (
            f"Task({type(self.module).__name__}, {loss}: {count:,} parameters, "
            f"{prunable:,} of them prunable, on {self.device})"
        )

    @classmethod
    def of(
        cls,
        module: nn.Module,
        example: Tensor,
        *,
        criterion: Criterion | None = None,
        prunable: Sequence[str] | Callable[[Leaf], bool] | None = None,
        start: Start = "module",
        goal: Goal | str = CLASSIFICATION,
        **computed: Unpack[Computed],
    ) -> Task:
        """A task whose layout is traced with a batch of example inputs.

        Args:
            module: a plain module; parameters that require no gradient are constants.
            example: inputs of at least one example.
            criterion: to train by, if it is not that of the goal.
            prunable: which tensors may be pruned, if not all convolutions and linear layers.
            start: first weights: `module` keeps those that the module has, `seed` draws new ones
                from the seed of a run, and a path reads a `.safetensors` file or a run's folder.
            goal: what it is trained for and judged by: a `Goal`, or the name of one.
            computed: `precision` of training and evaluation, the `device` to compute on, and
                `arithmetic`: torch, or the package's own kernels.
        """
        layout = Layout.trace(module, example, prunable)
        if start not in first_weights.KINDS:
            module = first_weights.loaded(module, start, layout)
        goal = goal_of(goal) if isinstance(goal, str) else goal
        goal = goal if criterion is None else replace(goal, criterion=criterion)
        task = cls(module, goal.trained_by(), layout, start=start, goal=goal, **computed)
        if start != "seed":  # now, since the module may be changed afterwards
            first_weights.check_finite(task._first, layout)
        return task

    def blank_labels(self, x: Tensor) -> Tensor:
        """Labels of zeros in the form that the task needs; `x` are inputs of zeros."""
        kind = self.goal.kind
        if kind == "classification":
            return torch.zeros(len(x), dtype=torch.int64)
        params = self.own(self.init(Key(0)))
        few = self.logits(params, x[:1].to(self.device)).detach().cpu()
        tokens = kind == "language"
        like = few.new_zeros(few.shape[:2], dtype=torch.int64) if tokens else torch.zeros_like(few)
        return like.expand(len(x), *like.shape[1:])

    def copy(self) -> Task:
        """The same task with its own module, for another thread; constants are shared."""
        _ = self.planned, self.fresh_buffers
        twin = copy.copy(self)
        for name in ("_native", "_factors"):  # a thread's own
            twin.__dict__.pop(name, None)
        how = (self.layout, self.device, self.image_format)
        runner = runner_of(self.module, *how, self.constants)
        object.__setattr__(twin, "_runner", runner)
        return twin

    def init(self, key: Key) -> Params:
        """The first weights: drawn from `key`, or, unless `start` is `seed`, the module's own.

        They are drawn by the initialisers of the module's layers; layers without
        `reset_parameters` keep the values of the module.
        """
        if self.start == "seed":
            return self._state(first_weights.drawn(self.module, key))
        return {name: tensor.clone() for name, tensor in self._first.items()}

    def buffers(self) -> Params:
        """The running statistics of first weights."""
        return {name: tensor.clone() for name, tensor in self.fresh_buffers.items()}

    @cached_property
    def fresh_buffers(self) -> Params:
        """The running statistics of first weights, which must not be changed."""
        if not self.layout.buffers:
            return {}
        first = self.init(Key(0))  # no running statistics are random
        return {name: first[name] for name in self.layout.buffers}

    @cached_property
    def _first(self) -> Params:
        return self._state(self.module)

    @cached_property
    def constants(self) -> Params:
        """Frozen parameters as they were when the task was made, which must not be changed."""
        held = dict(self._runner.module.named_parameters())  # type: ignore[attr-defined]
        return {name: held[name] for name in self.layout.constants}

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of first weights that are not drawn, and of constants, where there are any."""
        found = {}
        if self.start != "seed":
            found["weights"] = first_weights.fingerprint(self._first)
        if self.layout.constants:
            found["constants"] = first_weights.fingerprint(self.constants)
        return found

    def own(self, params: Params) -> Params:
        """A private copy that may be updated in place, on the device and in the fastest layout."""
        formats = self.image_format
        return {name: _fast(tensor, self.device, formats) for name, tensor in params.items()}

    def logits(self, params: Params, x: Tensor, key: Key | None = None) -> Tensor:
        """The module's output; a key selects training mode and seeds dropout."""
        if key is None and (native := self._native_to_evaluate(params, x)):
            return native.outputs(params, x)
        return self._forward(self._bound(params, key), x)

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """The criterion on a batch, in training mode."""
        return self.criterion(self.logits(params, batch.x, batch.key), batch.y)

    def test_loss(self, params: Params, batch: Batch) -> Tensor:
        """The criterion on a batch, in evaluation mode and without gradients."""
        with torch.no_grad():
            return self.criterion(self.logits(params, batch.x), batch.y)

    def share(self, params: Params, examples: Examples) -> tuple[float, float]:
        """Accuracy or another figure of at most 1, and that of guessing; see `Goal.share`."""
        with torch.inference_mode():
            outputs = self.logits(params, examples.x.to(self.device)).cpu()
            return self.goal.share(outputs, examples.y.cpu())

    def gradients(
        self,
        params: Params,
        batch: Batch,
        masks: Masks | None = None,
        loss: Loss | None = None,
        everywhere: bool = False,
    ) -> Gradients:
        """Loss and gradients at `params`, which are zero outside of `masks`.

        Running statistics in `params` are updated in place.

        Args:
            masks: where weights may differ from zero; gradients elsewhere are zero.
            loss: replaces the criterion; it is called with leaves that require gradients.
            everywhere: whether gradients of masked weights are wanted all the same.
        """
        native = self.native_for(masks or {}, batch) if loss is None else None
        if native is not None:
            value, grads = native.gradients(params, batch, masks or {}, everywhere)
            return Gradients(torch.tensor(value), grads)
        return self._autograd(params, batch, {} if everywhere or not masks else masks, loss)

    def _autograd(self, params: Params, batch: Batch, masks: Masks, loss: Loss | None) -> Gradients:
        leaves = {name: params[name].detach().requires_grad_() for name in self.layout.parameters}
        with torch.enable_grad():
            value = (loss or self.loss)({**params, **leaves}, batch)
            raw = torch.autograd.grad(
                value, list(leaves.values()), allow_unused=True, materialize_grads=True
            )
        grads = {
            name: _laid_out_like(grad, leaf)
            for (name, leaf), grad in zip(leaves.items(), raw, strict=True)
        }
        names = [name for name in grads if name in masks]
        if names:
            factors = [self._factor(name, masks[name], grads[name]) for name in names]
            torch._foreach_mul_([grads[name] for name in names], factors)
        return Gradients(value.detach(), grads)

    def _factor(self, name: str, mask: Tensor, like: Tensor) -> Tensor:
        """A mask as numbers in the layout of its tensor; that of the last mask is kept."""
        held = self._factors.get(name)
        if held is None or held[0] is not mask or held[1] != mask._version:
            factor = torch.empty_like(like).copy_(mask)
            self._factors[name] = held = (mask, mask._version, factor)
        return held[2]

    @cached_property
    def _factors(self) -> dict[str, tuple[Tensor, int, Tensor]]:
        return {}

    # the kernels -------------------------------------------------------------------------------

    @cached_property
    def planned(self) -> Plan | str:
        """The model as the kernels run it, or why they cannot; traced once, shared by copies."""
        from gossamer.arithmetic.planning import plan_or_reason

        return plan_or_reason(self)

    @cached_property
    def _native(self) -> Native | None:
        from gossamer.arithmetic.native import Native

        return None if isinstance(self.planned, str) else Native(self.planned)

    def native_for(self, masks: Masks, batch: Batch) -> Native | None:
        """The kernels, if they are to compute gradients of a model with these masks."""
        native = self._native
        fits = batch.x.dtype is torch.float32 and batch.y.dtype is torch.int64 and len(batch.y) > 0
        if native is None or not fits:
            return None
        size = batch.full or len(batch.y)
        return native if native.chosen(masks, size, self.arithmetic) else None

    def _native_to_evaluate(self, params: Params, x: Tensor) -> Native | None:
        native = self._native
        if native is None or x.dtype is not torch.float32 or not len(x):
            return None
        params = native.plan.whole(params)
        if any(name not in params for name in native.plan.names):
            return None
        weights = {name: params[name] for name in native.plan.layers}
        if any(weight.requires_grad for weight in weights.values()):
            return None
        return native if native.chosen(weights, CHUNK, self.arithmetic) else None

    @cached_property
    def running_statistics(self) -> tuple[str, ...]:
        """Names of the means and variances of batch normalisation."""
        runner = cast(Runner, self._runner)  # type: ignore[attr-defined]
        return tuple(dict.fromkeys(runner.running_statistics()))

    def batch_statistics(self, params: Params, x: Tensor) -> Params:
        """The batch's own statistics: means and unbiased variances of every batch norm.

        Only batch normalisation is in training mode; dropout is off.
        """
        statistics = {name: torch.zeros_like(params[name]) for name in self.running_statistics}
        runner = self._bound({**params, **statistics}, None)
        with torch.no_grad(), runner.normalising_by_batch():
            self._forward(runner, x)
        return statistics

    def _forward(self, runner: Runner, x: Tensor) -> Tensor:
        if self.image_format is torch.contiguous_format:
            x = x.contiguous()
        if self.precision == "f32":
            return called(runner.module, x).float()
        with torch.autocast(self.device, torch.bfloat16):
            return called(runner.module, x).float()

    @cached_property
    def image_format(self) -> torch.memory_format:
        """Memory format of images and filters: channels last, where that is safe.

        torch 2.13 writes out of bounds in strided 1 x 1 convolutions of 2 to 6 channels in
        channels-last format, so a model that has one is contiguous.
        """
        risky = any(
            leaf.kind == "conv" and leaf.shape[2:] == (1, 1) and 1 < leaf.shape[1] < 7
            for leaf in (*self.layout.leaves.values(), *self.layout.constants.values())
        )
        return torch.contiguous_format if risky else torch.channels_last

    def _bound(self, params: Params, key: Key | None) -> Runner:
        runner = cast(Runner, self._runner)  # type: ignore[attr-defined]
        runner.bind(params, key)
        return runner

    def _state(self, module: nn.Module) -> Params:
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        return {name: tensors[name].detach().clone().contiguous() for name in self.layout.leaves}


def _fast(tensor: Tensor, device: str, images: torch.memory_format) -> Tensor:
    layout = images if tensor.dim() == 4 else torch.contiguous_format
    return tensor.detach().to(device, copy=True, memory_format=layout)


def _laid_out_like(grad: Tensor, leaf: Tensor) -> Tensor:
    """The gradient in the strides of its tensor: fused optimisers pair elements by address."""
    if grad.stride() == leaf.stride():
        return grad
    return torch.empty_like(leaf).copy_(grad)
