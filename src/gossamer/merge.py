"""Weighted means of client replies: one reply at a time, in float64, in the order of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from gossamer.arithmetic.sums import add
from gossamer.core import Client, Masks, Params
from gossamer.wire.errors import WireError

Weighting = Literal["samples", "uniform"]
"""Clients are weighted by their training examples, or all alike."""


Reply: TypeAlias = tuple[Params, Masks, float]
"""A client's parameters, masks of those that are masked, and its weight in the mean."""


class Rule(Protocol):
    """How replies are averaged, if not by their mean; it may keep all of them in memory."""

    def kept(self, replies: Sequence[Reply], by_owner: bool) -> Sequence[Reply]:
        """The replies to be averaged: a part of them, or with other values or weights."""

    def middle(self, values: Sequence[Tensor], owned: Sequence[Tensor] | None) -> Tensor | None:
        """A tensor from those of the kept replies, entry by entry; None: their weighted mean."""


RULE: ContextVar[Rule | None] = ContextVar("rule", default=None)
"""The rule of the run, which the engine sets while a method merges."""


@contextmanager
def by(rule: Rule | None) -> Iterator[None]:
    """Averages by a rule; None: by the weighted mean."""
    token = RULE.set(rule)
    try:
        yield
    finally:
        RULE.reset(token)


def weight(client: Client, weighting: Weighting) -> float:
    """The weight of a client's update in a mean: its training examples, or 1."""
    return float(client.examples) if weighting == "samples" else 1.0


def mean(updates: Iterable[tuple[Params, float]]) -> Params:
    """The weighted mean of parameters, or what the rule of the run puts in its place.

    Args:
        updates: parameters and their weights. They are read once; only the running sum is kept,
            unless there is a rule.

    Returns:
        Tensors of the same names, shapes and types; empty if there are no updates.
    """
    rule = RULE.get()
    if rule is not None:
        return _by_rule(rule, [(params, {}, share) for params, share in updates])
    return _mean(updates)


def _by_rule(rule: Rule, replies: Sequence[Reply]) -> Params:
    replies = rule.kept(replies, by_owner=False)
    means = _mean((params, share) for params, _, share in replies)
    for name, mean in means.items():
        middle = rule.middle([params[name] for params, _, _ in replies], None)
        means[name] = mean if middle is None else middle.to(mean.dtype)
    return means


def _mean(updates: Iterable[tuple[Params, float]]) -> Params:
    total = 0.0
    sums: Params = {}
    kinds = {}
    for params, share in updates:
        total += share
        for name, tensor in params.items():
            if name not in sums:
                sums[name] = torch.zeros(tensor.shape, dtype=torch.float64)
                kinds[name] = tensor.dtype
            add(sums[name], tensor, share)
    return {name: (tensor / total).to(kinds[name]) for name, tensor in sums.items()}


def votes(masks: Iterable[Masks]) -> tuple[Params, int]:
    """How many clients have each entry in their masks, and how many clients there are.

    Under a rule, the count is the clients' number times what the rule makes of their bits.
    """
    rule, count = RULE.get(), 0
    kept: list[Reply] = []
    sums: Params = {}
    for each in masks:
        count += 1
        if rule is not None:
            kept.append(({name: mask.float() for name, mask in each.items()}, {}, 1.0))
            continue
        for name, mask in each.items():
            if name not in sums:
                sums[name] = torch.zeros(mask.shape, dtype=torch.int32)
            sums[name] += mask
    if rule is not None:
        sums = {n: share.double() * count for n, share in _by_rule(rule, kept).items()}
    return sums, count


def mean_of_each(updates: Iterable[tuple[Sequence[Params], float]]) -> tuple[Params, ...]:
    """The weighted mean of several models at once, by their places; empty when there are none."""
    flat = (
        ({f"{place} {name}": x for place, each in enumerate(models) for name, x in each.items()}, w)
        for models, w in updates
    )
    means: dict[int, Params] = {}
    for key, tensor in mean(flat).items():
        place, name = key.split(" ", 1)
        means.setdefault(int(place), {})[name] = tensor
    return tuple(means.values())


def fitting(reply: Params, wanted: Params) -> Params:
    """Checks a reply against what the client was sent.

    Without this check, torch would broadcast a tensor of one number over a whole layer.

    Args:
        reply: the tensors of the reply.
        wanted: tensors of the expected names, shapes and types; their values do not matter.

    Returns:
        `reply`, unchanged.

    Raises:
        WireError: names, shapes or types differ. It costs this client the round, not the run.
    """
    if reply.keys() != wanted.keys():
        odd = sorted(reply.keys() ^ wanted.keys())
        raise WireError(f"a reply lacks or adds {', '.join(odd)}")
    for name, tensor in reply.items():
        sent = wanted[name]
        if tensor.shape != sent.shape or tensor.dtype != sent.dtype:
            raise WireError(
                f"{name} came back as {tensor.dtype} of shape {tuple(tensor.shape)}, "
                f"but {sent.dtype} of shape {tuple(sent.shape)} was sent"
            )
    return reply


def within(numbers: Tensor, low: float, high: float) -> Literal[True]:
    """True if all numbers of a reply lie in bounds, which their clients keep.

    Raises:
        WireError: one does not. It costs this client the round, not the run.
    """
    if not bool(((numbers >= low) & (numbers <= high)).all()):
        raise WireError(f"numbers came back that are not all between {low:g} and {high:g}")
    return True
