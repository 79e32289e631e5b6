"""PFFDST: train half of a sparse model, freeze it, then train the other half beside it.

The frozen half is sent to each client once and kept there, so every message carries half of the
model. In the first quarter of each phase a few more weights are active than will stay: every
`every` rounds the server prunes the smallest and regrows as many at random. Masks never go up.

Li, Yang, Guo, Yu, Qin, Zhang: An efficient and accurate dynamic sparse training framework based on
parameter-freezing. AAAI 2025. Code and appendix: https://github.com/Dawns14/pffdst
Lines of its two algorithms are counted after "Input", including the ends of loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import torch

from gossamer import core, merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import client_readjustment, held_versions, masked_training, sparse_model
from gossamer.methods.parts.client_readjustment import TRAINING, Readjustment, Up, accepted, quotas
from gossamer.methods.parts.sparse_model import BatchNorm, SparseModel, total
from gossamer.optim import Training
from gossamer.sparsity import Average, Counts
from gossamer.wire import Packed, Revision, pack, unpack


@dataclass(frozen=True)
class Server:
    params: Params
    masks: Masks  # all active weights, frozen or not
    frozen: Masks  # empty in the first phase
    version: int  # of the masks
    held: torch.Tensor  # by client id: the version that the client holds, or -1
    holders: torch.Tensor  # by client id: 1 if the client holds the frozen part
    trimmed: bool = False  # whether the last growth of this phase is pruned
    mean_jaccard: float = 0.0  # mean distance between the masks of two clients, last round

    @property
    def trained(self) -> Masks:
        return sparsity.difference(self.masks, self.frozen) if self.frozen else self.masks


@dataclass(frozen=True)
class Frozen:
    values: Packed
    masks: Masks


@dataclass(frozen=True)
class Down:
    model: SparseModel  # the trained part
    mask: Revision | None  # of the trained part; none if the client holds it
    frozen: Frozen | None  # once
    keeps: bool  # whether there is a frozen part, sent or held


@dataclass(frozen=True)
class Local:
    masks: Masks
    frozen: Frozen | None


@dataclass(frozen=True)
class PFFDST:
    clients: int = option(20, "clients per round", least=1)
    density: float = option(0.2, "fraction of the prunable weights kept", above=0, most=1)
    freezing: bool = option(True, "train in two phases; freeze the weights of the first")
    readjust: Literal["server", "client"] = option("server", "who readjusts masks")
    ratio: float = option(0.5, "fraction that the server readjusts", least=0, most=1)
    every: int = option(10, "rounds between readjustments by the server", least=1)
    until: float = option(0.25, "fraction of a phase with such readjustments", least=0, most=1)
    readjustment: Readjustment = Readjustment()
    training: Training = replace(TRAINING, epochs=2)
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    bn: BatchNorm = option("running", sparse_model.BN_HELP)
    accounting: Accounting = Accounting(uncharged="keeps")

    @property
    def part(self) -> Fraction:
        """The density that one phase trains: 1 - s_1 = s_1 - s_2."""
        return sparsity.as_fraction(self.density) / (2 if self.freezing else 1)

    @property
    def extra(self) -> Fraction:
        """The differential sparsity f, active beyond that while the server readjusts."""
        return sparsity.as_fraction(self.ratio if self.readjust == "server" else 0) * self.part

    def clock(self, ctx: Ctx) -> tuple[int, int, int]:
        """The phase, 1 or 2; the round in it, from 1; and R, the rounds it has."""
        first = ctx.rounds // 2 if self.freezing else ctx.rounds
        late = ctx.round > first
        return (2, ctx.round - first, ctx.rounds - first) if late else (1, ctx.round, first)

    def rate(self, ctx: Ctx) -> Fraction:
        """The fraction of the active weights that clients readjust in this round."""
        _, number, rounds = self.clock(ctx)
        rate = self.readjustment.rate(number - 1, rounds) if self.readjust == "client" else 0
        return sparsity.as_fraction(rate)

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if self.freezing and ctx.rounds < 2:
            raise ValueError("a phase takes a round; use --rounds 2 or more, or --no-freezing")
        params, nobody = ctx.task.init(ctx.common.fold("init")), held_versions.NOBODY
        density = min(self.part + self.extra, Fraction(1))
        masks = sparsity.largest(params, quotas(ctx, density))  # Algorithm 1, line 1
        return Server(sparsity.masked(params, masks), masks, {}, 0, nobody, nobody)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        current = held_versions.holds(state.held, client, state.version)
        return self.message(ctx, state, current, held_versions.holds(state.holders, client, 1))

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask or the frozen part."""
        return self.message(ctx, state, current=False, keeps=False)

    def message(self, ctx: Ctx, state: Server, current: bool, keeps: bool) -> Down:
        """Algorithm 2, line 6: a client that keeps the frozen part is sent the rest."""
        trained, base = state.trained, state.frozen if keeps else None
        model = sparse_model.send(ctx, state.params, trained, self.bn)
        frozen = None if keeps else frozen_part(state.params, state.frozen)
        return Down(model, None if current else Revision(trained, base), frozen, bool(state.frozen))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        participants: list[int] = []
        trained, counts = state.trained, quotas(ctx, self.part * self.clock(ctx)[0])

        def replies() -> Iterator[tuple[Params, Masks, float]]:
            for exchange in exchanges:
                up, sent = exchange.up, exchange.down.model
                masks = accepted(up.mask, trained, counts, state.frozen)
                participants.append(exchange.client.id)
                params = sparse_model.receive_reply(ctx, up.model, sent, masks)
                yield params, masks, merge.weight(exchange.client, self.weighting)

        average = sparsity.masked_mean(replies(), "wfa", otherwise=state.params)
        if not participants:
            return state
        state = self.readjusted(ctx, merged(state, average, participants), counts)
        if self.freezing and not state.frozen and ctx.round >= ctx.rounds // 2:
            return second_phase(ctx, state, fractions(ctx, self.part + self.extra))
        return state

    def readjusted(self, ctx: Ctx, state: Server, counts: Counts) -> Server:
        """Prunes the smallest weights and grows as many at random; the last time only prunes."""
        frozen = state.frozen or None
        if self.readjust == "client":
            masks = sparsity.largest(state.params, counts, state.masks, frozen)
            return state if sparse_model.same(masks, state.masks) else changed(state, masks, masks)
        _, number, rounds = self.clock(ctx)
        last = number >= max(1, round(self.until * rounds))  # R_end
        if not self.extra or state.trimmed or not (last or number % self.every == 0):
            return state
        active, key = sparsity.count(state.masks), ctx.key.fold("grow")
        low = {name: active[name] - n for name, n in fractions(ctx, self.extra).items()}
        high = low if last else active  # Algorithm 1, lines 10 to 15; Algorithm 2, lines 11 to 16
        change = sparsity.readjust(state.params, state.masks, low, high, key, frozen)
        return changed(replace(state, trimmed=last), change.masks, change.kept)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return [Up(down.model, Revision(sparse_model.all_zeros(ctx)) if self.rate(ctx) else None)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[masked_training.Work]:
        masks = held_versions.received(down.mask, local.masks if local else None)
        params = sparse_model.receive(ctx, down.model, masks)
        work = masked_training.begin(ctx, params, masks, self.training.rate(ctx))
        if down.keeps:
            frozen = down.frozen or (local.frozen if local else None)
            if frozen is None:
                raise core.Missing("the server sent no frozen part, and none is held here")
            values, work.frozen = unpack(frozen.values, frozen.masks), frozen.masks
            for name, mask in frozen.masks.items():
                work.params[name].copy_(torch.where(mask, values[name], params[name]))
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: masked_training.Work, batch: Batch) -> masked_training.Work:
        masked_training.step(ctx, self.training, work, batch)  # Algorithm 2, line 7
        rate, density = self.rate(ctx), self.part * self.clock(ctx)[0]
        if rate and batch.step + 1 == batch.steps:
            low, high = quotas(ctx, density * (1 - rate)), quotas(ctx, density)
            client_readjustment.readjust(ctx, work, batch, low, high)
        return work

    def finish(self, ctx: Ctx, work: masked_training.Work) -> Result[Up, Local]:
        moved, frozen = self.rate(ctx) > 0, frozen_part(work.params, work.frozen)
        base = None if frozen else work.start  # the server's masks include the frozen part
        mask = Revision(work.masks, base) if moved else None
        up = Up(sparse_model.send(ctx, work.params, work.masks, self.bn), mask)
        active = sparsity.union(work.masks, work.frozen) if frozen else work.masks
        metrics = masked_training.metrics(work, moved)
        return Result(up, Local(work.start, frozen), active, work.masks if frozen else {}, metrics)

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The masks, the density of the frozen part, and how far apart the masks of clients are."""
        share = total(state.frozen) / ctx.task.layout.total("count", state.masks)
        metrics = {"frozen_density": share, "client_mismatch": state.mean_jaccard}
        return Measures(state.masks, metrics)


def frozen_part(params: Params, masks: Masks) -> Frozen | None:
    """The frozen weights as they travel and as clients keep them; none in the first phase."""
    return Frozen(pack({name: params[name] for name in masks}, masks), masks) if masks else None


def merged(state: Server, average: Average, participants: Sequence[int]) -> Server:
    """The mean of the trained part beside the frozen one: Algorithm 2, line 10."""
    masks = sparsity.union(average.owned, state.frozen) if state.frozen else average.owned
    held, holders = held_versions.updated(state.held, participants, state.version), state.holders
    if state.frozen:
        holders = held_versions.updated(holders, participants, 1)
    state = replace(state, params={**state.params, **average.params}, held=held, holders=holders)
    state = replace(state, mean_jaccard=average.mean_jaccard)
    return state if sparse_model.same(masks, state.masks) else changed(state, masks, masks)


def changed(state: Server, masks: Masks, alive: Masks) -> Server:
    """The server with other masks; weights that are not `alive` are set to zero."""
    params = sparsity.masked(state.params, alive)
    return replace(state, params=params, masks=masks, version=state.version + 1)


def second_phase(ctx: Ctx, state: Server, wanted: Counts) -> Server:
    """Freezes all active weights and grows others at random: Algorithm 2, line 2."""
    room = sparsity.count(sparsity.inactive(state.masks))
    added = {name: min(n, room[name]) for name, n in wanted.items()}
    grown = sparsity.grow_random(ctx.key.fold("second"), state.masks, added)
    state = replace(state, frozen=state.masks, trimmed=False)
    return changed(state, sparsity.union(state.masks, grown), state.masks)


def fractions(ctx: Ctx, share: Fraction) -> Counts:
    """The same fraction of every layer, in whole weights."""
    return {name: int(share * ctx.task.layout[name].count) for name in ctx.task.layout.prunable}


def without_freezing() -> PFFDST:
    """The ablation "w/o PF": one phase, with masks that the server readjusts."""
    return PFFDST(training=TRAINING, freezing=False)


def without_readjustment() -> PFFDST:
    """The ablation "w/o SMR": two phases, with masks that clients readjust as in FedDST."""
    return PFFDST(training=TRAINING, readjust="client")
