"""FLASH: find out how many weights each layer needs, then train few weights that all clients share.

Babakniya, Kundu, Prakash, Niu, Avestimehr: Revisiting sparsity hunting in federated learning: why
does sparsity consensus matter? TMLR 2023. https://openreview.net/forum?id=iHyhdpsnyi

In the first round some clients learn masks of their own and send the density of each layer, nothing
else. From these densities the server draws one random mask. With `mask_every` 0 it stays for good
(SPDST); otherwise clients move it in every so many rounds and send it, and the server keeps the
largest weights of the mean (JMWST). Without the first round it is PDST. Clients of a small budget
train a part of the mask that lies inside those of larger ones.

Differs from the paper: its learning rate grows as printed and falls here; layers that would be more
than dense leave the rest to others; masks have exact counts.

Differs from the authors' code: budgets belong to clients, frozen masks stay frozen, and the model
that is tested has the density asked for. `code_parity` brings the code's ways back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import add
from typing import Literal

import torch
from torch import Tensor

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import (
    Batch,
    Client,
    Ctx,
    Exchange,
    Job,
    Key,
    Masks,
    Measures,
    Params,
    Result,
    sample,
    sample_by_budget,
    sample_richest,
)
from gossamer.fields import option
from gossamer.methods import sparse
from gossamer.methods.parts.sensitivity_probe import Probe, Sensitivity, mean_sensitivity
from gossamer.methods.parts.shared_masks import Masking
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.methods.sparse import BatchNorm, Learning, Work
from gossamer.optim import Training
from gossamer.sparsity import Allocation, Averaging, Saturate
from gossamer.wire import Drawn, Packed, Revision, WireError

SCHEDULE = Training(epochs=1, batch=32, lr=0.1, schedule="exponential-to", lr_end=0.001)


@dataclass(frozen=True)
class Server:
    params: Params
    masks: tuple[Masks, ...]
    """One set for each budget, ascending, each inside the next; the last is the model's."""
    drawn: Drawn
    """The seed of the masks in their first version."""
    seeded: int
    """That version, or -1 where clients would draw other masks: those of the probe, in groups."""
    versions: tuple[int, ...]
    """Of the masks, for each budget: it has another one whenever its own masks change."""
    held: Tensor
    """By client id: the version that the client holds, or -1."""
    tested: Params
    """What is tested, where that is not the model: the mean before it was masked, or moved."""
    union_density: float
    mean_jaccard: float
    """The mean Jaccard distance of two clients of the last round."""


@dataclass(frozen=True)
class Train:
    values: Packed
    dense: Params
    buffers: Params
    mask: Drawn | Revision | None
    """Nothing, if the client holds it."""
    budget: float | None


Down = Probe | Train


@dataclass(frozen=True)
class Update:
    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None
    """In mask rounds only."""


Up = Sensitivity | Update


@dataclass(frozen=True)
class Local:
    masks: Masks


@dataclass(frozen=True)
class Flash:
    clients: int = option(10, "clients per round", least=1)
    training: Training = SCHEDULE
    masking: Masking = Masking()
    mask_every: int = option(0, "rounds between those in which masks move; 0: never", least=0)
    learning: Learning = Learning()
    probe_clients: int = option(10, "clients of the first round", least=1)
    probe_epochs: float = option(10.0, "epochs in the first round", above=0)
    probe_among: Literal["richest", "any"] = option("richest", "whose densities of layers count")
    probe_saturate: Saturate = option("waterfill", "what a layer that would be over-full leaves")
    reuse_init: bool = option(False, "go on with the weights that were probed")
    resample: bool = option(False, "smaller budgets follow the largest weights in every round")
    weighting: merge.Weighting = option("samples", "what a client counts for in the mean")
    averaging: Literal["auto", "fedavg", "wfa"] = option(
        "auto", "over all clients or over those with a weight; auto: these, if budgets differ"
    )
    eval_model: Literal["masked", "union"] = option(
        "masked", "test the sparse model, or the mean that it is cut from"
    )
    bn: BatchNorm = option("running", "statistics are averaged, or found anew before a test")
    accounting: Accounting = Accounting(mask_code="none", uncharged="budget")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        self._check(ctx)
        layout = ctx.task.layout
        kind: Allocation = "uniform"
        if self.masking.allocation != "sensitivity":
            kind = self.masking.allocation
        shares = sparsity.allocate(layout, self.masking.density, kind, self.masking.fc_density)
        drawn = self.masking.seed(ctx, shares, 0)
        params = ctx.task.init(ctx.common.fold("init"))
        nobody = torch.zeros(0, dtype=torch.int32)
        return self._begun(ctx, params, drawn, 0, nobody)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        if not self.masking.probing(ctx):
            return sample_by_budget(ctx.key, pool, self.clients, self.masking.density)
        if self.probe_among == "richest":
            return sample_richest(ctx.key, pool, self.probe_clients, self.masking.density)
        return sample(ctx.key, pool, min(self.probe_clients, len(pool)))

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        version = state.versions[self.masking.level(ctx, client)]
        return self._message(ctx, state, client, sparse.holds(state.held, client, version))

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return self._message(ctx, state, client, holds=False)

    def _message(self, ctx: Ctx, state: Server, client: Client, holds: bool) -> Down:
        level = self.masking.level(ctx, client)
        masks, budget = state.masks[level], self.masking.part(client)
        parts = (
            sparse.values(state.params, masks),
            sparse.dense(ctx, state.params),
            sparse.buffers(ctx, state.params, self.bn),
        )
        if self.masking.probing(ctx):
            return Probe(SparseModel(*parts), state.drawn, budget)
        if not holds and state.versions[level] == state.seeded:
            return Train(*parts, state.drawn, budget)
        # Who counts loosely must know what to aim at.
        told = None if self.learning.exact else budget
        return Train(*parts, None if holds else Revision(masks), told)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        if self.masking.probing(ctx):
            return self._allocated(ctx, state, exchanges)
        met: list[Client] = []
        average = sparsity.masked_mean(
            self._replies(ctx, state, exchanges, met), self._averaging(ctx)
        )
        if not met:
            return state
        spread = _density(average.owned)
        average = self._untouched(ctx, state, met, average)
        moves = self._moves(ctx)
        params = {**state.params, **average.params}
        masks = state.masks
        if moves:
            masks = self.masking.chosen(ctx, params, average)
        elif self.resample and len(masks) > 1:
            masks = self.masking.levels(ctx, masks[-1], params)
        tested = params if self.eval_model == "union" else {}
        if self.masking.churn:
            # What is moved starts from zero, and would be tested before it was ever trained.
            tested = tested or sparsity.masked(params, masks[-1])
            change = self.masking.churned(ctx, masks[-1])
            masks = self.masking.levels(ctx, change.masks, ctx.key.fold("levels"))
            params = sparsity.masked(params, change.kept)
        # A mask round gives everybody new masks, even where none happened to move.
        new = (moves or not _same(*pair) for pair in zip(masks, state.masks, strict=True))
        told = [-1 if moves else state.versions[self.masking.level(ctx, c)] for c in met]
        return Server(
            sparsity.masked(params, masks[-1]),
            masks,
            state.drawn,
            state.seeded,
            tuple(map(add, state.versions, new)),
            sparse.marked(state.held, [client.id for client in met], told),
            tested,
            spread,
            average.mean_jaccard,
        )

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What the answer to a message looks like."""
        names = ctx.task.layout.prunable
        if isinstance(down, Probe):
            return [Sensitivity(torch.zeros(len(names)))]
        shapes = ctx.task.layout.leaves
        blank = {name: torch.zeros(shapes[name].shape, dtype=torch.bool) for name in names}
        mask = Revision(blank) if self._moves(ctx) else None
        return [Update(down.values, down.dense, down.buffers, mask)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        held = None if local is None else local.masks
        probing = isinstance(down, Probe)
        masks = self.masking.told(ctx, down.mask, down.budget, held, probing)
        sent = down.model if isinstance(down, Probe) else down
        params = sparse.joined(ctx, sent.values, masks, sent.dense, sent.buffers)
        rate = self.training.lr if probing else self.training.rate(self.masking.since_probe(ctx))
        work = sparse.begin(ctx, params, masks, rate, probing or self._moves(ctx))
        work.probe = probing
        work.intended = self.masking.intended(ctx, down.budget)
        epochs = self.probe_epochs if probing else self.training.epochs
        return Job(work, epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        group = 0 if work.probe else self.masking.group
        return sparse.step(ctx, self.training, self.learning, work, batch, group)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        if work.probe:
            found = sparse.sensitivity(ctx, work)
            needed = sparse.trained(self.learning, work)
            return Result(Sensitivity(found), None, work.masks, needed, sparse.metrics(work))
        update = Update(
            sparse.values(work.params, work.masks),
            sparse.dense(ctx, work.params),
            sparse.buffers(ctx, work.params, self.bn),
            Revision(work.masks, work.start) if work.moves else None,
        )
        return Result(
            update,
            None if work.moves else Local(work.start),
            work.masks,
            sparse.trained(self.learning, work),
            sparse.metrics(work),
        )

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.tested or state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The masks of the model, and how much of it clients have in common or not."""
        shown = {"union_density": state.union_density, "client_mismatch": state.mean_jaccard}
        return Measures(state.masks[-1], shown | self.masking.shown(ctx, state.masks[-1]))

    def _moves(self, ctx: Ctx) -> bool:
        number = self.masking.since_probe(ctx).round - 1
        return self.mask_every > 0 and number % self.mask_every == 0

    # masks ----------------------------------------------------------------------------------------

    def _allocated(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]
    ) -> Server:
        """The end of the first round: a new mask with the densities that clients found."""
        measured = mean_sensitivity(ctx, (exchange.up for exchange in exchanges))
        if not measured:
            return state
        density = self.masking.density
        shares = sparsity.sensitivity(ctx.task.layout, measured, density, self.probe_saturate)
        key = ctx.common.fold("init")  # the state's weights lack what the first mask lacks
        params = ctx.task.init(key if self.reuse_init else key.fold(1))
        drawn = self.masking.seed(ctx, shares, 1)
        return self._begun(ctx, params, drawn, state.versions[-1] + 1, state.held)

    def _begun(self, ctx: Ctx, params: Params, drawn: Drawn, version: int, held: Tensor) -> Server:
        probed = self.masking.probes and version == 0
        top = self.masking.draw(ctx.task.layout, drawn, probed)
        masks = self.masking.levels(ctx, top, Key(drawn.seed))
        params = sparsity.masked(params, top)
        union = params if self.eval_model == "union" else {}
        versions, seeded = (version,) * len(masks), -1 if probed else version
        return Server(params, masks, drawn, seeded, versions, held, union, _density(top), 0.0)

    def _replies(
        self,
        ctx: Ctx,
        state: Server,
        exchanges: Iterable[Exchange[Down, Up]],
        met: list[Client],
    ) -> Iterator[tuple[Params, Masks, float]]:
        for exchange in exchanges:
            up, down = exchange.up, exchange.down
            if not isinstance(up, Update) or isinstance(down, Probe):
                raise WireError("densities of layers came back where weights were asked for")
            masks = state.masks[self.masking.level(ctx, exchange.client)]
            if up.mask is not None:
                masks = sparse.affordable(up.mask.masks, sparse.total(masks), self.learning)
            rest = merge.fitting({**up.dense, **up.buffers}, {**down.dense, **down.buffers})
            whole = sparse.joined(ctx, up.values, masks, rest)
            if self.bn == "static":
                whole = {name: whole[name] for name in ctx.task.layout.parameters}
            met.append(exchange.client)
            yield whole, masks, merge.weight(exchange.client, self.weighting)

    def _untouched(
        self, ctx: Ctx, state: Server, met: Sequence[Client], average: sparsity.Average
    ) -> sparsity.Average:
        """The mean, with what no client of the round could afford as it was."""
        offered = state.masks[max(self.masking.level(ctx, client) for client in met)]
        if offered is state.masks[-1]:
            return average
        rest = sparsity.difference(state.masks[-1], offered)
        kept = {n: torch.where(m, state.params[n], average.params[n]) for n, m in rest.items()}
        owned = sparsity.union(average.owned, rest)
        return replace(average, params={**average.params, **kept}, owned=owned)

    def _averaging(self, ctx: Ctx) -> Averaging:
        if self.averaging != "auto":
            return self.averaging
        return "wfa" if len(self.masking.densities(ctx)) > 1 else "fedavg"

    def _check(self, ctx: Ctx) -> None:
        self.learning.check(self.training)
        if self.masking.group and self.mask_every:
            self.learning.check_groups()
        self.masking.check(ctx)
        if self.masking.probes and ctx.rounds < 2:
            raise ValueError(
                "the first round of FLASH finds densities and trains nothing; use --rounds 2 or "
                "more, or --allocation erk, which needs no such round"
            )


def pdst() -> Flash:
    """Random masks of one density in every layer, frozen."""
    return Flash(masking=Masking(allocation="uniform"))


def jmwst() -> Flash:
    """Masks that clients move in every round; the paper's count has them as bitmaps."""
    return Flash(mask_every=1, accounting=Accounting(uncharged="budget"))


def code_parity(method: Flash) -> Flash:
    """The ways of the released code, where they differ."""
    return replace(
        method,
        training=replace(method.training, lr_horizon=1000, lr_lag=1),
        masking=replace(method.masking, saturate="cap-ratio", rounding="floor", bernoulli=True),
        learning=replace(method.learning, exact=False, growth="bernoulli"),
        probe_among="any",
        probe_saturate="clip",
        resample=True,
        weighting="uniform",
        eval_model="union",
    )


def _same(first: Masks, second: Masks) -> bool:
    return first is second or all(torch.equal(mask, second[n]) for n, mask in first.items())


def _density(masks: Masks) -> float:
    total = sum(mask.numel() for mask in masks.values())
    return float(Fraction(sum(sparsity.count(masks).values()), max(total, 1)))
