"""PFFDST: train half of a sparse model, freeze it, then train the other half beside it.

What is frozen is sent to a client once and kept there, so that every message carries half of the
model. The server readjusts the mask: it prunes the smallest weights and grows others at random, and
no mask ever goes up. While it does, a little more than the final density is active.

PFFDST: parameter-freezing federated dynamic sparse training, 2025; the released code is
https://github.com/Dawns14/pffdst

Differs from the authors' code: that run freezes the model that did best on test data, readjusts in
the first phase only and never prunes the last growth. Here the last model is frozen (or the best on
clients' validation data), both phases readjust, and the density asked for is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gossamer import masks as rule
from gossamer import merge
from gossamer.core import (
    Batch,
    Client,
    Ctx,
    Exchange,
    Job,
    Masks,
    Measures,
    Missing,
    Params,
    Result,
)
from gossamer.cost import Accounting
from gossamer.fields import option
from gossamer.masks import Change
from gossamer.methods import feddst, sparse
from gossamer.methods.feddst import Weighting
from gossamer.methods.phases import Phases
from gossamer.methods.sparse import BatchNorm
from gossamer.optim import Training
from gossamer.wire import Packed, Revision, WireError, unpack

NOBODY = torch.zeros(0, dtype=torch.int32)


@dataclass(frozen=True)
class Server:
    params: Params
    masks: Masks
    """All that is active, frozen or not."""
    frozen: Masks
    """Empty in the first phase."""
    version: int
    held: Tensor
    """By client id: the version of the masks that the client holds, or -1."""
    holders: Tensor
    """By client id: 1 if the client holds the frozen part, or -1."""
    trimmed: bool
    """Whether this phase has pruned its last growth."""
    best: Params
    """The model of the first phase that did best on validation data, where that will be frozen."""
    best_masks: Masks
    best_score: float


@dataclass(frozen=True)
class Frozen:
    """The part of the model that every client receives once."""

    values: Packed
    masks: Masks


@dataclass(frozen=True)
class Down:
    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None
    """Of what is trained; nothing, if the client holds it."""
    frozen: Frozen | None
    keeps: bool
    """Whether there is a frozen part, sent or held."""


@dataclass(frozen=True)
class Up:
    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None
    """Only if clients readjust masks."""
    score: float | None
    """Of the model received, on the client's validation data."""


@dataclass(frozen=True)
class Local:
    masks: Masks
    frozen: Frozen | None


@dataclass
class Work:
    model: sparse.Work
    frozen: Frozen | None
    score: float | None


@dataclass(frozen=True)
class PFFDST:
    clients: int = option(20, "clients per round", least=1)
    training: Training = replace(feddst.TRAINING, epochs=2)
    phases: Phases = Phases()
    start: Literal["magnitude", "random"] = option(
        "magnitude", "the first mask has the largest first weights, or any"
    )
    freeze_from: Literal["last", "best-valid"] = option(
        "last", "which model of the first phase is frozen"
    )
    freeze_norm: bool = option(False, "scales of normalisation rest too while others are frozen")
    weighting: Weighting = option("samples", "what a client counts for in the mean")
    replacement: bool = option(False, "draw clients with replacement; one drawn twice trains once")
    bn: BatchNorm = option("running", "statistics are averaged, or found anew before a test")
    accounting: Accounting = Accounting(uncharged="keeps,score")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if self.phases.freezing and ctx.rounds < 2:
            raise ValueError("two phases need two rounds; use --rounds 2 or more, or --no-freezing")
        params = ctx.task.init(ctx.common.fold("init"))
        quotas = self.phases.quotas(ctx, self.phases.part + self.phases.extra)
        masks = feddst.first_masks(ctx, params, quotas, self.start)
        return Server(rule.masked(params, masks), masks, {}, 0, NOBODY, NOBODY, False, {}, {}, -1.0)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return feddst.drawn(ctx, pool, self.clients, self.replacement)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        current = sparse.holds(state.held, client, state.version)
        return self._message(ctx, state, current, sparse.holds(state.holders, client, 1))

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask or the frozen part."""
        return self._message(ctx, state, knows=False, keeps=False)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        met: list[int] = []
        scores: list[tuple[float, float]] = []
        average = rule.masked_mean(self._replies(ctx, state, exchanges, met, scores), "wfa")
        if not met:
            return state
        # Frozen weights are not among what came back, and stay as they are to the last bit.
        trained = {
            name: torch.where(state.frozen[name], state.params[name], tensor)
            if name in state.frozen
            else tensor
            for name, tensor in average.params.items()
        }
        masks = rule.either(average.owned, state.frozen) if state.frozen else average.owned
        moved = any(not torch.equal(mask, state.masks[name]) for name, mask in masks.items())
        known = sparse.marked(state.held, met, -1 if moved else state.version)
        state = self._scored(state, scores)
        state = replace(
            state,
            params={**state.params, **trained},
            masks=masks if moved else state.masks,
            version=state.version + moved,
            held=known,
            holders=sparse.marked(state.holders, met, 1) if state.frozen else state.holders,
        )
        state = self._readjusted(ctx, state)
        over = self.phases.freezing and ctx.round >= self.phases.half(ctx) and not state.frozen
        return self._frozen(ctx, state) if over else state

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What the answer to a message looks like."""
        layout = ctx.task.layout
        blank = {name: torch.zeros(layout[name].shape) > 0 for name in down.values.values}
        mask = Revision(blank) if self.phases.share(ctx) else None
        return [Up(down.values, down.dense, down.buffers, mask, 0.0 if self._scores(ctx) else None)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        masks = down.mask.masks if down.mask else local.masks if local else None
        frozen = down.frozen or (local.frozen if local and down.keeps else None)
        if masks is None or (down.keeps and frozen is None):
            raise Missing("the mask or the frozen part was not sent, and is not held here")
        params = sparse.joined(ctx, down.values, masks, down.dense, down.buffers)
        if frozen:
            rests = unpack(frozen.values, frozen.masks)
            params |= {n: torch.where(m, rests[n], params[n]) for n, m in frozen.masks.items()}
        score = _score(ctx, params) if self._scores(ctx) else None
        model = sparse.begin(
            ctx, params, masks, self.training.rate(ctx), self.phases.share(ctx) > 0
        )
        if frozen:
            model.frozen = frozen.masks
            still = _scales(ctx) if self.freeze_norm else []
            model.kept |= {name: torch.zeros_like(model.params[name]) for name in still}
        return Job(Work(model, frozen, score), self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        sparse.descend(ctx, self.training, work.model, batch)
        if work.model.moves and batch.step + 1 == batch.steps:
            density = self.phases.wanted(ctx)
            low, high = (
                self.phases.quotas(ctx, density * kept) for kept in (1 - self.phases.share(ctx), 1)
            )
            everywhere = self.phases.readjustment.feddst_growth
            feddst.readjust(ctx, work.model, batch, low, high, everywhere)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        model, frozen = work.model, work.frozen
        # The server holds what is active in all, so with a frozen part it cannot name the base.
        base = None if frozen else model.start
        up = Up(
            sparse.values(model.params, model.masks),
            sparse.dense(ctx, model.params),
            sparse.buffers(ctx, model.params, self.bn),
            Revision(model.masks, base) if model.moves else None,
            work.score,
        )
        return Result(
            up,
            Local(model.start, frozen),
            rule.either(model.masks, frozen.masks) if frozen else model.masks,
            model.masks if frozen else {},
            sparse.metrics(model),
        )

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The masks of the model, and how much of it no longer changes."""
        frozen = sparse.total(state.frozen) / ctx.task.layout.total("count", state.masks)
        return Measures(state.masks, {"frozen_density": frozen})

    def _scores(self, ctx: Ctx) -> bool:
        first = ctx.round <= self.phases.half(ctx)
        return self.freeze_from == "best-valid" and self.phases.freezing and first

    # masks ----------------------------------------------------------------------------------------

    def _readjusted(self, ctx: Ctx, state: Server) -> Server:
        """The server prunes the smallest weights, and grows as many until it has done so last."""
        number, length = self.phases.clock(ctx)
        end = max(1, round(self.phases.until * length))
        if self.phases.readjust == "client":
            quotas = self.phases.quotas(ctx, self.phases.wanted(ctx))
            if all(kept <= quotas[name] for name, kept in rule.count(state.masks).items()):
                return state
            left = rule.largest(state.params, quotas, state.masks, state.frozen or None)
            return self._changed(state, Change.of(state.masks, left, _none(left)))
        if not self.phases.extra or state.trimmed or (number < end and number % self.phases.every):
            return state
        low = self.phases.low(ctx, state.params, state.masks, state.frozen)
        high = rule.count(state.masks)
        if number >= end:
            high, state = low, replace(state, trimmed=True)
        key = ctx.key.fold("grow")
        change = rule.readjust(state.params, state.masks, low, high, key, state.frozen or None)
        return self._changed(state, change)

    def _frozen(self, ctx: Ctx, state: Server) -> Server:
        """The end of the first phase: what is there rests, and as much is grown beside it."""
        params, frozen = state.params, state.masks
        if state.best:
            params, frozen = {**params, **state.best}, state.best_masks
        room = {
            name: mask.numel() - n
            for (name, mask), n in zip(frozen.items(), rule.count(frozen).values(), strict=True)
        }
        wanted = self.phases.floors(ctx, self.phases.part + self.phases.extra)
        added = {name: min(number, room[name]) for name, number in wanted.items()}
        grown = rule.grow_random(ctx.key.fold("second"), frozen, added)
        state = replace(state, params=params, masks=frozen, frozen=frozen, holders=NOBODY)
        state = replace(state, trimmed=False, best={}, best_masks={})
        return self._changed(state, Change.of(frozen, frozen, grown))

    def _changed(self, state: Server, change: Change) -> Server:
        params = rule.masked(state.params, change.kept)
        return replace(state, params=params, masks=change.masks, version=state.version + 1)

    # messages -------------------------------------------------------------------------------------

    def _message(self, ctx: Ctx, state: Server, knows: bool, keeps: bool) -> Down:
        frozen = state.frozen
        trained = rule.without(state.masks, frozen) if frozen else state.masks
        sent = None
        if frozen and not keeps:
            sent = Frozen(sparse.values(state.params, frozen), frozen)
        # Who holds the frozen mask needs to be told of the free places only.
        base = frozen if frozen and keeps else None
        return Down(
            sparse.values(state.params, trained),
            sparse.dense(ctx, state.params),
            sparse.buffers(ctx, state.params, self.bn),
            None if knows else Revision(trained, base),
            sent,
            bool(frozen),
        )

    def _replies(
        self,
        ctx: Ctx,
        state: Server,
        exchanges: Iterable[Exchange[Down, Up]],
        met: list[int],
        scores: list[tuple[float, float]],
    ) -> Iterator[tuple[Params, Masks, float]]:
        trained = rule.without(state.masks, state.frozen) if state.frozen else state.masks
        quotas = sum(self.phases.quotas(ctx, self.phases.wanted(ctx)).values()) - sparse.total(
            state.frozen
        )
        allowed = max(sparse.total(trained), quotas)
        for exchange in exchanges:
            up, down = exchange.up, exchange.down
            masks = trained
            if up.mask is not None:
                masks = sparse.affordable(up.mask.masks, allowed)
                if any(bool((masks[name] & mask).any()) for name, mask in state.frozen.items()):
                    raise WireError("a mask came back with weights that are frozen")
            rest = merge.fitting({**up.dense, **up.buffers}, {**down.dense, **down.buffers})
            whole = sparse.joined(ctx, up.values, masks, rest)
            if self.bn == "static":
                whole = {name: whole[name] for name in ctx.task.layout.parameters}
            met.append(exchange.client.id)
            share = feddst.weight(exchange.client, self.weighting, self.training.batch)
            if up.score is not None:
                scores.append((up.score, share))
            yield whole, masks, share

    def _scored(self, state: Server, scores: Sequence[tuple[float, float]]) -> Server:
        """Remembers the model that clients just tried, if it did better than all before."""
        if not scores:
            return state
        mean = sum(score * share for score, share in scores) / sum(share for _, share in scores)
        if mean <= state.best_score:
            return state
        best = {name: state.params[name] for name in state.params}
        return replace(state, best=best, best_masks=state.masks, best_score=mean)


def without_freezing() -> PFFDST:
    """The ablation that readjusts at the server, in one phase."""
    return PFFDST(training=feddst.TRAINING, phases=Phases(freezing=False))


def without_readjustment() -> PFFDST:
    """The ablation that freezes, and leaves readjustment to clients, as FedDST does."""
    return PFFDST(training=feddst.TRAINING, phases=Phases(readjust="client"))


def _score(ctx: Ctx, params: Params) -> float:
    """The accuracy of a model on what the client holds back."""
    valid = ctx.own.valid
    if not len(valid):
        raise ValueError(
            "--freeze-from best-valid goes by clients' validation data, and this client has none; "
            "use e.g. --valid 0.1"
        )
    with torch.inference_mode():
        found = ctx.task.logits(ctx.task.own(params), valid.x.to(ctx.task.device)).argmax(-1)
    return float((found.cpu() == valid.y).double().mean())


def _scales(ctx: Ctx) -> list[str]:
    """Weights of normalisation layers."""
    leaves = ctx.task.layout.leaves
    return [n for n, leaf in leaves.items() if leaf.kind == "norm" and n.endswith("weight")]


def _none(masks: Mapping[str, Tensor]) -> Masks:
    return {name: torch.zeros_like(mask) for name, mask in masks.items()}
