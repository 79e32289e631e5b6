"""Other readings of SpaFL's local training: what is trained when, under which masks, how far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gossamer import optim
from gossamer.core import Batch, Ctx, Masks, Params
from gossamer.fields import option
from gossamer.methods.parts import masked_training
from gossamer.methods.spafl import by_layer, column, mask_of, pruned, row_sum
from gossamer.optim import Training
from gossamer.task.layout import Layout


@dataclass
class Work:
    model: masked_training.Work
    layout: Layout  # in which tensors with thresholds are prunable
    thresholds: Tensor
    known: Tensor
    weight_velocity: dict[str, Tensor | None]
    velocity: Tensor | None  # of the thresholds
    densities: dict[str, float]
    active: Masks = field(default_factory=dict)  # under which weights were last trained
    gathered: Tensor | None = None
    resets: int = 0


@dataclass(frozen=True)
class Pruning:
    """How a client trains weights and thresholds."""

    alpha: float = option(0.002, "weight of the regulariser that raises thresholds", least=0)
    regulariser: Literal["exp", "inv", "inv_l1"] = option(
        "exp", "sum of exp(-t), sum of 1/(t + 0.1), or 1/(sum of t + 0.1)"
    )
    reg_step: Literal["loss", "eq5", "eq7"] = option(
        "loss", "its step: the gradient of the loss, or as printed in equation 5 or 7"
    )
    reg_warmup: Literal["none", "first", "logistic"] = option(
        "none", "a logistic factor: in no round, in the first, or in every round"
    )
    reg_off_density: float = option(
        0.0, "no regulariser once the mean density of layers is at most this", least=0, most=1
    )

    structured: bool = option(False, "prune whole neurons, by their mean magnitude")
    phases: Literal["alternating", "joint"] = option(
        "alternating", "train thresholds in the last epoch alone, or with the weights in every one"
    )
    mask_refresh: Literal["round", "first-epoch", "batch"] = option(
        "round", "when masks change while weights train: never, in the first epoch, or always"
    )
    norm_in_tau_epoch: bool = option(False, "biases and normalisation also train with thresholds")
    overwrite_masked: bool = option(False, "masked weights are lost, as in Algorithm 1, line 8")
    mask_grad_to_weight: bool = option(False, "weights also get the gradient through their mask")
    ste: Literal["identity", "longtail", "dead"] = option(
        "identity", "surrogate gradient of the step function"
    )
    clamp: bool = option(True, "keep weights in [-1, 1] and thresholds in [0, 1]")
    reset_density: float = option(0.01, "a sparser layer is reset to dense", least=0, below=1)
    reset_inclusive: bool = option(False, "also a layer of exactly that density")
    eta_tau: float = option(0.0, "lr of thresholds, on the schedule of lr; 0: lr itself", least=0)
    momentum_tau: float = option(
        -1.0, "momentum of thresholds; -1: that of weights", least=-1, below=1
    )
    tau_steps: Literal["batch", "once"] = option(
        "batch", "thresholds take a step per batch, or one step with the mean gradient"
    )
    bug_compat: Literal["none", "fmnist", "cifar"] = option(
        "none", "defects of the released code: late resets, and for cifar a dead gradient"
    )

    def check(self, training: Training) -> None:
        """Refuses settings that contradict each other."""
        if self.phases == "alternating" and training.epochs < 2:
            raise ValueError(
                "the last epoch trains thresholds only; `epochs=` must be at least 2 (or use "
                "`phases='joint'`)"
            )
        if self.ste == "dead" and self.bug_compat != "cifar":
            raise ValueError(
                "`ste='dead'` is a defect of the released code; ask for it with "
                "`bug_compat='cifar'`"
            )
        if self.phases == "joint" and self.mask_refresh == "first-epoch":
            raise ValueError(
                "`mask_refresh='first-epoch'` has no effect with `phases='joint'`, where masks "
                "change with every batch; leave it out"
            )
        if self.phases == "joint" and self.norm_in_tau_epoch:
            raise ValueError(
                "`norm_in_tau_epoch=True` has no effect with `phases='joint'`, where everything "
                "trains in every epoch; leave it out"
            )
        if self.reg_step == "eq5" and self.regulariser != "exp":
            raise ValueError(
                f"`regulariser={self.regulariser!r}` has no effect with `reg_step='eq5'`, whose "
                "step is that of the threshold itself; leave one of them out"
            )

    def dense_share(self, training: Training) -> float:
        """The share of steps that need the gradients of all weights."""
        always = self.phases == "joint" or self.mask_grad_to_weight
        return 1.0 if always else 1 / training.epochs

    def regulariser_gradient(self, thresholds: Tensor) -> Tensor:
        if self.reg_step == "eq5":
            return -thresholds
        match self.regulariser:
            case "exp":
                return -torch.exp(-thresholds)
            case "inv":
                return -1 / (thresholds.abs() + 0.1) ** 2
            case "inv_l1":
                return torch.full_like(thresholds, -1) / (thresholds.abs().sum() + 0.1) ** 2

    def strength(self, round: int, mean_density: float) -> float:
        """Alpha in a round, for layers of this mean density."""
        if self.reg_off_density and mean_density <= self.reg_off_density:
            return 0.0
        if self.reg_warmup == "logistic" or (self.reg_warmup == "first" and round == 1):
            return self.alpha / (1 + math.exp(min(5 - 10 * (round - 1), 700)))
        return self.alpha

    def too_sparse(self, density: float) -> bool:
        """Whether a layer of this density is reset."""
        return (
            density <= self.reset_density if self.reset_inclusive else density < self.reset_density
        )

    def mask(self, work: Work) -> None:
        """Masks by the current thresholds; `bug_compat` resets a layer one call too late."""
        model, late = work.model, self.bug_compat != "none"
        masks = {}
        for name, part in by_layer(work.layout, work.thresholds).items():
            weight = model.params[name]
            mask = mask_of(weight, part, self.structured)
            if self.too_sparse(work.densities[name] if late else density(mask)):
                mask = mask_of(weight, part.zero_(), self.structured)
                work.resets += 1
            masks[name] = mask
            work.densities[name] = density(mask)
        model.masks = masks

    def step(self, ctx: Ctx, training: Training, work: Work, batch: Batch) -> None:
        """One batch: a step of the weights, of the thresholds, or of both."""
        model, joint = work.model, self.phases == "joint"
        last_epoch = batch.step >= batch.steps - batch.per_epoch
        first_epoch = self.mask_refresh == "first-epoch" and batch.epoch == 0
        if joint or last_epoch or first_epoch or self.mask_refresh == "batch":
            self.mask(work)
        sparse, everywhere = pruned(model.params, model.factors), joint or last_epoch
        wanted = everywhere or self.mask_grad_to_weight
        loss, grads = ctx.task.gradients(sparse, batch, model.masks, everywhere=wanted)
        change = self._threshold_gradient(ctx, work, grads) if joint or last_epoch else None
        if joint or not last_epoch:
            work.active = model.masks
            self._mask_gradients(work, grads)
            if self.overwrite_masked:
                masked_training.multiply(model.params, model.factors)
        else:
            trained = set(grads) - set(model.masks) if self.norm_in_tau_epoch else set()
            grads = {name: grad for name, grad in grads.items() if name in trained}
        if training.clip:
            optim.clip([*grads.values(), *([] if change is None else [change])], training.clip)
        if grads:
            self._move_weights(training, work, grads)
        if change is not None:
            self._move_thresholds(ctx, training, work, change, batch)
        masked_training.record(model, loss, batch)

    def _threshold_gradient(self, ctx: Ctx, work: Work, grads: Params) -> Tensor:
        gradients = []
        for name, part in by_layer(work.layout, work.thresholds).items():
            product = grads[name] * work.model.params[name]
            slope = self._slope(work.model.params[name], part)
            gradients.append(-row_sum(product if slope is None else product * slope))
        change = torch.cat(gradients)
        if self.reg_step == "eq7":
            return change
        regulariser = self.regulariser_gradient(work.thresholds)
        return change.add_(regulariser, alpha=self._strength(ctx, work))

    def _strength(self, ctx: Ctx, work: Work) -> float:
        return self.strength(ctx.round, sum(work.densities.values()) / len(work.densities))

    def _slope(self, weight: Tensor, thresholds: Tensor) -> Tensor | None:
        ste = "dead" if self.bug_compat == "cifar" else self.ste
        if ste == "identity":
            return None
        far = distance(weight, thresholds, self.structured).abs()
        return long_tail(far) if ste == "longtail" else (far > 1).to(far.dtype)

    def _mask_gradients(self, work: Work, grads: Params) -> None:
        through: Params = {}
        if self.mask_grad_to_weight:
            for name, part in by_layer(work.layout, work.thresholds).items():
                weight = work.model.params[name]
                slope = self._slope(weight, part)
                through[name] = gradient_through_mask(grads[name], weight, slope, self.structured)
        masked_training.multiply(grads, work.model.factors)
        for name, grad in through.items():
            grads[name].add_(grad)

    def _move_weights(self, training: Training, work: Work, grads: Params) -> None:
        model = work.model
        if training.weight_decay:  # of active weights only
            sparse = pruned(model.params, model.factors)
            for name, grad in grads.items():
                grad.add_(sparse[name], alpha=training.weight_decay)
        params = [model.params[name] for name in grads]
        velocity = [work.weight_velocity.get(name) for name in grads]
        if any(each is not None for each in velocity):  # the others were not trained until now
            pairs = zip(velocity, params, strict=True)
            velocity = [torch.zeros_like(p) if v is None else v for v, p in pairs]
        momentum = training.momentum
        optim.sgd(params, list(grads.values()), velocity, rate=model.rate, momentum=momentum)
        work.weight_velocity.update(zip(grads, velocity, strict=True))
        for name in model.masks.keys() & grads.keys() if self.clamp else ():
            model.params[name].clamp_(-1, 1)

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
            before = work.velocity
            change = change if before is None else before.mul_(momentum).add_(change)
            work.velocity = change
        move = change * -(self.eta_tau * (work.model.rate / training.lr) or work.model.rate)
        if self.reg_step == "eq7":
            move -= self._strength(ctx, work) * self.regulariser_gradient(work.thresholds)
        work.thresholds.add_(move)
        if self.clamp:
            work.thresholds.clamp_(0, 1)


def density(mask: Tensor) -> float:
    return int(mask.count_nonzero()) / mask.numel()


def distance(weight: Tensor, thresholds: Tensor, structured: bool) -> Tensor:
    """How far each weight, or the mean magnitude of its neuron, is above the threshold."""
    if structured:
        return column(row_sum(weight.abs()) / weight[0].numel() - thresholds, weight)
    return weight.abs() - column(thresholds, weight)


def long_tail(far: Tensor) -> Tensor:
    """The surrogate gradient of dynamic sparse training (Liu et al., ICLR 2020)."""
    tail = torch.where(far <= 1, torch.full_like(far, 0.4), torch.zeros_like(far))
    return torch.where(far <= 0.4, 2 - 4 * far, tail)


def gradient_through_mask(
    grad: Tensor, weight: Tensor, slope: Tensor | None, structured: bool
) -> Tensor:
    """What autograd adds to the gradient of the weights because the mask depends on them."""
    if not structured:
        product = grad * weight.abs()
        return product if slope is None else product * slope
    row = column(row_sum(grad * weight), weight)
    return weight.sign() * (row if slope is None else row * slope) / weight[0].numel()
