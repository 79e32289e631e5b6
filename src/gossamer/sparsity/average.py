"""The mean of models with different masks, accumulated one client at a time in float64."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from gossamer.arithmetic.sums import add
from gossamer.core import Masks, Params
from gossamer.merge import RULE, Reply, Rule
from gossamer.sparsity.allocation import Densities
from gossamer.sparsity.distance import as_number, distance, layer_densities

Averaging = Literal["fedavg", "wfa"]
"""`fedavg`: over all clients, a missing weight counts as zero; `wfa`: over those that have it."""

COMPARED = 32
"""Clients per round whose masks are compared, at most; the number of pairs is quadratic."""


@dataclass(frozen=True)
class Average:
    """The mean of clients' models and of their masks; empty when nobody replied."""

    params: Params
    owned: Masks
    """Where at least one client has a weight."""
    densities: Densities
    """Each layer's density, averaged over clients with equal weights."""
    mean_jaccard: float = 0.0
    """The mean Jaccard distance between the masks of two clients."""


def masked_mean(
    replies: Iterable[tuple[Params, Masks, float]],
    averaging: Averaging = "wfa",
    otherwise: Params | None = None,
) -> Average:
    """The weighted mean of masked parameters; without a mask, the plain weighted mean.

    Memory does not depend on the number of clients, unless the run has a rule in place of the mean.

    Args:
        replies: parameters, masks and weight of each client.
        averaging: over all clients, or over those that have a weight.
        otherwise: values where no client has a weight; zero by default.
    """
    rule, by_owner = RULE.get(), averaging == "wfa"
    if rule is not None:
        replies = rule.kept(list(replies), by_owner)
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
    kept = replies if rule is not None and isinstance(replies, Sequence) else ()
    return Average(
        {
            name: each.mean((otherwise or {}).get(name), _middle(rule, name, kept, by_owner))
            for name, each in sums.items()
        },
        {name: each.owned for name, each in sums.items() if each.owned is not None},
        {name: density / clients for name, density in densities.items()},
        compared.mean(),
    )


def _middle(
    rule: Rule | None, name: str, replies: Sequence[Reply], by_owner: bool
) -> Tensor | None:
    """A tensor entry by entry, if the rule of the run has no use for sums."""
    if rule is None:
        return None
    pairs = [(params[name], masks.get(name)) for params, masks, _ in replies]
    values = [x if mask is None else torch.where(mask, x, 0) for x, mask in pairs]
    owned = [mask for _, mask in pairs if mask is not None] if by_owner else []
    return rule.middle(values, owned or None)


@dataclass
class _Compared:
    """The first clients' masks, one bit per weight; an object seen before is not read again."""

    numbers: list[int] = field(default_factory=list)
    last: Masks | None = None

    def add(self, masks: Masks) -> None:
        if len(self.numbers) < COMPARED:
            self.numbers.append(self.numbers[-1] if masks is self.last else as_number(masks))
            self.last = masks

    def mean(self) -> float:
        pairs = list(combinations(self.numbers, 2))
        return sum(0.0 if a is b else distance(a, b) for a, b in pairs) / max(len(pairs), 1)


@dataclass(frozen=True)
class _Sum:
    """A running sum of one tensor and its total weight: a scalar, or one for each entry."""

    dtype: torch.dtype
    total: Tensor
    weight: Tensor
    by_owner: bool
    """Whether every entry has its own total weight."""
    owned: Tensor | None
    """None for tensors without masks."""

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
            add(self.total, tensor, share)
            self.weight.add_(share)
            return
        add(self.total, tensor, share, mask)
        self.weight.add_(mask if self.by_owner else 1, alpha=share)
        self.owned.logical_or_(mask)

    def mean(self, otherwise: Tensor | None, middle: Tensor | None = None) -> Tensor:
        mean = torch.where(self.weight > 0, self.total / self.weight, 0)
        mean = mean if middle is None else middle
        if self.owned is not None and otherwise is not None:
            mean = torch.where(self.owned, mean, otherwise.double())
        return mean.to(self.dtype)
