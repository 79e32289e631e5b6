"""Inputs of several tensors by name, such as token ids and an attention mask.

They stand wherever one tensor of inputs does, and are cut, chosen and moved as one. The module is
called with them as keywords.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor


class Named:
    """Tensors with one row for each example, which behave as one tensor of rows."""

    __slots__ = ("tensors",)
    dtype = None
    """No type in common: code for inputs of one type leaves them alone."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        sizes = {name: len(tensor) for name, tensor in tensors.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"inputs have rows of their own for every example, not {sizes}")
        self.tensors = dict(tensors)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Named:
        return Named({name: change(tensor) for name, tensor in self.tensors.items()})

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, rows: Any) -> Named:
        return self._each(lambda tensor: tensor[rows])

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of examples; what one of them looks like is in `tensors`."""
        return (len(self),)

    @property
    def ndim(self) -> int:
        return 1

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def dim(self) -> int:
        return 1

    def to(self, device: str) -> Named:
        return self._each(lambda tensor: tensor.to(device))

    def clone(self) -> Named:
        return self._each(Tensor.clone)

    def contiguous(self) -> Named:
        return self._each(Tensor.contiguous)

    def index_select(self, dim: int, rows: Tensor) -> Named:
        return self._each(lambda tensor: tensor.index_select(dim, rows))

    def split_with_sizes(self, sizes: Sequence[int]) -> list[Named]:
        parts = {name: tensor.split_with_sizes(sizes) for name, tensor in self.tensors.items()}
        return [
            Named(dict(zip(parts, each, strict=True))) for each in zip(*parts.values(), strict=True)
        ]

    def repeat(self, times: int) -> Named:
        return self._each(lambda tensor: torch.cat([tensor] * times))


def named(tensors: Mapping[str, Tensor]) -> Tensor:
    """Several tensors of inputs, for code that is written for one."""
    return cast(Tensor, Named(tensors))


def tensors_of(x: Tensor | Named) -> dict[str, Tensor] | None:
    """The tensors of inputs that have names, else None."""
    return x.tensors if isinstance(x, Named) else None


def called(module: Callable[..., Any], x: Tensor | Named) -> Tensor:
    """What a module computes: a tensor, or the `logits` of a Hugging Face output."""
    out = module(**x.tensors) if isinstance(x, Named) else module(x)
    return cast(Tensor, out if isinstance(out, Tensor) else getattr(out, "logits", out))
