"""The tensors of a module: which of them are prunable, and what each one costs.

A layout is traced once, from two forward passes of a copy of the module. Methods read from it which
tensors have masks, accounting reads multiply-accumulates, and the engine reads which tensors are
trained and which are buffers. Parameters that require no gradient are constants of the module: they
are in no `Params`, and so are never drawn, sent, averaged or saved.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy

from gossamer.named import named, tensors_of
from gossamer.task.randomness import refuse_randomness
from gossamer.task.tracing import Products, count_products

Kind: TypeAlias = Literal[
    "conv", "linear", "lstm", "embedding", "attention", "norm", "bias", "buffer", "other"
]
"""The role of a tensor in its module; `lstm` is any recurrent matrix, also of a GRU."""

PRUNABLE: frozenset[Kind] = frozenset({"conv", "linear", "lstm"})


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of a module; as a matrix it has `rows` neurons with `fan_in` weights each."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    fan_in: int
    rows: int
    """Neurons of a linear layer, filters of a convolution, gates of a recurrent matrix."""
    macs: int
    """Multiply-accumulates of this tensor in the forward pass of one example."""
    prunable: bool
    trainable: bool
    crossed: bool = True
    """Whether gradients pass through it to a trained tensor before it, which costs a pass."""

    @property
    def count(self) -> int:
        """The number of scalars."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Input:
    """Shape and type of one example."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    named: tuple[tuple[str, Input], ...] = ()
    """The parts of inputs that are several tensors by name."""

    @staticmethod
    def of(example: Tensor) -> Input:
        """From a batch of examples."""
        parts = tensors_of(example) or {}
        named = tuple((name, Input.of(tensor)) for name, tensor in parts.items())
        return Input(tuple(example.shape[1:]), example.dtype, named)

    def blank(self, count: int) -> Tensor:
        """`count` examples of zeros, in the memory of one."""
        if self.named:
            return named({name: part.blank(count) for name, part in self.named})
        return torch.zeros((1, *self.shape), dtype=self.dtype).expand(count, *self.shape)


Prunable: TypeAlias = Sequence[str] | Callable[[Leaf], bool]
"""Which leaves may be pruned: names, glob patterns and named rules, or a predicate."""

RULES: dict[str, Callable[[Sequence[Leaf]], Sequence[Leaf]]] = {
    "conv-only": lambda leaves: [leaf for leaf in _default(leaves) if leaf.kind == "conv"],
    "skip-first-last": lambda leaves: _default(leaves)[1:-1],
    "with-attention": lambda leaves: [*_default(leaves), *_of(leaves, "attention")],
    "with-embeddings": lambda leaves: [*_default(leaves), *_of(leaves, "embedding")],
}
"""Named choices among the trained matrices: of those that are prunable by default, or with more."""


def _default(leaves: Sequence[Leaf]) -> list[Leaf]:
    return [leaf for leaf in leaves if leaf.kind in PRUNABLE]


def _of(leaves: Sequence[Leaf], kind: Kind) -> list[Leaf]:
    return [leaf for leaf in leaves if leaf.kind == kind]


@dataclass(frozen=True)
class Layout:
    """All tensors of a model's state, parameters first, in the module's order."""

    leaves: dict[str, Leaf]
    batch_norm: bool
    """Whether the module has batch normalisation, which refuses a training batch of one."""
    input: Input
    constants: dict[str, Leaf] = field(default_factory=dict)
    """Frozen parameters, which are part of the module and not of its state."""

    @classmethod
    def trace(cls, module: nn.Module, example: Tensor, prunable: Prunable | None = None) -> Layout:
        """The layout of a module, traced with a copy of it on the first examples of a batch.

        The module, its mode and the global random generators are left unchanged.

        Raises:
            ValueError: the module cannot be trained reproducibly; the message says what to change.
        """
        _check_state(module)
        if example.ndim == 0 or len(example) == 0:
            raise ValueError(
                f"tracing takes a batch of at least one example, not shape {tuple(example.shape)}; "
                f"pass x[:2] of the data"
            )
        two = (example if len(example) > 1 else example.repeat(2, *[1] * (example.ndim - 1)))[:2]
        products = count_products(_copy(module), two)
        refuse_randomness(_copy(module), two)
        leaves = {leaf.name: leaf for leaf in _leaves(module, products)}
        constants = {n: leaf for n, leaf in leaves.items() if leaf.kind != "buffer"}
        constants = {n: leaf for n, leaf in constants.items() if not leaf.trainable}
        if constants and not any(leaf.trainable for leaf in leaves.values()):
            raise ValueError(
                f"all {len(constants)} parameters of {type(module).__name__} are frozen; leave "
                f"requires_grad on for those to be trained"
            )
        state = {name: leaf for name, leaf in leaves.items() if name not in constants}
        normed = any(isinstance(part, _BatchNorm) for part in module.modules())
        layout = cls(state, normed, Input.of(example), constants)
        return layout if prunable is None else layout.choose(prunable)

    def choose(self, prunable: Prunable) -> Layout:
        """The same layout with other prunable leaves.

        A pattern such as `features.*` selects the matching trained leaves of two or more
        dimensions; a full name selects exactly that leaf, also a bias. `conv-only`,
        `skip-first-last`, `with-attention` and `with-embeddings` are named rules.
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
        if entry in self.constants:
            raise ValueError(f"{entry!r} is frozen and cannot be pruned; leave it out")
        if entry in RULES:
            known = self.leaves.values()
            matrices = [leaf for leaf in known if leaf.trainable and len(leaf.shape) > 1]
            if chosen := [leaf.name for leaf in RULES[entry](matrices)]:
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
        """All leaves: the names in a complete `Params`."""
        return tuple(self.leaves)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Leaves that are trained."""
        return tuple(name for name, leaf in self.leaves.items() if leaf.trainable)

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Leaves that are not trained, but may change: running statistics."""
        return tuple(name for name, leaf in self.leaves.items() if not leaf.trainable)

    @cached_property
    def prunable(self) -> tuple[str, ...]:
        """Leaves that may be masked."""
        return tuple(name for name, leaf in self.leaves.items() if leaf.prunable)

    @cached_property
    def dense(self) -> tuple[str, ...]:
        """Leaves that are trained but never masked."""
        return tuple(name for name in self.parameters if not self.leaves[name].prunable)

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates of one example's forward pass through the dense model."""
        return self.trained_macs + sum(leaf.macs for leaf in self.constants.values())

    @cached_property
    def trained_macs(self) -> int:
        """The same, without the layers whose weights are constants."""
        return self.total("macs")

    @cached_property
    def count(self) -> int:
        """The number of trained scalars."""
        return self.total("count", self.parameters)

    @cached_property
    def frozen(self) -> int:
        """The number of scalars in constants."""
        return sum(leaf.count for leaf in self.constants.values())

    @cached_property
    def rows(self) -> int:
        """Number of neurons and filters of the prunable leaves."""
        return self.total("rows", self.prunable)

    def total(
        self, what: Literal["count", "macs", "rows"], names: Iterable[str] | None = None
    ) -> int:
        """A figure summed over some leaves, by default over all; constants are none of them."""
        chosen = self.leaves if names is None else names
        return sum(int(getattr(self.leaves[name], what)) for name in chosen)

    def __getitem__(self, name: str) -> Leaf:
        leaf = self.leaves.get(name) or self.constants.get(name)
        if leaf is None:
            raise KeyError(
                f"no leaf {name!r}{did_you_mean(name, self.leaves)} "
                f"this model has {', '.join(self.leaves)}"
            )
        return leaf


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The hint `; did you mean 'x'?` with the nearest choice, or just `;`."""
    near = difflib.get_close_matches(name, list(choices), n=1)
    return f"; did you mean {near[0]!r}?" if near else ";"


def _entries(prunable: Sequence[str]) -> Sequence[str]:
    # A string is a sequence too, of one-letter names.
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
                f"a counter that is never sent; set a momentum such as 0.1"
            )


def _leaves(module: nn.Module, products: Products) -> Iterable[Leaf]:
    """Parameters, then the buffers of the state that are real numbers.

    Integer buffers (`num_batches_tracked`, position ids) and non-persistent buffers are constants
    of the module and are never averaged.
    """
    for name, parameter in module.named_parameters():
        kind, shape = _kind(module, name, parameter), tuple(parameter.shape)
        trainable = parameter.requires_grad
        prunable = trainable and kind in PRUNABLE and len(shape) > 1
        rows, fan_in = (shape[0], prod(shape[1:])) if len(shape) > 1 else (prod(shape), 1)
        macs, crossed = products.macs.get(name, 0), trainable or name in products.crossed
        yield Leaf(name, kind, shape, fan_in, rows, macs, prunable, trainable, crossed)
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
