"""The server of methods with gates: what it learns from replies, and which groups it prunes.

The server climbs the likelihood of the gates that clients drew, and of the weights behind those
that are open. Its gradients are exact; nothing goes from gates to the norms of weights here either,
or the pull of a drawn gate on its weights would be ten thousand times that of the clients' data.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from gossamer.core import Ctx, Masks, Params
from gossamer.fields import option
from gossamer.methods import compacting
from gossamer.methods.gated import Gating, adamax
from gossamer.methods.parts.server_optimiser import Adaptive, Moments
from gossamer.sparsity import hard_concrete
from gossamer.sparsity.hard_concrete import Groups

LEAST_SHARE = 1e-6
"""A probability of nothing has no threshold either."""


@dataclass(frozen=True)
class Server:
    params: Params
    """Zero where a group is pruned."""
    thresholds: Params
    """Before softplus, by tensor."""
    alive: Masks
    """Which groups are not pruned."""
    moments: Moments
    threshold_first: Params
    threshold_second: Params


@dataclass
class Heard:
    """What clients of a round told, added up in float64 and in the order they came."""

    opened: Tensor
    """Sum of gates."""
    ascent: Tensor
    """Sum of the thresholds' gradients."""
    sums: Params = field(default_factory=dict)
    """Of the differences from what was sent, where gates are open."""
    clients: int = 0
    total: float = 0.0

    @classmethod
    def nothing(cls, groups: Groups) -> Heard:
        """Before the first reply."""
        zeros = torch.zeros(groups.total, dtype=torch.float64)
        return cls(zeros, zeros.clone())

    def add(self, sent: Params, found: Params, gates: Tensor, ascent: Tensor, share: float) -> None:
        """One more reply: what it has in the place of what was sent."""
        self.opened.add_(gates, alpha=share)
        self.ascent.add_(ascent, alpha=share)
        for name, tensor in found.items():
            change = tensor.double() - sent[name]
            if name in self.sums:
                self.sums[name].add_(change, alpha=share)
            else:
                self.sums[name] = change.mul_(share)
        self.clients += 1
        self.total += share

    def change(self, name: str, dtype: torch.dtype) -> Tensor:
        """The mean change of a tensor."""
        return (self.sums[name] / self.total).to(dtype)

    def moved(self, params: Params, names: Iterable[str]) -> Params:
        """Tensors as the mean of clients has them."""
        return {
            name: params[name] + self.change(name, params[name].dtype)
            for name in names
            if name in self.sums
        }


@dataclass(frozen=True)
class Gatekeeper:
    """How the server learns and prunes."""

    server_step: Literal["gradient", "closed"] = option(
        "gradient", "a step of Adam and Adamax, or weights and probabilities in closed form"
    )
    adaptive: Adaptive = Adaptive()
    server_threshold_lr: float = option(1e-2, "server's rate of thresholds (Adamax)", above=0)
    reduction: Literal["mean", "sum"] = option("mean", "over clients, before the server's step")
    prune_below: float = option(
        0.1, "groups are pruned that are open with this probability or less", least=0, below=1
    )
    dead_moments: Literal["drop", "keep"] = option(
        "drop", "moments of pruned groups; kept, they move weights that must be pruned again"
    )

    def first(self, ctx: Ctx, gating: Gating, groups: Groups) -> Server:
        """All groups open, or as open as their norms allow."""
        params = ctx.task.init(ctx.common.fold("init"))
        norms = groups.norms(params)
        _refuse_zero(groups, norms)
        temperature, share = gating.temperature, gating.theta0
        if small := int(hard_concrete.infeasible(norms, share, temperature).sum()):
            warnings.warn(
                f"{small} of {groups.total} groups are too small to be open with probability "
                f"{share:g} under any threshold and start less open; use a smaller --temperature "
                "or --theta0",
                stacklevel=2,
            )
        thresholds = _clones(groups.split(hard_concrete.thresholds_for(norms, share, temperature)))
        alive = {name: torch.ones_like(part, dtype=torch.bool) for name, part in thresholds.items()}
        moments = self.adaptive.start({name: params[name] for name in ctx.task.layout.parameters})
        zeros = {name: torch.zeros_like(part) for name, part in thresholds.items()}
        state = Server(params, thresholds, alive, moments, zeros, zeros)
        return self.pruned(ctx, gating, groups, state)

    def after(
        self, ctx: Ctx, gating: Gating, groups: Groups, state: Server, heard: Heard
    ) -> Server:
        """The state after a round in which somebody answered."""
        buffers = heard.moved(state.params, ctx.task.layout.buffers)
        state = replace(state, params={**state.params, **buffers})
        closed = self.server_step == "closed"
        stepped = (self._closed if closed else self._ascended)(gating, groups, state, heard)
        return self.pruned(ctx, gating, groups, stepped)

    def pruned(self, ctx: Ctx, gating: Gating, groups: Groups, state: Server) -> Server:
        """The state without the groups that are seldom open, whose weights are zero from now on.

        That is the beginning of the next round, and after the last one what is tested.
        """
        found = theta(gating, groups, state) > self.prune_below
        if self.dead_moments == "drop":
            found &= groups.join(state.alive)
        alive = _clones(groups.split(found))
        masks = groups.masks(found, {name: state.params[name].shape for name in groups.names})
        if gating.gate_bias:
            masks |= compacting.pruned_beside(ctx.task, groups, alive)
        state = replace(state, params=_masked(state.params, masks), alive=alive)
        if self.dead_moments == "keep":
            return state
        moments = replace(
            state.moments,
            first=_masked(state.moments.first, masks),
            second=_masked(state.moments.second, masks),
        )
        return replace(
            state,
            moments=moments,
            threshold_first=_masked(state.threshold_first, alive),
            threshold_second=_masked(state.threshold_second, alive),
        )

    def _ascended(self, gating: Gating, groups: Groups, state: Server, heard: Heard) -> Server:
        """A step along the gradients, which Adamax descends: they change their sign for it."""
        times = heard.clients if self.reduction == "sum" else 1
        names = state.moments.first
        changes = {n: heard.change(n, state.params[n].dtype).mul_(times) for n in names}
        params, moments = self.adaptive.step(state.params, changes, state.moments)
        raw = groups.join(state.thresholds)
        first, second = groups.join(state.threshold_first), groups.join(state.threshold_second)
        grad = (heard.ascent / heard.total).to(raw.dtype).mul_(-times)
        if self.dead_moments == "drop":
            grad.mul_(groups.join(state.alive))
        rates = (self.adaptive.beta1, self.adaptive.beta2, self.adaptive.eps)
        adamax(raw, grad, first, second, moments.steps, self.server_threshold_lr, *rates)
        return replace(
            state,
            params={**state.params, **params},
            moments=moments,
            thresholds=_clones(groups.split(raw)),
            threshold_first=_clones(groups.split(first)),
            threshold_second=_clones(groups.split(second)),
        )

    def _closed(self, gating: Gating, groups: Groups, state: Server, heard: Heard) -> Server:
        """The maximum over weights and probabilities; thresholds follow from both.

        Gates that all clients opened are as open as at the start: certainty has no threshold.
        """
        params = {**state.params, **heard.moved(state.params, state.moments.first)}
        for name, opened in groups.spread(heard.opened, state.params).items():
            old = state.params[name]
            params[name] = hard_concrete.mean_of_open(old.double(), heard.sums[name], opened).to(
                old.dtype
            )
        share = (heard.opened / heard.total).clamp(LEAST_SHARE, gating.theta0)
        raw = hard_concrete.thresholds_for(groups.norms(params), share, gating.temperature)
        return replace(state, params=params, thresholds=_clones(groups.split(raw)))


def theta(gating: Gating, groups: Groups, state: Server) -> Tensor:
    """How open the server holds each gate."""
    raw = groups.join(state.thresholds)
    return torch.sigmoid(gating.logits(groups.norms(state.params), raw))


def _refuse_zero(groups: Groups, norms: Tensor) -> None:
    for name, part in groups.split(norms).items():
        if closed := int((part == 0).sum()):
            raise ValueError(
                f"{closed} of {part.numel()} groups of {name} are zero at the start, and no gate "
                "would ever open them; give the model other initial values, or leave the tensor "
                "out with --prunable"
            )


def _clones(tensors: Params) -> Params:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _masked(tensors: Params, masks: Masks) -> Params:
    """Tensors with zeros where they have a mask that says so."""
    chosen = {name: tensors[name] for name in masks if name in tensors}
    return {**tensors, **{n: tensor.masked_fill(~masks[n], 0) for n, tensor in chosen.items()}}
