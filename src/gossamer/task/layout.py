"""What a module is made of: its tensors, which of them may be pruned, and what each one costs.

A layout is read off a module once, by watching two forward passes of a copy. Methods take from it
which names carry masks, cost accounting takes the multiply-accumulates, and the engine takes which
tensors are trained and which are only carried along.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy

from gossamer.task.tracing import count_products, refuse_randomness

Kind: TypeAlias = Literal[
    "conv", "linear", "lstm", "embedding", "attention", "norm", "bias", "buffer", "other"
]
"""What a tensor is in its module; `lstm` stands for every recurrent matrix, also of a GRU."""

PRUNABLE: frozenset[Kind] = frozenset({"conv", "linear", "lstm"})


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of a module; seen as a matrix it has `rows` neurons of `fan_in` weights each."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    fan_in: int
    rows: int
    """Neurons of a linear layer, filters of a convolution, gates of a recurrent matrix."""
    macs: int
    """Multiply-accumulates of one example's forward pass that this tensor takes part in."""
    prunable: bool
    trainable: bool

    @property
    def count(self) -> int:
        """How many scalars it holds."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Input:
    """What one example looks like to the module."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def blank(self, count: int) -> Tensor:
        """So many examples of nothing but zeros, in the memory of one."""
        return torch.zeros((1, *self.shape), dtype=self.dtype).expand(count, *self.shape)


Prunable: TypeAlias = Sequence[str] | Callable[[Leaf], bool]
"""Which leaves may be pruned: names, glob patterns and rules, or a question asked of every leaf."""

RULES: dict[str, Callable[[Sequence[Leaf]], Sequence[Leaf]]] = {
    "conv-only": lambda leaves: [leaf for leaf in leaves if leaf.kind == "conv"],
    "skip-first-last": lambda leaves: leaves[1:-1],
}
"""Choices of what may be pruned by default that have a name."""


@dataclass(frozen=True)
class Layout:
    """Every tensor that makes up a model's state, parameters first, in the module's order."""

    leaves: dict[str, Leaf]
    batch_norm: bool
    """Whether a batch of one example may be refused in training."""
    input: Input

    @classmethod
    def trace(cls, module: nn.Module, example: Tensor, prunable: Prunable | None = None) -> Layout:
        """Read a layout off a copy of `module` run on the first examples of the batch `example`.

        The module, its mode and the global random generators stay as they are. Raises ValueError
        for a module that cannot be trained reproducibly, with what to change.
        """
        _check_state(module)
        if example.ndim == 0 or len(example) == 0:
            raise ValueError(
                f"tracing takes a batch of at least one example, not shape {tuple(example.shape)}; "
                f"pass x[:2] of the data"
            )
        two = (example if len(example) > 1 else example.repeat(2, *[1] * (example.ndim - 1)))[:2]
        macs = count_products(_copy(module), two)
        refuse_randomness(_copy(module), two)
        leaves = {leaf.name: leaf for leaf in _leaves(module, macs)}
        normed = any(isinstance(part, _BatchNorm) for part in module.modules())
        layout = cls(leaves, normed, Input(tuple(example.shape[1:]), example.dtype))
        return layout if prunable is None else layout.choose(prunable)

    def choose(self, prunable: Prunable) -> Layout:
        """The same layout with other prunable leaves.

        A pattern such as `features.*` takes the trained leaves of two or more dimensions it
        matches; a full name takes just that leaf, also a bias. `conv-only` and `skip-first-last`
        are rules.
        """
        if callable(prunable):
            chosen = {leaf.name for leaf in self.leaves.values() if prunable(leaf)}
        else:
            chosen = {name for entry in _entries(prunable) for name in self._match(entry)}
        for name in chosen:
            if not self.leaves[name].trainable:
                raise ValueError(f"{name!r} is not trained and cannot be pruned; leave it out")
        return replace(
            self,
            leaves={
                name: replace(leaf, prunable=name in chosen) for name, leaf in self.leaves.items()
            },
        )

    def _match(self, entry: str) -> list[str]:
        if entry in self.leaves:
            return [entry]
        if entry in RULES:
            default = [leaf for leaf in self.leaves.values() if leaf.prunable]
            if chosen := [leaf.name for leaf in RULES[entry](default)]:
                return chosen
            raise ValueError(f"{entry} leaves nothing of this model to prune; name tensors instead")
        matches = [
            name
            for name, leaf in self.leaves.items()
            if leaf.trainable and len(leaf.shape) > 1 and fnmatchcase(name, entry)
        ]
        if not matches:
            raise ValueError(
                f"no weight of this model is called {entry!r}{did_you_mean(entry, self.leaves)} "
                f"it may prune {', '.join(self.prunable) or 'nothing'}"
            )
        return matches

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All leaves: the names a full set of `Params` has."""
        return tuple(self.leaves)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Leaves that are trained."""
        return tuple(name for name, leaf in self.leaves.items() if leaf.trainable)

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Leaves that no gradient changes: running statistics and frozen parameters."""
        return tuple(name for name, leaf in self.leaves.items() if not leaf.trainable)

    @cached_property
    def prunable(self) -> tuple[str, ...]:
        """Leaves that may carry a mask."""
        return tuple(name for name, leaf in self.leaves.items() if leaf.prunable)

    @cached_property
    def dense(self) -> tuple[str, ...]:
        """Leaves that are trained but never masked."""
        return tuple(name for name in self.parameters if not self.leaves[name].prunable)

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates of one example's forward pass through the dense model."""
        return self.total("macs")

    @cached_property
    def count(self) -> int:
        """How many scalars are trained."""
        return self.total("count", self.parameters)

    @cached_property
    def rows(self) -> int:
        """Neurons and filters of the prunable leaves: one threshold or gate each."""
        return self.total("rows", self.prunable)

    def total(
        self, what: Literal["count", "macs", "rows"], names: Iterable[str] | None = None
    ) -> int:
        """A figure summed over the leaves called `names`, by default over all."""
        chosen = self.leaves if names is None else names
        return sum(int(getattr(self.leaves[name], what)) for name in chosen)

    def __getitem__(self, name: str) -> Leaf:
        try:
            return self.leaves[name]
        except KeyError:
            raise KeyError(
                f"no leaf {name!r}{did_you_mean(name, self.leaves)} "
                f"this model has {', '.join(self.leaves)}"
            ) from None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the choice nearest to a name that was not found, else just `;`."""
    near = difflib.get_close_matches(name, list(choices), n=1)
    return f"; did you mean {near[0]!r}?" if near else ";"


def _entries(prunable: Sequence[str]) -> Sequence[str]:
    # A string is a sequence of one-letter names; nobody means that.
    return [prunable] if isinstance(prunable, str) else prunable


def _copy(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except RuntimeError as error:
        raise ValueError(
            f"{type(module).__name__} cannot be copied ({error}); "
            f"keep tensors that are computed from parameters out of its attributes"
        ) from error


def _check_state(module: nn.Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(
                f"{name!r} has no shape yet; run one batch through the lazy module before using it"
            )
    for name, part in module.named_modules():
        if isinstance(part, _NormBase) and part.track_running_stats and part.momentum is None:
            raise ValueError(
                f"{type(part).__name__} {name!r} has momentum=None, and cumulative statistics need "
                f"a counter that never travels; set a momentum such as 0.1"
            )


def _leaves(module: nn.Module, macs: dict[str, int]) -> Iterable[Leaf]:
    """Parameters, then the buffers of the state that are real numbers.

    Integer buffers (`num_batches_tracked`, position ids) and buffers that are not saved are
    constants of the module: averaging them means nothing.
    """
    for name, parameter in module.named_parameters():
        kind, shape = _kind(module, name, parameter), tuple(parameter.shape)
        trainable = parameter.requires_grad
        prunable = trainable and kind in PRUNABLE and len(shape) > 1
        rows, fan_in = (shape[0], prod(shape[1:])) if len(shape) > 1 else (prod(shape), 1)
        yield Leaf(name, kind, shape, fan_in, rows, macs.get(name, 0), prunable, trainable)
    saved = module.state_dict(keep_vars=True)
    for name, buffer in module.named_buffers():
        if name in saved and buffer.is_floating_point():
            shape = tuple(buffer.shape)
            yield Leaf(name, "buffer", shape, 1, prod(shape), 0, False, False)


def _kind(module: nn.Module, name: str, parameter: Tensor) -> Kind:
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    above = module.get_submodule(path.rpartition(".")[0])
    if isinstance(owner, (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)):
        return "norm"
    if "bias" in last and parameter.squeeze().ndim < 2:
        return "bias"
    match owner:
        case nn.MultiheadAttention():
            return "attention"
        case nn.Linear():
            return "attention" if isinstance(above, nn.MultiheadAttention) else "linear"
        case _ConvNd() if not isinstance(owner, _ConvTransposeNd):
            return "conv"
        case nn.RNNBase() | nn.RNNCellBase():
            return "lstm"
        case nn.Embedding() | nn.EmbeddingBag():
            return "embedding"
    return "other"
