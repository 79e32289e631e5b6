"""A module as a function of its tensors, which are bound to it before each call."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.core import Key, Params
from gossamer.task.dropout import SeededDropout, seed_dropouts
from gossamer.task.layout import Layout


def runner_of(
    module: nn.Module, layout: Layout, device: str, images: torch.memory_format, constants: Params
) -> Runner:
    """A runner of a copy of the module, with dropouts that draw from keys.

    Args:
        module: it stays as it is.
        layout: of the module.
        device: to compute on.
        images: memory format of filters.
        constants: frozen parameters to use in place of copies of the module's; threads share them.
    """
    held = dict(module.named_parameters())
    shared: dict[int, Any] = {id(held[name]): tensor for name, tensor in constants.items()}
    own = copy.deepcopy(module, shared).to(device)
    for name, tensor in own.named_parameters():
        if name in layout.constants and tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=images)
    dropouts = seed_dropouts(own)
    return Runner(own, dropouts, slots(own, layout))


class Runner:
    """A module whose tensors are bound before each call."""

    def __init__(
        self,
        module: nn.Module,
        dropouts: list[SeededDropout],
        slots: list[tuple[dict[str, Any], str, str]],
    ) -> None:
        self.module = module
        self._dropouts = dropouts
        self._slots = slots
        self._norms = [
            part
            for part in module.modules()
            if isinstance(part, _BatchNorm) and part.track_running_stats
        ]

    def bind(self, params: Params, key: Key | None) -> None:
        try:
            for store, leaf, name in self._slots:
                store[leaf] = params[name]
        except KeyError as missing:
            raise ValueError(
                f"the module needs a tensor {missing}, but the parameters hold only "
                f"{sorted(params)}; a method's model must return all of them"
            ) from None
        if self.module.training != (key is not None):
            self.module.train(key is not None)
        if key is not None:
            for index, dropout in enumerate(self._dropouts):
                dropout.reset(key.fold("dropout", index))

    def running_statistics(self) -> Iterator[str]:
        stores = {id(norm._buffers) for norm in self._norms}
        for store, leaf, name in self._slots:
            if id(store) in stores and leaf in ("running_mean", "running_var"):
                yield name

    @contextmanager
    def normalising_by_batch(self) -> Iterator[None]:
        """Normalises by batch statistics, and averages these over the calls in the context."""
        before = [norm.momentum for norm in self._norms]
        for norm in self._norms:
            # Without momentum, torch divides by this counter, which is not part of the model.
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.zero_()
            norm.momentum = None
            norm.train()
        try:
            yield
        finally:
            for norm, momentum in zip(self._norms, before, strict=True):
                norm.momentum = momentum
                norm.eval()


def slots(module: nn.Module, layout: Layout) -> list[tuple[dict[str, Any], str, str]]:
    """Every place where a tensor of the layout is stored; tied tensors have several."""
    canonical: dict[int, str] = {}
    slots = []
    for prefix, part in module.named_modules():
        for store in (part._parameters, part._buffers):
            for leaf, tensor in store.items():
                if tensor is None:
                    continue
                name = canonical.setdefault(id(tensor), f"{prefix}.{leaf}" if prefix else leaf)
                if name in layout.leaves:
                    slots.append((store, leaf, name))
    return slots
