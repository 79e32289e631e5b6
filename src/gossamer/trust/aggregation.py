"""Robust means: what stands in for the mean of replies if some clients may be hostile.

Replies count alike, whatever their weights, in the median, the trimmed mean and Krum's choice. Each
entry is judged among the clients that own it, where masks are averaged over their owners.

Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning: towards optimal statistical
rates. ICML 2018 (median, trimmed mean). https://arxiv.org/abs/1803.01498
Blanchard, El Mhamdi, Guerraoui, Stainer: Machine learning with adversaries: Byzantine tolerant
gradient descent. NeurIPS 2017 (Krum). https://arxiv.org/abs/1703.02757
Karimireddy, He, Jaggi: Learning from history for Byzantine robust optimization. ICML 2021 (centred
clipping). https://arxiv.org/abs/2012.10333
Pillutla, Kakade, Harchaoui: Robust aggregation for federated learning. IEEE Transactions on Signal
Processing 2022 (geometric median). https://arxiv.org/abs/1912.13445
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low

import torch
from torch import Tensor

from gossamer import fields
from gossamer.core import AnyMethod, Params
from gossamer.merge import Reply, Rule

FORMS = "mean, median, trimmed:0.2, clipped:1, krum:2 or geometric-median"
STEPS = 16
"""Of Weiszfeld's algorithm; each brings replies at least as close to their middle."""
NEAREST = 1e-6
"""The distance from the middle below which a reply counts no more, in median distances."""


def parse(text: str) -> Rule | None:
    """The rule that a text such as `trimmed:0.2` names; None for the mean.

    Raises:
        ValueError: There is no such rule, or its number is out of bounds.
    """
    word, colon, number = text.partition(":")
    match word:
        case "mean" | "median" | "geometric-median" if colon:
            raise ValueError(f"`aggregate=` {word} takes no number, but {text!r} has one")
        case "mean":
            return None
        case "median":
            return Median()
        case "geometric-median":
            return GeometricMedian()
        case "trimmed":
            share = _number(text, number)
            if not 0 <= share < 0.5:
                raise ValueError(f"`aggregate='trimmed'` takes a share in [0, 0.5), not {number}")
            return Trimmed(share)
        case "clipped":
            radius = _number(text, number)
            if not radius > 0:
                raise ValueError(f"`aggregate='clipped'` takes a radius above 0, not {number}")
            return Clipped(radius)
        case "krum":
            if not number.isdecimal():
                raise ValueError(f"`aggregate='krum'` takes a number of clients, not {number!r}")
            return Krum(int(number))
    raise ValueError(f"`aggregate=` is {FORMS}, not {text!r}")


def check(text: str, method: AnyMethod, name: str) -> None:
    """Raises ValueError if a method cannot be run with a rule."""
    rule = parse(text)
    own = getattr(method, "own_merge", "")
    if rule is not None and own:
        raise ValueError(
            f"`aggregate=` {text} replaces a mean, but {name} {own}; use `aggregate='mean'`, or a "
            "method that averages replies, such as fedavg, spafl, spdst or fedpm"
        )
    clients = fields.value(method, "clients")
    if isinstance(rule, Krum) and isinstance(clients, int) and clients < 2 * rule.faulty + 3:
        raise ValueError(
            f"`aggregate=` {text} needs at least {2 * rule.faulty + 3} clients per round, not "
            f"{clients}; use more `clients=`, or a smaller number after krum:"
        )


def _number(text: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise ValueError(f"`aggregate=` is {FORMS}, not {text!r}") from None


# entry by entry ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Median:
    """The median of each entry; of an even number, midway between the middle two."""

    def kept(self, replies: Sequence[Reply], by_owner: bool) -> Sequence[Reply]:
        return replies

    def middle(self, values: Sequence[Tensor], owned: Sequence[Tensor] | None) -> Tensor:
        return _between(values, owned, lambda count: (count - 1) // 2)


@dataclass(frozen=True)
class Trimmed:
    """The mean of each entry without the smallest and the largest `share` of its values."""

    share: float

    def kept(self, replies: Sequence[Reply], by_owner: bool) -> Sequence[Reply]:
        return replies

    def middle(self, values: Sequence[Tensor], owned: Sequence[Tensor] | None) -> Tensor:
        return _between(values, owned, lambda count: (self.share * count + 1e-9).floor().long())


def _between(
    values: Sequence[Tensor], owned: Sequence[Tensor] | None, cut: Callable[[Tensor], Tensor]
) -> Tensor:
    """The mean of each entry over its owners, without `cut` values at either end; zero if none."""
    stack = torch.stack([value.double() for value in values])
    count = torch.full(stack.shape[1:], len(stack))
    if owned is not None:
        own = torch.stack(list(owned))
        stack.masked_fill_(~own, torch.inf)  # sorted behind all owners
        count = own.sum(0)
    rank = torch.arange(len(stack)).view(-1, *(1,) * (stack.dim() - 1))
    low = cut(count).clamp_(min=0)
    inside = (rank >= low) & (rank < count - low)
    total = stack.sort(dim=0).values.where(inside, 0).sum(0)
    return total / inside.sum(0).clamp_(min=1)


# whole replies -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Krum:
    """Multi-Krum: of n replies, the mean of the n - `faulty` that lie closest to others."""

    faulty: int

    def kept(self, replies: Sequence[Reply], by_owner: bool) -> Sequence[Reply]:
        count = len(replies)
        if count < 3:
            return replies
        distances = torch.zeros(count, count, dtype=torch.float64)
        for name in _floating(replies):
            rows = torch.stack([_masked(reply, name).flatten() for reply in replies])
            distances += torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        # Of its own row, the first is the distance of a reply from itself.
        nearest = distances.sort(dim=1).values[:, 1 : max(count - self.faulty - 2, 1) + 1]
        order = nearest.sum(1).argsort(stable=True).tolist()
        return [replies[place] for place in sorted(order[: max(count - self.faulty, 1)])]

    def middle(self, values: Sequence[Tensor], owned: Sequence[Tensor] | None) -> None:
        return None


@dataclass(frozen=True)
class Clipped:
    """Centred clipping: no reply is farther from the median than `radius` median distances."""

    radius: float

    def kept(self, replies: Sequence[Reply], by_owner: bool) -> Sequence[Reply]:
        if len(replies) < 2:
            return replies
        centre = _median(replies, by_owner)
        distances = _distances(replies, centre, by_owner)
        most = self.radius * median_low(distances)
        return [
            (_towards(params, centre, most / far), masks, share) if far > most else reply
            for reply, far in zip(replies, distances, strict=True)
            for params, masks, share in [reply]
        ]

    def middle(self, values: Sequence[Tensor], owned: Sequence[Tensor] | None) -> None:
        return None


@dataclass(frozen=True)
class GeometricMedian:
    """The point with the least weighted sum of distances to all replies."""

    def kept(self, replies: Sequence[Reply], by_owner: bool) -> Sequence[Reply]:
        if len(replies) < 3:
            return replies
        middle, weights = _median(replies, by_owner), [share for _, _, share in replies]
        for _ in range(STEPS):
            distances = _distances(replies, middle, by_owner)
            least = NEAREST * median_low(distances) or 1.0
            weights = [
                share / max(far, least)
                for (_, _, share), far in zip(replies, distances, strict=True)
            ]
            middle = _mean(replies, weights, by_owner)
        pairs = zip(replies, weights, strict=True)
        return [(params, masks, share) for (params, masks, _), share in pairs]

    def middle(self, values: Sequence[Tensor], owned: Sequence[Tensor] | None) -> None:
        return None


def _floating(replies: Sequence[Reply]) -> list[str]:
    """The tensors by which replies are compared: counts of batches are not."""
    return [name for name, tensor in replies[0][0].items() if tensor.is_floating_point()]


def _masked(reply: Reply, name: str) -> Tensor:
    params, masks, _ = reply
    tensor = params[name].double()
    return torch.where(masks[name], tensor, 0) if name in masks else tensor


def _owned(replies: Sequence[Reply], name: str, by_owner: bool) -> list[Tensor] | None:
    owned = [masks[name] for _, masks, _ in replies if name in masks]
    return owned if by_owner and owned else None


def _median(replies: Sequence[Reply], by_owner: bool) -> Params:
    return {
        name: Median().middle(
            [_masked(reply, name) for reply in replies], _owned(replies, name, by_owner)
        )
        for name in _floating(replies)
    }


def _mean(replies: Sequence[Reply], weights: Sequence[float], by_owner: bool) -> Params:
    means = {}
    for name in _floating(replies):
        owned = _owned(replies, name, by_owner)
        total = sum(w * _masked(each, name) for w, each in zip(weights, replies, strict=True))
        whole = (
            sum(weights)
            if owned is None
            else sum(w * own.double() for w, own in zip(weights, owned, strict=True))
        )
        means[name] = torch.nan_to_num(torch.as_tensor(total / whole))
    return means


def _distances(replies: Sequence[Reply], middle: Params, by_owner: bool) -> list[float]:
    """How far each reply is from a point, over the entries that count for it."""
    squares = [0.0] * len(replies)
    for place, reply in enumerate(replies):
        for name, centre in middle.items():
            away = _masked(reply, name) - centre
            if by_owner and name in reply[1]:
                away = torch.where(reply[1][name], away, 0)
            squares[place] += float(away.square().sum())
    return [square**0.5 for square in squares]


def _towards(params: Params, centre: Params, factor: float) -> Params:
    """Parameters drawn towards a centre, until their distance is `factor` times what it was."""
    return {
        name: (centre[name] + factor * (tensor.double() - centre[name])).to(tensor.dtype)
        if name in centre
        else tensor
        for name, tensor in params.items()
    }
