"""SpaFL as its authors' two codes run it, and other readings of its contradictory paper.

With its defaults `SpaFLVariants` is SpaFL. docs/contradictions.md has the source of every option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, prod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gossamer import fields, merge
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.as_published.spafl_training import Pruning, Work
from gossamer.methods.parts import masked_training
from gossamer.methods.spafl import by_layer, column, mask_of, pruned, row_sum
from gossamer.optim import Training
from gossamer.task.layout import Layout
from gossamer.trust.declared import Privacy
from gossamer.wire import EXACT

NOTHING = torch.zeros(0)
Move = Callable[[Tensor, Tensor], Tensor]  # by sums over neurons and changes of thresholds


@dataclass(frozen=True)
class Server:
    history: Tensor  # thresholds after every aggregation, one row each; the first row is zero
    seen: Tensor  # by client id: how many of these rows the client has received
    norm: Params


@dataclass(frozen=True)
class Down:
    thresholds: Tensor = field(metadata=EXACT)
    missed: Tensor = field(metadata=EXACT)  # earlier broadcasts this client did not receive
    norm: Params
    start: Params  # the first weights, where they are sent


@dataclass(frozen=True)
class Up:
    thresholds: Tensor = field(metadata=EXACT)
    norm: Params


@dataclass(frozen=True)
class Local:
    params: Params
    known: Tensor  # the thresholds last received
    own: Tensor  # the thresholds after local training
    velocity: Params
    pace: Tensor  # the velocity of thresholds
    densities: Tensor  # of each layer at the last batch


@dataclass(frozen=True)
class SpaFLVariants:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training(epochs=3, batch=64, lr=0.001, momentum=0.9)
    pruning: Pruning = Pruning()
    importance_rule: Literal["signed", "xor01", "xorpm", "none"] = option(
        "signed", "equation 12: as the text describes it, its XOR as 0/1 or as -1/1, or not at all"
    )
    importance_divisor: Literal["fan_in", "kernel"] = option(
        "fan_in", "divisor in equation 12: all inputs of a neuron, or those of one channel"
    )
    threshold_classifier: bool = option(True, "whether the last linear layer has thresholds too")
    momentum_state: Literal["reset", "persist"] = option(
        "reset", "momentum starts from zero in each round, or is kept by the client"
    )
    downlink: Literal["all", "sampled"] = option("all", "who receives the new thresholds")
    delta_ref: Literal["last-received", "last-server-step"] = option(
        "last-received", "reference of the change of thresholds that only sampled clients receive"
    )
    eval_point: Literal["after", "before"] = option(
        "after", "evaluate clients after or before they receive the new thresholds"
    )
    share_norm: bool = option(False, "also average biases and normalisation")
    weight_start: Literal["seed", "sent"] = option(
        "seed", "first weights come from the common seed, or are sent to each client once"
    )
    weighting: merge.Weighting = option("uniform", "how client updates are weighted")
    own_optimiser: ClassVar[bool] = True
    global_model: ClassVar[bool] = False

    @property
    def accounting(self) -> Accounting:
        return Accounting(recipients=self.downlink, uncharged="missed,start")

    @property
    def privacy(self) -> Privacy:
        unknown = Privacy(refused="follows its authors' codes, which know no noise; use spafl")
        bounded = self.pruning.clamp and not self.share_norm
        return replace(unknown, least=0, most=1) if bounded else unknown

    def check(self) -> None:
        """Refuses settings that contradict each other, or have no effect."""
        self.pruning.check(self.training)
        if self.importance_rule == "none" and self.importance_divisor != "fan_in":
            raise ValueError(
                f"`importance_divisor={self.importance_divisor!r}` has no effect with "
                "`importance_rule='none'`; leave it out"
            )
        if self.downlink == "all" and self.delta_ref != "last-received":
            raise ValueError(
                f"`delta_ref={self.delta_ref!r}` has no effect where all clients receive every "
                "threshold; add `downlink='sampled'`"
            )
        if self.downlink == "sampled" and self.eval_point != "after":
            raise ValueError(
                f"`eval_point={self.eval_point!r}` has no effect with `downlink='sampled'`: "
                "clients are always evaluated with the thresholds that they have; leave it out"
            )

    def init(self, ctx: Ctx) -> Server:
        self.check()
        count = self._layout(ctx).rows
        if not count:
            raise ValueError("this model has no layer that may be pruned; see `prunable=`")
        norm = self._norm(ctx, ctx.task.init(ctx.common.fold("init")))
        return Server(torch.zeros(1, count), torch.zeros(0, dtype=torch.int32), norm)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        seen = int(state.seen[client.id]) if client.id < len(state.seen) else 0
        if self.downlink == "all":
            missed = state.history[max(seen, 1) : -1]
        else:
            missed = state.history[-2:-1] if self._last_step else state.history[:0]
        first = (
            ctx.task.init(ctx.common.fold("init"))
            if self.weight_start == "sent" and not seen
            else {}
        )
        return Down(state.history[-1], missed, state.norm, first)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        replies = {
            each.client: merge.fitting(shared(each.up), shared(each.down))
            for each in exchanges
            if not self.pruning.clamp or merge.within(each.up.thresholds, 0, 1)
        }
        if not replies:
            return state
        weighting, ids = self.weighting, [client.id for client in replies]
        mean = merge.mean((reply, merge.weight(c, weighting)) for c, reply in replies.items())
        seen = state.seen.new_zeros(max(len(state.seen), max(ids) + 1))
        seen[: len(state.seen)] = state.seen
        seen[ids] = len(state.history)
        # Clients that receive thresholds only when sampled never need more than the last two.
        history = state.history if self.downlink == "all" else state.history[-1:]
        return Server(torch.cat([history, mean.pop("")[None]]), seen, mean)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return [Up(down.thresholds, down.norm)]

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        self.check()
        layout, local = self._layout(ctx), local or self._newcomer(ctx, down.start)
        before = local.known[None][: 0 if self._last_step else 1]  # else it comes with the message
        versions = torch.cat([before, down.missed, down.thresholds[None]])
        params = {**self.followed(layout, local.params, versions), **down.norm}
        device = ctx.task.device
        work = Work(
            masked_training.begin(ctx, params, {}, self.training.rate(ctx)),
            layout,
            down.thresholds.to(device, copy=True),
            down.thresholds,
            {**ctx.task.own(local.velocity)},
            local.pace.to(device, copy=True) if len(local.pace) else None,
            dict(zip(layout.prunable, local.densities.tolist(), strict=True)),
        )
        self.pruning.mask(work)
        work.active = work.model.masks
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        self.pruning.step(ctx, self.training, work, batch)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        model, velocity, pace = work.model, {}, NOTHING
        if self.momentum_state == "persist":
            velocity = {name: v for name, v in work.weight_velocity.items() if v is not None}
            pace = NOTHING if work.velocity is None else work.velocity
        late = torch.tensor([work.densities[name] for name in work.layout.prunable])
        densities = [float(mask.float().mean()) for mask in work.active.values()]
        parts = by_layer(work.layout, work.thresholds)
        return Result(
            Up(work.thresholds, self._norm(ctx, model.params)),
            Local(model.params, work.known, work.thresholds, velocity, pace, late),
            work.active,
            masked_training.trained(work.active, self.pruning.dense_share(self.training)),
            {
                "loss": masked_training.mean_loss(model),
                "layer_density": fsum(densities) / len(densities),
                "resets": float(work.resets),
                **{f"threshold.{name}": float(part.mean()) for name, part in parts.items()},
            },
        )

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """A client's sparse model with the thresholds that it is evaluated with."""
        layout, local = self._layout(ctx), local or self._newcomer(ctx, {})
        params, thresholds = local.params, local.own
        if self.downlink == "all":
            equal = (state.history == local.known).all(1).nonzero()
            known = int(equal[-1]) if len(equal) else 0
            end = len(state.history) - (self.eval_point == "before" and len(state.history) > 1)
            if known < end - 1 or self.eval_point == "after":
                versions = state.history[known:end]
                params, thresholds = self.followed(layout, params, versions), versions[-1]
                params = {**params, **state.norm}  # it comes with the thresholds
        late = dict(zip(layout.prunable, local.densities.tolist(), strict=True))
        masks = {
            name: mask_of(params[name], part, self.pruning.structured)
            for name, part in by_layer(layout, thresholds).items()
            if self.pruning.bug_compat == "none" or not self.pruning.too_sparse(late[name])
        }
        return pruned(params, masks)

    def followed(self, layout: Layout, params: Params, versions: Tensor) -> Params:
        """Weights after all broadcasts that follow the first of `versions`."""
        changes = versions.double().diff(dim=0)
        if self.importance_rule == "none" or not changes.any():
            return params
        move, clamp = MOVES[self.importance_rule], self.pruning.clamp
        updated = dict(params)
        for name, part in by_layer(layout, changes).items():
            kernel = prod(layout[name].shape[2:]) if len(layout[name].shape) > 2 else 0
            divisor = kernel if self.importance_divisor == "kernel" else 0
            updated[name] = follow(params[name], part, move, divisor, clamp)
        return updated

    @property
    def _last_step(self) -> bool:
        return self.downlink == "sampled" and self.delta_ref == "last-server-step"

    def _layout(self, ctx: Ctx) -> Layout:
        """The layout in which a tensor with thresholds is prunable, and no other."""
        layout = ctx.task.layout
        if self.threshold_classifier:
            return layout
        linear = [name for name, leaf in layout.leaves.items() if leaf.kind == "linear"]
        return layout.choose([name for name in layout.prunable if name not in linear[-1:]])

    def _norm(self, ctx: Ctx, params: Params) -> Params:
        """Biases and normalisation, with its running statistics, where they are shared."""
        leaves = ctx.task.layout.leaves.values() if self.share_norm else ()
        kinds = ("norm", "bias", "buffer")
        return {leaf.name: params[leaf.name] for leaf in leaves if leaf.kind in kinds}

    def _newcomer(self, ctx: Ctx, sent: Params) -> Local:
        """A client before its first round: the common weights, and thresholds of zero."""
        layout = self._layout(ctx)
        params = sent or ctx.task.init(ctx.common.fold("init"))
        zero = torch.zeros(layout.rows)
        return Local(params, zero, zero, {}, NOTHING, torch.ones(len(layout.prunable)))


def shared(message: Down | Up) -> Params:
    return {**message.norm, "": message.thresholds}


def follow(weight: Tensor, changes: Tensor, move: Move, divisor: int, clamp: bool) -> Tensor:
    """Equation 12 in every reading; as in `spafl.follow`, weights are touched once if possible."""
    fan_in = weight[0].numel()
    divisor = divisor or fan_in
    farthest = changes.abs().sum(0).max() / divisor
    if clamp and float(weight.abs().max()) + float(farthest) > 1:
        for change in changes:
            step = move(row_sum(weight).double(), change) / divisor
            weight = (weight + column(step.to(weight.dtype), weight)).clamp_(-1, 1)
        return weight
    sums, total = row_sum(weight).double(), torch.zeros_like(changes[0])
    for change in changes:
        step = move(sums, change)
        sums = sums + fan_in / divisor * step
        total += step
    return weight + column((total / divisor).to(weight.dtype), weight)


def signed(sums: Tensor, change: Tensor) -> Tensor:
    return -sums.sign() * change


def xor01(sums: Tensor, change: Tensor) -> Tensor:
    return change * (sums.sign() * change.sign() < 0)


def xorpm(sums: Tensor, change: Tensor) -> Tensor:
    signs = sums.sign()
    return torch.where(signs * change.sign() < 0, change, -change) * signs.abs()


MOVES = {"signed": signed, "xor01": xor01, "xorpm": xorpm}


BYTECODE = {
    "reg_warmup": "first",
    "reg_off_density": 0.1,
    "mask_refresh": "first-epoch",
    "norm_in_tau_epoch": True,
    "clamp": False,
    "reset_inclusive": True,
    "importance_divisor": "kernel",
    "momentum_state": "persist",
}
"""The older generation of the authors' code, which the paper's first version was run with."""

RELEASE = {
    "epochs": 5,
    "reg_warmup": "logistic",
    "structured": True,
    "phases": "joint",
    "mask_refresh": "batch",
    "mask_grad_to_weight": True,
    "clamp": False,
    "reset_inclusive": True,
    "importance_divisor": "kernel",
    "momentum_state": "persist",
    "downlink": "sampled",
    "delta_ref": "last-server-step",
}
"""The code released with the NeurIPS version: whole neurons, everything trained at once."""

ENTRIES: dict[str, Any] = {
    "spafl-iclr-bytecode": fields.replace(SpaFLVariants(), BYTECODE),
    "spafl-neurips-release": fields.replace(SpaFLVariants(), RELEASE),
    "spafl-variants": SpaFLVariants(),
}
