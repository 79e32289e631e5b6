"""Training under gates: all gradients follow from that of the loss at the gated weights.

A gated model has weights w in groups, and a threshold per group. With z the relaxed gates and R the
probabilities that they are positive, training minimises

    mean loss(w * z) + sum over groups of R (price + drift / 2 |w - anchor|^2)

The gradient of a weight is that of the loss times its gate; the gradient of a gate is the sum of
its products with the weights, and reaches the threshold by the chain rule. Norms are constants
within a step: a gate must not close because weights shrink. SGD trains weights, Adamax thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer import optim
from gossamer.core import Batch, Key, Masks, Params
from gossamer.optim import Training
from gossamer.sparsity import hard_concrete
from gossamer.sparsity.hard_concrete import HardConcrete
from gossamer.submodels.compaction import Part

Drawn = Sequence[tuple[Batch, Tensor]]
"""Parts of a batch, each with uniform draws for its own gates."""


class Gradients(NamedTuple):
    """The loss of the data, and the gradients of the whole objective."""

    loss: Tensor
    weights: Params
    thresholds: Tensor


CLOSED = 0.4
"""Share of open gates below which it pays to say which weights are zero."""


@dataclass
class Work:
    """A model in training under gates; `step` updates it in place.

    Vectors have an entry per gate of the part that is trained.
    """

    part: Part
    temperature: float
    params: Params
    raw: Tensor
    """Thresholds before softplus."""
    alive: Tensor
    """Zero where a group is pruned, otherwise one."""
    sizes: Tensor
    """The number of weights of each group in the whole model."""
    start: Tensor
    """The logits of the gates at the beginning."""
    outside: Tensor
    first: Tensor
    """Moments of Adamax."""
    second: Tensor
    price: Tensor
    gated: Params
    """Memory for weights times gates."""
    anchor: Params = field(default_factory=dict)
    """The weights at the beginning, if drift is penalised."""
    drift: float = 0.0
    concrete: HardConcrete = HardConcrete()
    rate: float = 0.0
    """The learning rate of weights."""
    removed: Masks = field(default_factory=dict)
    """For each pruned group: whether the part is without it."""
    steps: int = 0
    moments: optim.Moments = field(default_factory=optim.Moments)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    examples: int = 0

    def logits(self) -> Tensor:
        """The current logits of the gates."""
        norms = (self.part.groups.squares(self.params) + self.outside).sqrt()
        return hard_concrete.logits(norms, self.raw, self.temperature)

    def location(self) -> Tensor:
        """The current locations of the relaxed gates."""
        return self.concrete.location(self.logits())

    def draws(self, key: Key) -> Tensor:
        """Uniform draws, one per gate; they do not depend on which part is trained."""
        return hard_concrete.draw(key, self.part.whole.total)[self.part.places].to(self.raw)

    def opened(self, key: Key) -> Tensor:
        """Binary gates of the whole model, drawn at zero temperature."""
        part = self.part
        opened = torch.zeros(part.whole.total, dtype=torch.bool)
        drawn = hard_concrete.draw(key, part.whole.total)[part.places]
        shares = torch.sigmoid(self.logits()).cpu()
        opened[part.places] = (drawn < shares) & (self.alive.cpu() > 0)
        return opened

    def positive(self) -> Tensor:
        """The probabilities R that relaxed gates are above zero."""
        return self.concrete.positive(self.location())

    def moved(self) -> Params:
        """The differences from the anchor; none without one."""
        return {name: self.params[name] - anchor for name, anchor in self.anchor.items()}

    def squares(self) -> Tensor:
        """The squared distance of each group from the anchor; zero without one."""
        moved = self.moved()
        return self.part.groups.squares(moved) if moved else torch.zeros_like(self.raw)

    def mean_loss(self) -> float:
        """The mean training loss of the round."""
        return self.loss.item() / max(self.examples, 1)

    def gradients(self, drawn: Drawn) -> Gradients:
        """The gradients of the objective for relaxed gates with these draws."""
        location, groups = self.location(), self.part.groups
        positive, price = self.concrete.positive(location) * self.alive, self.price
        loss, grads, by_location = self._data(location, drawn)
        if self.anchor:
            moved = self.moved()
            spread = groups.spread(self.drift * positive, self.params)
            for name, distance in moved.items():
                grads[name].addcmul_(spread[name], distance)
            price = price + self.drift / 2 * groups.squares(moved)
        by_location += price * positive * (1 - positive)
        for name, kept in self.part.held.items():
            grads[name].mul_(kept.to(grads[name]))
        return Gradients(loss, grads, by_location * torch.sigmoid(self.raw) / -self.temperature)

    def step(self, batch: Batch, drawn: Drawn, training: Training, threshold_lr: float) -> None:
        """One step on weights and one of Adamax on thresholds, from the same gradient."""
        loss, grads, by_raw = self.gradients(drawn)
        training.update(self.params, grads, self.moments, self.rate)
        self.steps += 1
        self.raw, self.first, self.second = optim.adamax(
            self.raw, by_raw, self.first, self.second, self.steps, threshold_lr
        )
        self.loss = self.loss + loss * len(batch.y)
        self.examples += len(batch.y)

    def _data(self, location: Tensor, drawn: Drawn) -> tuple[Tensor, Params, Tensor]:
        """The loss and its gradients with respect to weights and to locations of gates."""
        loss, by_location = torch.zeros((), device=location.device), torch.zeros_like(location)
        grads: Params = {}
        examples = sum(len(part.y) for part, _ in drawn)
        for part, draws in drawn:
            share = len(part.y) / examples
            soft = self.concrete.soft(location, draws)
            gate = self.concrete.gate(soft) * self.alive
            gates = self.part.groups.spread(gate, self.params)
            for name, factor in gates.items():
                # Into memory laid out like the weights: optimisers pair elements by address.
                torch.mul(self.params[name], factor, out=self.gated[name])
            used, opened = {**self.params, **self.gated}, {}
            if int(torch.count_nonzero(gate)) < CLOSED * gate.numel():
                opened = {name: self.gated[name] != 0 for name in gates}
            value, mine = self.part.task.gradients(used, part, opened, everywhere=True)
            products = {name: mine[name] * self.params[name] for name in gates}
            slope = self.concrete.slope(soft) * self.alive
            by_location.add_(self.part.groups.sums(products) * slope, alpha=share)
            for name, factor in gates.items():
                mine[name].mul_(factor)
            loss = loss + share * value
            if share < 1:
                torch._foreach_mul_(list(mine.values()), share)
            if grads:
                torch._foreach_add_(list(grads.values()), list(mine.values()))
            grads = grads or mine
        return loss, grads, by_location


def begin(part: Part, raw: Tensor, temperature: float, drift: float = 0.0) -> Work:
    """The state before the first step; prices and the learning rate are zero.

    Args:
        raw: thresholds before softplus, of all groups of the whole model.
    """
    own, names = part.task.own(part.params), part.groups.names
    norms = (part.groups.squares(part.params) + part.outside).sqrt()
    logits = hard_concrete.logits(norms, raw[part.places], temperature).to(part.task.device)
    return Work(
        part=part,
        temperature=temperature,
        params=own,
        raw=raw[part.places].to(part.task.device),
        alive=part.alive[part.places].to(logits),
        sizes=part.whole.sizes()[part.places].to(logits),
        start=logits,
        outside=part.outside.to(logits),
        first=torch.zeros_like(logits),
        second=torch.zeros_like(logits),
        price=torch.zeros_like(logits),
        gated={name: torch.zeros_like(own[name]) for name in names},
        anchor={name: own[name].clone() for name in names} if drift else {},
        drift=drift,
    )
