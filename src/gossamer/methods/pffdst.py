"""PFFDST: train half of a sparse model, freeze it, then train the other half beside it.

What is frozen is sent to a client once and kept there, so that every message carries half of the
model. The server readjusts the mask: it prunes the smallest weights and grows others at random, and
no mask ever goes up. While it does, a little more than the final density is active.

PFFDST: parameter-freezing federated dynamic sparse training, 2025; the released code is
https://github.com/Dawns14/pffdst

Differs from the authors' code: there the model is frozen that did best on test data, clients are
drawn with replacement and count by batches, and neither the first model nor the frozen part is
charged (`code_parity`). Its flags contradict one another besides: the released run readjusts for
half of the first phase, never in the second, and keeps all that this one begins with (`released`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods import feddst, sparse
from gossamer.methods.feddst import First
from gossamer.methods.flash import SCHEDULE
from gossamer.methods.freezing import (
    Down,
    FreezeFrom,
    Local,
    Message,
    Reply,
    Up,
    Work,
    message,
    received,
    scales,
    score,
)
from gossamer.methods.parts.sensitivity_probe import Probe, Sensitivity, mean_sensitivity
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.methods.phases import Phases
from gossamer.methods.sparse import BatchNorm, Learning
from gossamer.methods.visits import Counted, Weighting, drawn, repeated, weight
from gossamer.optim import Training
from gossamer.sparsity import Change
from gossamer.wire import Drawn, Revision, WireError

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
    measured: dict[str, float]
    """Densities of layers that clients found, where they were asked."""
    best: Params
    """The model of the first phase that did best on validation data, where that will be frozen."""
    best_masks: Masks
    best_score: float
    mean_jaccard: float = 0.0
    """The mean Jaccard distance of two clients of the last round."""


@dataclass(frozen=True)
class PFFDST:
    clients: int = option(20, "clients per round", least=1)
    training: Training = replace(feddst.TRAINING, epochs=2)
    phases: Phases = Phases()
    learning: Learning = Learning()
    probe_clients: int = option(10, "clients of the first round, if it probes", least=1)
    probe_epochs: float = option(10.0, "epochs of that round", above=0)
    start: Literal["magnitude", "random"] = option(
        "magnitude", "the first mask has the largest first weights, or any"
    )
    freeze_from: FreezeFrom = option("last", "which model of the first phase is frozen")
    freeze_norm: bool = option(False, "scales of normalisation rest too while others are frozen")
    weighting: Weighting = option("samples", "what a client counts for in the mean")
    replacement: bool = option(
        False, "draw clients with replacement; one drawn twice trains once and counts twice"
    )
    free_first_download: bool = option(
        False, "clients of the first round draw its model from the seed, and are sent none"
    )
    bn: BatchNorm = option("running", "statistics are averaged, or found anew before a test")
    accounting: Accounting = Accounting(uncharged="keeps,score")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        least = self.phases.probes + (2 if self.phases.freezing else 1)
        if ctx.rounds < least:
            raise ValueError(
                f"two phases take a round each, and probing another; use --rounds {least} or more, "
                f"or --no-freezing"
            )
        self.learning.check(self.training)
        params = ctx.task.init(ctx.common.fold("init"))
        if self.phases.probes:
            masks = self._probed(ctx).masks()
        else:
            quotas = self.phases.quotas(ctx, self.phases.part + self.phases.extra)
            masks = feddst.first_masks(ctx, params, quotas, self.start)
        params = sparsity.masked(params, masks)
        return Server(params, masks, {}, 0, NOBODY, NOBODY, False, {}, {}, {}, -1.0)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        if self.phases.probing(ctx):
            return sample(ctx.key, pool, min(self.probe_clients, len(pool)))
        return drawn(ctx, pool, self.clients, self.replacement)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Message:
        if self.phases.probing(ctx):
            weights = sparse.values(state.params, state.masks)
            rest = sparse.dense(ctx, state.params), sparse.buffers(ctx, state.params, self.bn)
            return Probe(SparseModel(weights, *rest), self._probed(ctx), None)
        if self.free_first_download and ctx.round == 1:
            return First()
        current = sparse.holds(state.held, client, state.version)
        keeps = sparse.holds(state.holders, client, 1)
        return message(ctx, state.params, state.masks, state.frozen, self.bn, current, keeps)

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask or the frozen part."""
        return message(ctx, state.params, state.masks, state.frozen, self.bn, False, False)

    def merge(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Message, Reply]]
    ) -> Server:
        if self.phases.probing(ctx):
            return self._begun(ctx, state, exchanges)
        met: list[int] = []
        scores: list[tuple[float, float]] = []
        replies = self._replies(ctx, state, exchanges, met, scores)
        if self.replacement:
            replies = repeated(ctx, replies, met, self.clients)
        average = sparsity.masked_mean(replies, "wfa")
        if not met:
            return state
        # Frozen weights are not among what came back, and stay as they are to the last bit.
        trained = {
            name: torch.where(state.frozen[name], state.params[name], tensor)
            if name in state.frozen
            else tensor
            for name, tensor in average.params.items()
        }
        masks = sparsity.union(average.owned, state.frozen) if state.frozen else average.owned
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
            mean_jaccard=average.mean_jaccard,
        )
        parts = (state.params, state.masks, state.frozen, average)
        change = None if state.trimmed else self.phases.readjusted(ctx, *parts)
        if change is not None:
            state = self._changed(replace(state, trimmed=self.phases.trims(ctx)), change)
        return self._frozen(ctx, state) if self.phases.over(ctx) and not state.frozen else state

    def replies(self, ctx: Ctx, down: Message) -> Sequence[Reply]:
        """What the answer to a message looks like."""
        layout = ctx.task.layout
        if isinstance(down, Probe):
            return [Sensitivity(torch.zeros(len(layout.prunable)))]
        down = self._read(ctx, down)
        blank = {name: torch.zeros(layout[name].shape) > 0 for name in down.values.values}
        mask = Revision(blank) if self.phases.moves(ctx) else None
        return [Up(down.values, down.dense, down.buffers, mask, 0.0 if self._scores(ctx) else None)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Message, local: Local | None) -> Job[Work]:
        if isinstance(down, Probe):
            masks = down.mask.masks()
            sent = down.model
            params = sparse.joined(ctx, sent.values, masks, sent.dense, sent.buffers)
            model = sparse.begin(ctx, params, masks, self.training.lr, moves=True)
            model.probe, model.intended = True, self.phases.intended(ctx)
            return Job(Work(model, None, None), self.probe_epochs, self.training.batch)
        return self._job(ctx, self._read(ctx, down), local)

    def _read(self, ctx: Ctx, down: First | Down) -> Down:
        """The message itself, or what the first one stands for."""
        if isinstance(down, First):
            state = self.init(ctx)
            return message(ctx, state.params, state.masks, {}, self.bn, False, False)
        return down

    def _job(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        params, masks, frozen = received(ctx, down, local)
        tried = score(ctx, params, self.freeze_from) if self._scores(ctx) else None
        rate = self.training.rate(self.phases.since_probe(ctx))
        model = sparse.begin(ctx, params, masks, rate, self.phases.moves(ctx))
        model.intended = self.phases.intended(ctx)
        if frozen:
            model.frozen = frozen.masks
            still = scales(ctx) if self.freeze_norm else []
            model.kept |= {name: torch.zeros_like(model.params[name]) for name in still}
        return Job(Work(model, frozen, tried), self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        if work.model.probe or self.phases.readjust == "learned":
            sparse.step(ctx, self.training, self.learning, work.model, batch)
            return work
        sparse.descend(ctx, self.training, work.model, batch)
        if work.model.moves and batch.step + 1 == batch.steps:
            density = self.phases.wanted(ctx)
            low, high = (
                self.phases.quotas(ctx, density * kept) for kept in (1 - self.phases.share(ctx), 1)
            )
            everywhere = self.phases.readjustment.feddst_growth
            feddst.readjust(ctx, work.model, batch, low, high, everywhere)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Reply, Local]:
        model, frozen = work.model, work.frozen
        if model.probe:
            found = sparse.sensitivity(ctx, model)
            needed = sparse.trained(self.learning, model)
            return Result(Sensitivity(found), None, model.masks, needed, sparse.metrics(model))
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
            sparsity.union(model.masks, frozen.masks) if frozen else model.masks,
            model.masks if frozen else {},
            sparse.metrics(model),
        )

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The masks of the model, how much no longer changes, and how far clients are apart."""
        frozen = sparse.total(state.frozen) / ctx.task.layout.total("count", state.masks)
        return Measures(
            state.masks, {"frozen_density": frozen, "client_mismatch": state.mean_jaccard}
        )

    def _scores(self, ctx: Ctx) -> bool:
        first = self.phases.clock(ctx)[0] == 1
        return self.freeze_from != "last" and self.phases.freezing and first

    # masks ----------------------------------------------------------------------------------------

    def _probed(self, ctx: Ctx) -> Drawn:
        """The mask that is probed: random, as dense as the model will be in the end."""
        quotas = self.phases.quotas(ctx, sparsity.as_fraction(self.phases.density))
        shapes = {name: ctx.task.layout[name].shape for name in quotas}
        return Drawn.by(ctx.common.fold("masks", 0), quotas, shapes)

    def _begun(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Message, Reply]]
    ) -> Server:
        """The end of the probe: a random mask with the densities that clients found."""
        measured = mean_sensitivity(ctx, (exchange.up for exchange in exchanges))
        if not measured:
            return state
        quotas = self.phases.quotas(ctx, self.phases.part + self.phases.extra, measured)
        masks = sparsity.random_masks(ctx.common.fold("masks", 1), ctx.task.layout, quotas)
        params = sparsity.masked(ctx.task.init(ctx.common.fold("init", 1)), masks)
        plain = {name: float(share) for name, share in measured.items()}
        return replace(state, params=params, masks=masks, version=1, measured=plain)

    def _frozen(self, ctx: Ctx, state: Server) -> Server:
        """The end of the first phase: what is there rests, and as much is grown beside it."""
        params, frozen = state.params, state.masks
        if state.best:
            params, frozen = {**params, **state.best}, state.best_masks
        measured = {name: sparsity.as_fraction(share) for name, share in state.measured.items()}
        change = self.phases.second(ctx, frozen, measured)
        state = replace(state, params=params, masks=frozen, frozen=frozen, holders=NOBODY)
        state = replace(state, trimmed=False, best={}, best_masks={})
        return self._changed(state, change)

    def _changed(self, state: Server, change: Change) -> Server:
        params = sparsity.masked(state.params, change.kept)
        return replace(state, params=params, masks=change.masks, version=state.version + 1)

    def _replies(
        self,
        ctx: Ctx,
        state: Server,
        exchanges: Iterable[Exchange[Message, Reply]],
        met: list[int],
        scores: list[tuple[float, float]],
    ) -> Iterator[Counted]:
        trained = sparsity.difference(state.masks, state.frozen) if state.frozen else state.masks
        quotas = self.phases.quotas(ctx, self.phases.wanted(ctx))
        allowed = max(sparse.total(trained), sum(quotas.values()) - sparse.total(state.frozen))
        known = sparse.dense(ctx, state.params) | sparse.buffers(ctx, state.params, self.bn)
        for exchange in exchanges:
            up = exchange.up
            if not isinstance(up, Up):
                raise WireError("densities of layers came back where weights were asked for")
            masks = trained
            if up.mask is not None:
                masks = sparse.affordable(up.mask.masks, allowed)
                if any(bool((masks[name] & mask).any()) for name, mask in state.frozen.items()):
                    raise WireError("a mask came back with weights that are frozen")
            rest = merge.fitting({**up.dense, **up.buffers}, known)
            whole = sparse.joined(ctx, up.values, masks, rest)
            if self.bn == "static":
                whole = {name: whole[name] for name in ctx.task.layout.parameters}
            met.append(exchange.client.id)
            share = weight(exchange.client, self.weighting, self.training.batch)
            if up.score is not None and not -1 <= up.score <= 1:
                raise WireError(f"an accuracy of {up.score:g} came back, which is none")
            if up.score is not None and up.score >= 0:
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


def pfflash() -> PFFDST:
    """Freezing on FLASH's masks: densities of layers are probed, and masks stay."""
    phases = Phases(density=0.05, readjust="none", allocation="sensitivity", rounding="exact")
    return PFFDST(clients=10, training=SCHEDULE, phases=phases, start="random")


def code_parity(method: PFFDST) -> PFFDST:
    """The ways of the released code, where they differ; its second softmax is a model's option."""
    growth = replace(method.phases.readjustment, feddst_growth=True)
    return replace(
        method,
        phases=replace(method.phases, readjustment=growth),
        freeze_from="best-test",
        freeze_norm=True,
        weighting="batches",
        replacement=True,
        free_first_download=True,
        accounting=replace(method.accounting, uncharged="keeps,score,frozen"),
    )


def released() -> PFFDST:
    """What the flags of the released code's own example come to, one overruling another."""
    code = code_parity(PFFDST())
    return replace(code, phases=replace(code.phases, until=0.5, readjust_second=False))
