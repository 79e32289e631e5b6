"""SpaFL: a trainable threshold per neuron prunes it, and thresholds are all that travels.

Kim, Saad, Debbah, Hong: SpaFL: Communication-efficient federated learning with sparse models and
low computational overhead. NeurIPS 2024. https://arxiv.org/abs/2406.00431

Every client keeps weights of its own. It trains them under the mask of the thresholds it received,
then trains the thresholds with the weights at rest; the server averages thresholds. What others
changed tells a client which neurons matter, and it moves its weights accordingly (`Importance`).

The default is the algorithm of the paper's first version; `bytecode` and `release` are the two
generations of its code, with their defects only where `bug_compat` asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from gossamer import merge
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.methods import thresholds as rule
from gossamer.methods.pruner import Pruner, Work
from gossamer.methods.thresholds import Importance, Regularisation, Rows
from gossamer.optim import Training
from gossamer.wire import EXACT

NOTHING = torch.zeros(0)
_THRESHOLDS = "the thresholds"
_BLOCK = 64  # rows of the history looked through at once


@dataclass(frozen=True)
class Server:
    history: Tensor
    """Thresholds after every aggregation, one row each; the first row is where all begin."""
    seen: Tensor
    """By client id: how many of these rows the client knows."""
    norm: Params


@dataclass(frozen=True)
class Down:
    thresholds: Tensor = field(metadata=EXACT)
    missed: Tensor = field(metadata=EXACT)
    """Earlier thresholds, told to all while this client was not listening, oldest first."""
    norm: Params
    start: Params


@dataclass(frozen=True)
class Up:
    thresholds: Tensor = field(metadata=EXACT)
    norm: Params


@dataclass(frozen=True)
class Local:
    params: Params
    known: Tensor
    """The thresholds last received."""
    own: Tensor
    """The thresholds as this client trained them."""
    velocity: Params
    pace: Tensor
    """Momentum of thresholds, where it is kept."""
    densities: Tensor
    """Of each layer at the last batch."""


@dataclass(frozen=True)
class SpaFL:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training(epochs=3, batch=64, lr=0.001, momentum=0.9)
    pruning: Pruner = Pruner()
    importance: Importance = Importance()
    threshold_classifier: bool = option(True, "whether the last linear layer has thresholds too")
    momentum_state: Literal["reset", "persist"] = option(
        "reset", "momentum begins anew in each round, or is kept by the client"
    )
    downlink: Literal["all", "sampled"] = option(
        "all", "who hears of new thresholds: everybody, or only clients about to train"
    )
    delta_ref: Literal["last-received", "last-server-step"] = option(
        "last-received", "what counts as change for a client that hears of thresholds when sampled"
    )
    eval_point: Literal["after", "before"] = option(
        "after", "test clients with the new thresholds, or with their own before these arrive"
    )
    share_norm: bool = option(False, "also average biases and normalisation")
    start: Literal["seed", "sent"] = option(
        "seed", "first weights come from the common seed, or are sent to each client once"
    )
    weighting: merge.Weighting = option("uniform", "what a client counts for in the mean")

    @property
    def accounting(self) -> Accounting:
        """As the paper counts: every client is charged for thresholds, nobody for first weights."""
        recipients: Literal["all", "sampled"] = "all" if self.downlink == "all" else "sampled"
        return Accounting(recipients=recipients, uncharged="missed,start")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        self.pruning.check(self.training)
        count = self._rows(ctx).total
        if not count:
            raise ValueError("this model has no layer that may be pruned; see --prunable")
        norm = self._norm(ctx, ctx.task.init(ctx.common.fold("init"))) if self.share_norm else {}
        return Server(torch.zeros(1, count), torch.zeros(0, dtype=torch.int32), norm)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        seen = int(state.seen[client.id]) if client.id < len(state.seen) else 0
        if self.downlink == "all":
            missed = state.history[max(seen, 1) : -1]
        elif self.delta_ref == "last-server-step":
            missed = state.history[-2:-1]
        else:
            missed = state.history[:0]
        first = ctx.task.init(ctx.common.fold("init")) if self.start == "sent" and not seen else {}
        return Down(state.history[-1], missed, state.norm, first)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        heard: list[int] = []

        def replies() -> Iterable[tuple[Params, float]]:
            for exchange in exchanges:
                sent, found = exchange.down, exchange.up
                wanted = {**sent.norm, _THRESHOLDS: sent.thresholds}
                fitting = merge.fitting({**found.norm, _THRESHOLDS: found.thresholds}, wanted)
                yield fitting, merge.weight(exchange.client, self.weighting)
                heard.append(exchange.client.id)

        mean = merge.mean(replies())
        if not heard:
            return state
        seen = state.seen.new_zeros(max(len(state.seen), max(heard) + 1))
        seen[: len(state.seen)] = state.seen
        seen[heard] = len(state.history)
        # Who hears of thresholds only when sampled never needs more than the last two.
        kept = state.history if self.downlink == "all" else state.history[-1:]
        history = torch.cat([kept, mean.pop(_THRESHOLDS)[None]])
        return Server(history, seen, mean)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What the answer to a message looks like."""
        return [Up(down.thresholds, down.norm)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        self.pruning.check(self.training)
        rows = self._rows(ctx)
        held = local or self._newcomer(ctx, down.start)
        old = held.known[None]
        if self.downlink == "sampled" and self.delta_ref == "last-server-step":
            old = NOTHING.view(0, rows.total)  # the step before comes with the message
        versions = torch.cat([old, down.missed, down.thresholds[None]])
        params = self.importance.apply(rows, held.params, versions, self.pruning.clamp)
        velocity: dict[str, Tensor | None] = {**ctx.task.own(held.velocity)}
        work = Work(
            rows,
            ctx.task.own({**params, **down.norm}),
            down.thresholds.to(ctx.task.device, copy=True),
            down.thresholds,
            self.training.rate(ctx),
            velocity,
            held.pace.to(ctx.task.device, copy=True) if len(held.pace) else None,
            dict(zip(rows.names, held.densities.tolist(), strict=True)),
        )
        self.pruning.mask(work)
        work.active = work.kept
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        self.pruning.step(ctx, self.training, work, batch)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        rows = work.rows
        keeps = self.momentum_state == "persist"
        velocity = {name: v for name, v in work.velocity.items() if v is not None} if keeps else {}
        densities = torch.tensor([work.densities[name] for name in rows.names])
        parts = rows.split(work.thresholds)
        return Result(
            up=Up(work.thresholds, self._norm(ctx, work.params) if self.share_norm else {}),
            local=Local(
                work.params,
                work.known,
                work.thresholds,
                velocity,
                work.pace if keeps and work.pace is not None else NOTHING,
                densities,
            ),
            masks=work.active,
            metrics={
                "loss": work.loss.item() / max(work.examples, 1),
                "layer_density": rule.mean_density(work.active),
                "resets": float(work.resets),
                **{f"threshold.{name}": float(part.mean()) for name, part in parts.items()},
            },
        )

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """A client's sparse model; that of no client is what a newcomer would begin with."""
        rows = self._rows(ctx)
        held = local or self._newcomer(ctx, {})
        params, now = held.params, held.own
        if self.downlink == "all":
            known = self._version(state, held.known)
            told = len(state.history) - (self.eval_point == "before" and len(state.history) > 1)
            if known < told - 1 or self.eval_point == "after":
                versions = state.history[known:told]
                params = self.importance.apply(rows, params, versions, self.pruning.clamp)
                now = versions[-1]
        if self.share_norm and now is not held.own:  # it comes with the thresholds
            params = {**params, **state.norm}
        masks = dict(rule.masks_of(rows, params, now, self.pruning.structured))
        if self.pruning.bug_compat != "none":
            late = dict(zip(rows.names, held.densities.tolist(), strict=True))
            masks = {
                name: kept for name, kept in masks.items() if not self.pruning.scant(late[name])
            }
        return rule.pruned(params, masks)

    # parts ----------------------------------------------------------------------------------------

    def _rows(self, ctx: Ctx) -> Rows:
        return Rows.of(ctx.task.layout, self.threshold_classifier)

    def _norm(self, ctx: Ctx, params: Params) -> Params:
        """Biases and normalisation, with its running statistics."""
        leaves = ctx.task.layout.leaves
        return {
            name: params[name]
            for name, leaf in leaves.items()
            if leaf.kind in ("norm", "bias", "buffer")
        }

    def _newcomer(self, ctx: Ctx, sent: Params) -> Local:
        """A client before its first round: the common weights, and thresholds of zero."""
        rows = self._rows(ctx)
        zero = torch.zeros(rows.total)
        params = sent or ctx.task.init(ctx.common.fold("init"))
        return Local(params, zero, zero, {}, NOTHING, torch.ones(len(rows.names)))

    def _version(self, state: Server, known: Tensor) -> int:
        """Which thresholds of the server's history a client knows: the last that are equal."""
        for end in range(len(state.history), 0, -_BLOCK):
            start = max(end - _BLOCK, 0)
            equal = (state.history[start:end] == known).all(1).nonzero()
            if len(equal):
                return start + int(equal[-1])
        return 0


def bytecode() -> SpaFL:
    """The older generation of the authors' code, which the paper's first version was run with."""
    plain = SpaFL()
    return replace(
        plain,
        pruning=Pruner(
            Regularisation(reg_warmup="first", reg_off_density=0.1),
            mask_refresh="first-epoch",
            norm_in_tau_epoch=True,
            clamp=False,
            reset_inclusive=True,
        ),
        importance=Importance(importance_divisor="kernel"),
        momentum_state="persist",
    )


def release() -> SpaFL:
    """The code released with the NeurIPS version: whole neurons, everything trained at once."""
    plain = SpaFL()
    return replace(
        plain,
        training=replace(plain.training, epochs=5),
        pruning=Pruner(
            Regularisation(reg_warmup="logistic"),
            structured=True,
            phases="joint",
            mask_refresh="batch",
            mask_grad_to_weight=True,
            clamp=False,
            reset_inclusive=True,
        ),
        importance=Importance(importance_divisor="kernel"),
        momentum_state="persist",
        downlink="sampled",
        delta_ref="last-server-step",
        eval_point="before",
    )
