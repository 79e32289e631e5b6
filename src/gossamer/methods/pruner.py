"""SpaFL's training on a client: weights under their masks, then thresholds with weights at rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gossamer import optim
from gossamer.core import Batch, Ctx, Masks, Params
from gossamer.fields import option
from gossamer.methods import thresholds as rule
from gossamer.methods.thresholds import Regularisation, Rows, Ste
from gossamer.optim import Training


@dataclass
class Work:
    """Weights and thresholds in training; `step` updates them in place."""

    rows: Rows
    params: Params
    thresholds: Tensor
    known: Tensor
    rate: float
    velocity: dict[str, Tensor | None]
    pace: Tensor | None
    densities: dict[str, float]
    kept: Masks = field(default_factory=dict)
    masks: Params = field(default_factory=dict)
    """The masks of layers that have lost something, as numbers."""
    active: Masks = field(default_factory=dict)
    """All masks, as they were when weights were last trained."""
    gathered: Tensor | None = None
    resets: int = 0
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    examples: int = 0


@dataclass(frozen=True)
class Pruner:
    """How a client trains weights and thresholds."""

    regularisation: Regularisation = Regularisation()
    structured: bool = option(False, "prune whole neurons and filters, by their mean magnitude")
    phases: Literal["alternating", "joint"] = option(
        "alternating", "thresholds alone in the last epoch, or with the weights in every epoch"
    )
    mask_refresh: Literal["round", "first-epoch", "batch"] = option(
        "round",
        "when weights are trained: a new mask per round, also in the first epoch, or always",
    )
    norm_in_tau_epoch: bool = option(False, "biases and normalisation also train with thresholds")
    overwrite_masked: bool = option(False, "masked weights are lost, as in line 8 of the paper")
    mask_grad_to_weight: bool = option(False, "weights also get the gradient through their mask")
    ste: Ste = option("identity", "what stands for the derivative of the step")
    clamp: bool = option(True, "keep weights in [-1, 1] and thresholds in [0, 1]")
    reset_density: float = option(
        0.01, "a layer with less than this left is given back all of it", least=0, below=1
    )
    reset_inclusive: bool = option(False, "also a layer with exactly that much left")
    eta_tau: float = option(0.0, "learning rate of thresholds; 0 means that of weights", least=0)
    momentum_tau: float = option(
        -1.0, "momentum of thresholds; -1 means that of weights", least=-1, below=1
    )
    tau_steps: Literal["batch", "once"] = option(
        "batch", "thresholds take a step per batch, or one with the mean gradient"
    )
    bug_compat: Literal["none", "fmnist", "cifar"] = option(
        "none", "defects of the released code: late resets, and for cifar a dead gradient"
    )

    def check(self, training: Training) -> None:
        """Refuses settings that contradict each other."""
        if self.phases == "alternating" and training.epochs < 2:
            raise ValueError(
                "thresholds are trained in the last epoch and weights in those before it, so "
                "--epochs must be at least 2 (or use --phases joint)"
            )
        if self.ste == "dead" and self.bug_compat != "cifar":
            raise ValueError(
                "--ste dead is a defect of the released code; ask for it with --bug-compat cifar"
            )

    def scant(self, density: float) -> bool:
        """Whether so little of a layer is left that it starts again."""
        return rule.below(density, self.reset_density, self.reset_inclusive)

    def mask(self, work: Work) -> None:
        """Masks by the thresholds as they are; a layer with next to nothing left starts again."""
        work.masks, work.kept = {}, {}
        late = self.bug_compat != "none"
        for name, part in work.rows.split(work.thresholds).items():
            weight = work.params[name]
            resets = late and self.scant(work.densities[name])
            kept, density = self._kept(weight, part, resets)
            if not late and self.scant(density):
                resets = True
                kept, density = self._kept(weight, part, resets)
            work.resets += resets
            work.densities[name] = density
            work.kept[name] = kept
            if density < 1:
                work.masks[name] = kept.to(weight.dtype)

    def step(self, ctx: Ctx, training: Training, work: Work, batch: Batch) -> None:
        """One batch: a step of the weights, of the thresholds, or of both."""
        joint = self.phases == "joint"
        last_epoch = batch.step >= batch.steps - batch.per_epoch
        tunes, trains = joint or last_epoch, joint or not last_epoch
        if tunes or self._refreshes(batch):
            self.mask(work)
        loss, grads = ctx.task.gradients(rule.pruned(work.params, work.masks), batch)
        change = self._threshold_gradient(ctx, work, grads) if tunes else None
        if trains:
            work.active = work.kept
            self._through_masks(work, grads)
            if self.overwrite_masked:
                for name, kept in work.masks.items():
                    work.params[name].mul_(kept)
        elif self.norm_in_tau_epoch:
            grads = {name: grad for name, grad in grads.items() if name not in work.rows.names}
        else:
            grads = {}
        if training.clip:
            optim.clip([*grads.values(), *([] if change is None else [change])], training.clip)
        if grads:
            self._move_weights(training, work, grads)
        if change is not None:
            self._move_thresholds(ctx, training, work, change, batch)
        work.loss = work.loss + loss * len(batch.y)
        work.examples += len(batch.y)

    def _refreshes(self, batch: Batch) -> bool:
        return self.mask_refresh == "batch" or (
            self.mask_refresh == "first-epoch" and batch.epoch == 0
        )

    def _kept(self, weight: Tensor, part: Tensor, resets: bool) -> tuple[Tensor, float]:
        """A layer's mask and its density."""
        if resets:
            part.zero_()
        kept = rule.mask(weight, part, self.structured)
        return kept, torch.count_nonzero(kept).item() / kept.numel()

    def _threshold_gradient(self, ctx: Ctx, work: Work, grads: Params) -> Tensor:
        found = []
        for name, part in work.rows.split(work.thresholds).items():
            weight = work.params[name]
            found.append(rule.threshold_gradient(grads[name], weight, self._slope(weight, part)))
        change = torch.cat(found)
        if self.regularisation.reg_step == "eq7":
            return change
        strength = self._strength(ctx, work)
        return change.add_(self.regularisation.gradient(work.thresholds), alpha=strength)

    def _strength(self, ctx: Ctx, work: Work) -> float:
        mean = sum(work.densities.values()) / len(work.densities)
        return self.regularisation.strength(ctx.round, mean)

    def _slope(self, weight: Tensor, part: Tensor) -> Tensor | None:
        ste = "dead" if self.bug_compat == "cifar" else self.ste
        if ste == "identity":
            return None
        return rule.slope(rule.distance(weight, part, self.structured), ste)

    def _through_masks(self, work: Work, grads: Params) -> None:
        """Makes the gradients of masked weights those of weights, in place."""
        extra: Params = {}
        if self.mask_grad_to_weight:
            for name, part in work.rows.split(work.thresholds).items():
                weight = work.params[name]
                extra[name] = rule.weight_gradient_through_mask(
                    grads[name], weight, self._slope(weight, part), self.structured
                )
        for name, kept in work.masks.items():
            grads[name].mul_(kept)
        for name, more in extra.items():
            grads[name].add_(more)

    def _move_weights(self, training: Training, work: Work, grads: Params) -> None:
        if training.weight_decay:
            for name, grad in grads.items():
                kept = work.masks.get(name)
                weight = work.params[name]
                grad.add_(weight if kept is None else weight * kept, alpha=training.weight_decay)
        params = [work.params[name] for name in grads]
        velocity = [work.velocity.get(name) for name in grads]
        if any(found is not None for found in velocity):  # not of what was at rest until now
            pairs = zip(velocity, params, strict=True)
            velocity = [torch.zeros_like(p) if v is None else v for v, p in pairs]
        optim.sgd(
            params, list(grads.values()), velocity, rate=work.rate, momentum=training.momentum
        )
        work.velocity.update(zip(grads, velocity, strict=True))
        if self.clamp:
            for name in work.densities:
                if name in grads:
                    work.params[name].clamp_(-1, 1)

    def _move_thresholds(
        self, ctx: Ctx, training: Training, work: Work, change: Tensor, batch: Batch
    ) -> None:
        if self.tau_steps == "once":
            whole = batch.steps if self.phases == "joint" else batch.per_epoch
            share = change / min(whole, batch.steps)  # a job that is cut short has fewer
            work.gathered = share if work.gathered is None else work.gathered + share
            if batch.step + 1 < batch.steps:
                return
            change, work.gathered = work.gathered, None
        momentum = training.momentum if self.momentum_tau < 0 else self.momentum_tau
        if momentum:
            work.pace = change if work.pace is None else work.pace.mul_(momentum).add_(change)
            change = work.pace
        move = change * -(self.eta_tau or work.rate)
        if self.regularisation.reg_step == "eq7":
            strength = self._strength(ctx, work)
            move -= strength * self.regularisation.gradient(work.thresholds)
        work.thresholds.add_(move)
        if self.clamp:
            work.thresholds.clamp_(0, 1)
