"""Averaging what clients with masks of their own send, one at a time and in float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import Masks, Params
from gossamer.sparsity.allocation import Densities
from gossamer.sparsity.distance import as_number, distance, layer_densities

Averaging = Literal["fedavg", "wfa"]
"""Over all clients, those without a weight counting zero; or over those that have it."""

COMPARED = 32
"""Clients of a round whose masks are compared, at most: pairs grow as the square of them."""


@dataclass(frozen=True)
class Average:
    """The mean of clients' models, and where it comes from; empty when nobody sent anything."""

    params: Params
    owned: Masks
    """Where at least one client has a weight."""
    densities: Densities
    """The mean over clients of each layer's density, every client counting the same."""
    mean_jaccard: float = 0.0
    """How far clients' masks are from one another: the mean Jaccard distance of two of them."""


def masked_mean(
    replies: Iterable[tuple[Params, Masks, float]],
    averaging: Averaging = "wfa",
    otherwise: Params | None = None,
) -> Average:
    """The weighted mean of masked parameters; of those without a mask, the plain weighted mean.

    Where no client has a weight it is zero, or as in `otherwise`. Memory does not depend on how
    many clients there are.
    """
    sums: dict[str, _Sum] = {}
    densities: Densities = {}
    clients, compared = 0, _Compared()
    for params, masks, share in replies:
        clients += 1
        for name, tensor in params.items():
            if name not in sums:
                sums[name] = _Sum.like(tensor, name in masks, averaging)
            sums[name].add(name, tensor, masks.get(name), share)
        for name, density in layer_densities(masks).items():
            densities[name] = densities.get(name, Fraction(0)) + density
        compared.add(masks)
    return Average(
        {name: each.mean((otherwise or {}).get(name)) for name, each in sums.items()},
        {name: each.owned for name, each in sums.items() if each.owned is not None},
        {name: density / clients for name, density in densities.items()},
        compared.mean(),
    )


@dataclass
class _Compared:
    """The first clients' masks, a bit for each weight; the same object is not read again."""

    numbers: list[int] = field(default_factory=list)
    last: Masks | None = None

    def add(self, masks: Masks) -> None:
        if len(self.numbers) < COMPARED:
            self.numbers.append(self.numbers[-1] if masks is self.last else as_number(masks))
            self.last = masks

    def mean(self) -> float:
        pairs = list(combinations(self.numbers, 2))
        if all(number is self.numbers[0] for number in self.numbers):
            return 0.0
        return sum(0.0 if a is b else distance(a, b) for a, b in pairs) / len(pairs)


@dataclass(frozen=True)
class _Sum:
    """A running sum of one tensor, and the weight it has: one number, or one for each entry."""

    dtype: torch.dtype
    total: Tensor
    weight: Tensor
    by_owner: bool
    """Whether each entry has a weight of its own."""
    owned: Tensor | None
    """Absent where tensors come without masks."""

    @classmethod
    def like(cls, tensor: Tensor, masked: bool, averaging: Averaging) -> _Sum:
        total = torch.zeros(tensor.shape, dtype=torch.float64, device=tensor.device)
        by_owner = masked and averaging == "wfa"
        weight = total.clone() if by_owner else total.new_zeros(())
        owned = torch.zeros_like(total, dtype=torch.bool) if masked else None
        return cls(tensor.dtype, total, weight, by_owner, owned)

    def add(self, name: str, tensor: Tensor, mask: Tensor | None, share: float) -> None:
        wanted = tuple(self.total.shape)
        shapes = (tuple(tensor.shape), None if mask is None else tuple(mask.shape))
        if shapes != (wanted, None if self.owned is None else wanted):
            raise ValueError(
                f"{name} and its mask came with the shapes {shapes[0]} and {shapes[1]}, but "
                f"{wanted} and {None if self.owned is None else wanted} from others; "
                f"clients must agree on what is masked"
            )
        if mask is None or self.owned is None:
            self.total.add_(tensor, alpha=share)
            self.weight.add_(share)
            return
        self.total.add_(torch.where(mask, tensor, 0), alpha=share)
        self.weight.add_(mask if self.by_owner else 1, alpha=share)
        self.owned.logical_or_(mask)

    def mean(self, otherwise: Tensor | None) -> Tensor:
        found = torch.where(self.weight > 0, self.total / self.weight, 0)
        if self.owned is not None and otherwise is not None:
            found = torch.where(self.owned, found, otherwise.double())
        return found.to(self.dtype)
