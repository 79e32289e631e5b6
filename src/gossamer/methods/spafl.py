"""SpaFL: every neuron has a trainable threshold that prunes its weights; only thresholds travel.

A client trains its own weights under the masks of the thresholds it received, then the thresholds.
The server averages them. Their change tells a client which neurons matter to others.

Kim, Saad, Debbah, Hong: SpaFL: Communication-efficient federated learning with sparse models and
low computational overhead. NeurIPS 2024. https://arxiv.org/abs/2406.00431 (numbers: version 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gossamer import merge, optim
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import held_versions, masked_training, sparse_model
from gossamer.optim import Training
from gossamer.task.layout import Layout
from gossamer.trust.declared import Privacy
from gossamer.wire import EXACT


@dataclass(frozen=True)
class Server:
    history: Tensor  # thresholds after every aggregation, one row each; the first row is zero
    seen: Tensor  # by client id: how many of these rows the client has received


@dataclass(frozen=True)
class Down:
    thresholds: Tensor = field(metadata=EXACT)
    missed: Tensor = field(metadata=EXACT)  # earlier broadcasts this client did not receive


@dataclass(frozen=True)
class Up:
    thresholds: Tensor = field(metadata=EXACT)


@dataclass(frozen=True)
class Local:
    params: Params
    known: Tensor  # the thresholds last received


@dataclass
class Work:
    model: masked_training.Work  # zero where it is pruned
    weights: Params  # of the prunable layers: pruned weights keep their values
    thresholds: Tensor
    known: Tensor
    velocity: Tensor | None = None  # of the thresholds
    resets: int = 0

    @property
    def params(self) -> Params:
        """All weights: trained ones, and pruned ones, which keep their values."""
        now, masks = self.model.params, self.model.masks.items()
        return now | {n: torch.where(mask, now[n], self.weights[n]) for n, mask in masks}


@dataclass(frozen=True)
class SpaFL:
    clients: int = option(10, "clients per round", least=1)
    alpha: float = option(0.002, "weight of the regulariser that raises thresholds", least=0)
    regulariser: Literal["exp", "inv"] = option("exp", "sum of exp(-t), or of 1/(t + 0.1) (A.7)")
    structured: bool = option(False, "prune whole neurons, by their mean magnitude (A.6)")
    importance: bool = option(True, "move weights by the change of their threshold (eq. 12, A.8)")
    reset_density: float = option(0.01, "a sparser layer is reset to dense", least=0, below=1)
    eta_tau: float = option(0.0, "lr of thresholds, on the schedule of lr; 0: lr itself", least=0)
    training: Training = Training(epochs=3, batch=64, lr=0.001, momentum=0.9)
    accounting: Accounting = Accounting(recipients="all", uncharged="missed")  # eqs. 34, 35
    privacy: ClassVar[Privacy] = Privacy(least=0, most=1)
    global_model: ClassVar[bool] = False

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        check_epochs(self.training)
        sparse_model.prunable(ctx)
        return Server(torch.zeros(1, ctx.task.layout.rows), held_versions.NOBODY)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        seen = int(state.seen[client.id]) if client.id < len(state.seen) else 0
        return Down(state.history[-1], state.history[max(seen, 1) : -1])

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        replies = {
            each.client.id: merge.fitting({"": each.up.thresholds}, {"": each.down.thresholds})
            for each in exchanges
            if merge.within(each.up.thresholds, 0, 1)
        }
        if not replies:
            return state
        mean = merge.mean((reply, 1.0) for reply in replies.values())[""]  # eq. 9
        seen = held_versions.updated(state.seen, list(replies), len(state.history))
        return Server(torch.cat([state.history, mean[None]]), seen)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return [Up(down.thresholds)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        check_epochs(self.training)
        local = local or newcomer(ctx)
        versions = torch.cat([local.known[None], down.missed, down.thresholds[None]])
        params = self.followed(ctx, local.params, versions)
        own, t = ctx.task.own(params), down.thresholds.to(ctx.task.device, copy=True)
        model = masked_training.begin(ctx, params, {}, self.training.rate(ctx))
        work = Work(model, {name: own[name] for name in ctx.task.layout.prunable}, t, local.known)
        self.mask(ctx, work)  # Algorithm 1, line 5
        model.start = model.masks
        return Job(replace(work, known=down.thresholds), self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        model, first = work.model, batch.steps - batch.per_epoch
        if batch.step < first:
            masked_training.step(ctx, self.training, model, batch)  # Algorithm 1, line 8: eq. 3
            model.model.clamp(1)
            return work
        if batch.step == first:
            settle(work)
        self.mask(ctx, work)
        loss, grads = ctx.task.gradients(model.params, batch, model.masks, everywhere=True)
        self.train_thresholds(work, grads)  # Algorithm 1, line 10
        masked_training.record(model, loss, batch)
        return work

    def train_thresholds(self, work: Work, grads: Params) -> None:
        t = work.thresholds
        grad = -torch.cat([row_sum(grads[n] * w) for n, w in work.weights.items()])  # eq. 6
        slope = torch.exp(-t) if self.regulariser == "exp" else 1 / (t.abs() + 0.1) ** 2
        grad.sub_(slope, alpha=self.alpha)  # eq. 4
        if self.training.clip:
            optim.clip([grad], self.training.clip)
        if work.velocity is not None:
            grad = work.velocity.mul_(self.training.momentum).add_(grad)
        work.velocity = grad
        rate = self.eta_tau * (work.model.rate / self.training.lr) or work.model.rate
        t.add_(grad * -rate).clamp_(0, 1)

    def mask(self, ctx: Ctx, work: Work) -> None:
        """Masks by the current thresholds; a layer that is almost empty is reset (A.1.1)."""
        masks = {}
        for name, part in by_layer(ctx.task.layout, work.thresholds).items():
            masks[name] = mask_of(work.weights[name], part, self.structured)
            if int(masks[name].count_nonzero()) / masks[name].numel() < self.reset_density:
                masks[name] = mask_of(work.weights[name], part.zero_(), self.structured)
                work.resets += 1
        work.model.masks = masks
        work.model.params.update(pruned(work.weights, work.model.factors))

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        model, parts = work.model, by_layer(ctx.task.layout, work.thresholds)
        metrics = {
            "loss": masked_training.mean_loss(model),
            "layer_density": fmean(float(mask.float().mean()) for mask in model.start.values()),
            "resets": float(work.resets),
            **{f"threshold.{name}": float(part.mean()) for name, part in parts.items()},
        }
        local = Local(work.params, work.known)
        trained = masked_training.trained(model.start, 1 / self.training.epochs)  # eq. 6
        return Result(Up(work.thresholds), local, model.start, trained, metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """A client's sparse model after the latest broadcast."""
        local = local or newcomer(ctx)
        equal = (state.history == local.known).all(1).nonzero()
        versions = state.history[int(equal[-1]) if len(equal) else 0 :]
        params = self.followed(ctx, local.params, versions)
        parts = by_layer(ctx.task.layout, versions[-1]).items()
        return pruned(params, {n: mask_of(params[n], part, self.structured) for n, part in parts})

    def followed(self, ctx: Ctx, params: Params, versions: Tensor) -> Params:
        """Algorithm 1, line 15, for all broadcasts after the first of `versions`."""
        changes = versions.double().diff(dim=0)
        if not (self.importance and changes.any()):
            return params
        parts = by_layer(ctx.task.layout, changes).items()
        return params | {name: follow(params[name], part) for name, part in parts}


def settle(work: Work) -> None:
    """Takes over what was trained; weights stay within [-1, 1]."""
    params = work.params
    for name, weight in work.weights.items():
        weight.copy_(params[name]).clamp_(-1, 1)


def check_epochs(training: Training) -> None:
    if training.epochs < 2:
        raise ValueError("the last epoch trains thresholds only; `epochs=` must be at least 2")


def newcomer(ctx: Ctx) -> Local:
    """A client before its first round: the common first weights, and thresholds of zero."""
    return Local(ctx.task.init(ctx.common.fold("init")), torch.zeros(ctx.task.layout.rows))


def by_layer(layout: Layout, vectors: Tensor) -> Params:
    """Each layer's part of vectors with one number per neuron; parts share their memory."""
    counts = [layout[name].rows for name in layout.prunable]
    parts = torch.split_with_sizes(vectors, counts, dim=-1)
    return dict(zip(layout.prunable, parts, strict=True))


def column(vector: Tensor, like: Tensor) -> Tensor:
    return vector.view(-1, *[1] * (like.dim() - 1))


def row_sum(tensor: Tensor) -> Tensor:
    """The sum over the weights of each neuron; a bias has one weight per neuron."""
    return tensor.sum(tuple(range(1, tensor.dim()))) if tensor.dim() > 1 else tensor


def mask_of(weight: Tensor, thresholds: Tensor, structured: bool) -> Tensor:
    """True where a weight, or the mean magnitude of its neuron, is above the threshold."""
    size = weight.abs()
    if structured:
        size = column(row_sum(size) / weight[0].numel(), weight).expand_as(weight)
    return size > column(thresholds, weight)  # eq. 2


def pruned(params: Params, masks: Masks) -> Params:
    return params | {name: params[name] * mask for name, mask in masks.items()}


def follow(weight: Tensor, changes: Tensor) -> Tensor:
    """Equation 12 for a layer and each change of its thresholds, one row each.

    A neuron whose threshold fell is important: its weights grow along their dominant sign. A change
    moves all weights of a neuron alike, so sums over neurons are carried from one change to the
    next and weights are touched once, unless they could leave [-1, 1] on the way.
    """
    fan_in = weight[0].numel()
    if float(weight.abs().max()) + float(changes.abs().sum(0).max() / fan_in) > 1:
        for change in changes:
            step = -row_sum(weight).double().sign() * change / fan_in
            weight = (weight + column(step.to(weight.dtype), weight)).clamp_(-1, 1)
        return weight
    sums, total = row_sum(weight).double(), torch.zeros_like(changes[0])
    for change in changes:
        step = -sums.sign() * change
        sums, total = sums + step, total + step
    return weight + column((total / fan_in).to(weight.dtype), weight)
