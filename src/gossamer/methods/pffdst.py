"""PFFDST: train half of a sparse model, freeze it, then train the other half beside it.

The frozen half is sent to each client once and kept there, so every message carries half of the
model. In the first quarter of each phase a few more weights are active than will stay: every
`every` rounds the server prunes the smallest and regrows as many at random. Masks never go up.

Li, Yang, Guo, Yu, Qin, Zhang: An efficient and accurate dynamic sparse training framework based on
parameter-freezing. AAAI 2025. Code and appendix: https://github.com/Dawns14/pffdst
Lines of its two algorithms are counted after "Input", including the ends of loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from gossamer import fields, merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import (
    client_readjustment,
    frozen_weights,
    masked_training,
    sparse_model,
)
from gossamer.methods.parts.client_readjustment import TRAINING, Readjustment, Up, quotas
from gossamer.methods.parts.frozen_weights import Frozen, Local, Server, changed, frozen_part
from gossamer.methods.parts.held_versions import NOBODY, holds, received
from gossamer.methods.parts.masked_training import Work
from gossamer.methods.parts.sparse_model import BatchNorm, SparseModel
from gossamer.optim import Training
from gossamer.sparsity import Counts
from gossamer.trust.declared import CHOSEN_MASKS, COVERED, Privacy
from gossamer.wire import Revision


@dataclass(frozen=True)
class Down:
    model: SparseModel  # the trained part
    mask: Revision | None  # of the trained part; none if the client holds it
    frozen: Frozen | None  # once
    keeps: bool  # whether there is a frozen part, sent or held


@dataclass(frozen=True)
class PFFDST:
    clients: int = option(20, "clients per round", least=1)
    density: float = option(0.2, "fraction of the prunable weights kept", above=0, most=1)
    freezing: bool = option(True, "train in two phases; freeze the weights of the first")
    readjust: Literal["server", "client"] = option("server", "who readjusts masks")
    ratio: float = option(0.5, "fraction that the server readjusts", least=0, most=1)
    every: int = option(10, "rounds between readjustments by the server", least=1)
    trim_at: float = option(0.25, "part of a phase with such readjustments", least=0, most=1)
    readjustment: Readjustment = Readjustment()
    training: Training = replace(TRAINING, epochs=2)
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    bn: BatchNorm = option("running", sparse_model.BN_HELP)
    accounting: Accounting = Accounting(uncharged="keeps")

    @property
    def privacy(self) -> Privacy:
        """Replies can be covered unless clients move masks."""
        return COVERED if self.readjust == "server" else CHOSEN_MASKS

    @property
    def part(self) -> Fraction:
        """The density that one phase trains: 1 - s_1 = s_1 - s_2."""
        return sparsity.as_fraction(self.density) / (2 if self.freezing else 1)

    @property
    def extra(self) -> Fraction:
        """The differential sparsity f, active beyond that while the server readjusts."""
        return sparsity.as_fraction(self.ratio if self.readjust == "server" else 0) * self.part

    @property
    def spans_rounds(self) -> str:
        """Its phases, and how long masks are readjusted in them."""
        return fields.listed("--freezing" * self.freezing, "--trim-at", self.training.spans_rounds)

    def clock(self, ctx: Ctx) -> tuple[int, int, int]:
        """The phase, 1 or 2; the round in it, from 1; and R, the rounds it has."""
        first = ctx.rounds // 2 if self.freezing else ctx.rounds
        late = ctx.round > first
        return (2, ctx.round - first, ctx.rounds - first) if late else (1, ctx.round, first)

    def target(self, ctx: Ctx) -> Fraction:
        """The density at the end of the phase, frozen weights included."""
        return self.part * self.clock(ctx)[0]

    def rate(self, ctx: Ctx) -> Fraction:
        """The fraction of the active weights that clients readjust in this round."""
        _, number, rounds = self.clock(ctx)
        rate = self.readjustment.rate(number - 1, rounds) if self.readjust == "client" else 0
        return sparsity.as_fraction(rate)

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if self.freezing and ctx.rounds < 2:
            raise ValueError("a phase takes a round; use `rounds=2` or more, or `freezing=False`")
        params = ctx.task.init(ctx.common.fold("init"))
        density = min(self.part + self.extra, Fraction(1))
        masks = sparsity.largest(params, quotas(ctx, density))  # Algorithm 1, line 1
        return Server(sparsity.masked(params, masks), masks, {}, 0, NOBODY, NOBODY)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        trained, keeps = state.trained, holds(state.holders, client, 1)
        model = sparse_model.send(ctx, state.params, trained, self.bn)  # Algorithm 2, line 6
        current = holds(state.held, client, state.version)
        mask = None if current else Revision(trained, state.frozen if keeps else None)
        frozen = None if keeps else frozen_part(state.params, state.frozen)
        return Down(model, mask, frozen, bool(state.frozen))

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask or the frozen part."""
        return self.down(ctx, replace(state, held=NOBODY, holders=NOBODY), client)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        participants: list[int] = []
        counts, here = quotas(ctx, self.target(ctx)), (self.weighting, participants)
        known = (state.trained, counts, state.frozen)
        replies = client_readjustment.received(ctx, exchanges, *known, *here)
        average = sparsity.masked_mean(replies, "wfa", otherwise=state.params)
        if not participants:
            return state
        state = frozen_weights.merged(state, average, participants)  # Algorithm 2, line 10
        state = self.readjusted(ctx, state, counts)
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
        last = number >= max(1, round(self.trim_at * rounds))  # R_end
        if not self.extra or state.trimmed or not (last or number % self.every == 0):
            return state
        active, key = sparsity.count(state.masks), ctx.key.fold("grow")
        low = {name: active[name] - n for name, n in fractions(ctx, self.extra).items()}
        high = low if last else active  # Algorithm 1, lines 10 to 15; Algorithm 2, lines 11 to 16
        change = sparsity.readjust(state.params, state.masks, low, high, key, frozen)
        return changed(replace(state, trimmed=last), change.masks, change.kept)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return client_readjustment.replies(ctx, down.model, self.rate(ctx))

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        masks = received(down.mask, local.masks if local else None)
        params = sparse_model.receive(ctx, down.model, masks)
        work = masked_training.begin(ctx, params, masks, self.training.rate(ctx))
        if down.keeps:
            frozen_weights.insert(work, down.frozen, local)
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        masked_training.step(ctx, self.training, work, batch)  # Algorithm 2, line 7
        client_readjustment.readjust_when_due(ctx, work, batch, self.target(ctx), self.rate(ctx))
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        moved, frozen = self.rate(ctx) > 0, frozen_part(work.params, work.frozen)
        # The server's masks include the frozen part.
        mask = Revision(work.masks, None if frozen else work.start) if moved else None
        up = Up(sparse_model.send(ctx, work.params, work.masks, self.bn), mask)
        active = sparsity.union(work.masks, work.frozen) if frozen else work.masks
        more = masked_training.metrics(work, moved), work.searched
        return Result(up, Local(work.start, frozen), active, work.masks if frozen else {}, *more)

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The masks, the density of the frozen part, and how far apart the masks of clients are."""
        share = sparse_model.total(state.frozen) / ctx.task.layout.total("count", state.masks)
        metrics = {"frozen_density": share, "client_mismatch": state.mean_jaccard}
        return Measures(state.masks, metrics)


def second_phase(ctx: Ctx, state: Server, wanted: Counts) -> Server:
    """Freezes all active weights and grows others at random: Algorithm 2, line 2."""
    masks = frozen_weights.grow_beside(ctx, state.masks, wanted)
    return changed(replace(state, frozen=state.masks, trimmed=False), masks, state.masks)


def fractions(ctx: Ctx, share: Fraction) -> Counts:
    """The same fraction of every layer, in whole weights."""
    return {name: int(share * ctx.task.layout[name].count) for name in ctx.task.layout.prunable}
