"""FedRTS: which weights a sparse model has is a bandit's choice, by Thompson sampling.

The server holds a Beta distribution for every weight. In each round clients and their mean vote
for the active weights that are among the largest; now and then clients also name the pruned weights
with the largest gradients. To adjust the mask, the server draws a number from each distribution and
keeps the weights with the largest draws, so that one odd round changes little.

Huang, Yang, Chen, Ye, Wu: FedRTS: federated robust pruning via combinatorial Thompson sampling.
NeurIPS 2025. https://arxiv.org/abs/2501.19122

Defaults are those of the authors' https://github.com/FedPruning/FedPruning, except the optimiser,
which is that of FedMef. Differs from that code, which takes gradients for places: clients send the
places of their largest gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import floor

import torch

from gossamer import core, merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params, Result
from gossamer.fields import option
from gossamer.methods.parts import held_versions, mask_adjustment, masked_training, sparse_model
from gossamer.methods.parts.mask_adjustment import AdjustedModel, Adjustment, Local, Train, Work
from gossamer.methods.parts.sparse_model import BN_HELP, BatchNorm, SparseModel
from gossamer.optim import Training
from gossamer.sparsity import Allocation, Change, Counts
from gossamer.wire import WireError, unpack

Down = Train


@dataclass(frozen=True)
class Server:
    model: AdjustedModel
    wins: Params  # alpha of each weight's Beta distribution
    losses: Params  # beta


@dataclass(frozen=True)
class Up:
    model: SparseModel
    grow: Masks | None  # pruned weights with the largest gradients, in rounds that adjust the mask


@dataclass(frozen=True)
class FedRTS:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training(epochs=5, batch=64, lr=0.1)
    density: float = option(0.1, "fraction of prunable weights kept", above=0, most=1)
    allocation: Allocation = option("erk", "how layer densities are allocated")
    adjustment: Adjustment = Adjustment(adjust_until=300, adjust_ratio=0.2, blocks=1)
    fusion: float = option(0.5, "share of the clients' votes beside their mean's", least=0, most=1)
    evidence: float = option(10.0, "by how much an outcome moves a distribution", above=0)
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    bn: BatchNorm = option("running", BN_HELP)
    accounting: Accounting = Accounting(mask_code="auto")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        sparse_model.prunable(ctx)
        params, masks = self.first(ctx)
        ones = {name: torch.ones(mask.shape) for name, mask in masks.items()}
        return Server(mask_adjustment.start(params, masks), ones, ones)

    def first(self, ctx: Ctx) -> tuple[Params, Masks]:
        """The initial model and its largest weights, which all know from the common seed."""
        layout, params = ctx.task.layout, ctx.task.init(ctx.common.fold("init"))
        shares = sparsity.allocate(layout, self.density, self.allocation)
        return params, sparsity.largest(params, sparsity.apportion(layout, shares))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return core.sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return mask_adjustment.send(ctx, state.model, client, self.bn)

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        model = replace(state.model, held=held_versions.NOBODY)
        return self.down(ctx, replace(state, model=model), client)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        active, ratio = sparsity.count(state.model.masks), self.adjustment.ratio(ctx)
        due = self.adjustment.due(ctx, active)
        core = {name: count - floor(ratio * count) for name, count in active.items()}
        votes, posterior = Votes(state.model.masks, core, due), (state.wins, state.losses)

        def change(model: AdjustedModel) -> Change:
            nonlocal posterior
            posterior = self.observed(votes, model.params, posterior)
            if not due:
                return Change.of({}, {}, {})
            chosen = self.chosen(ctx, posterior, {name: active[name] for name in due})
            before = {name: model.masks[name] for name in due}
            left = {name: mask & chosen[name] for name, mask in before.items()}
            return Change.of(before, left, sparsity.difference(chosen, before))

        how = (self.weighting, votes.read, change)
        return Server(mask_adjustment.merged(ctx, state.model, exchanges, *how), *posterior)

    def observed(
        self, votes: Votes, mean: Params, posterior: tuple[Params, Params]
    ) -> tuple[Params, Params]:
        """The distributions after a round: outcomes are shares of votes, between 0 and 1."""
        wins, losses = (dict(each) for each in posterior)
        together = sparsity.largest(mean, votes.core, votes.masks, least=0)
        for name, mask in votes.masks.items():
            seen, alone = mask, votes.share(name, "core")
            outcome = (1 - self.fusion) * together[name] + self.fusion * alone
            if name in votes.due:  # nobody knows the gradient of the mean: a half stands for it
                grown = (1 - self.fusion) / 2 + self.fusion * votes.share(name, "grow")
                outcome, seen = torch.where(mask, outcome, grown), torch.ones_like(mask)
            outcome = outcome.to(wins[name].dtype)
            wins[name] = wins[name] + self.evidence * outcome * seen
            losses[name] = losses[name] + self.evidence * (1 - outcome) * seen
        return wins, losses

    def chosen(self, ctx: Ctx, posterior: tuple[Params, Params], counts: Counts) -> Masks:
        """Masks of the largest draws, as many as before in each layer."""
        draws = {}
        for name in counts:
            wins, losses = (each[name].double().numpy() for each in posterior)
            draws[name] = torch.from_numpy(ctx.key.fold("draws", name).numpy().beta(wins, losses))
        return sparsity.largest(draws, counts)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        due = self.adjustment.due(ctx, mask_adjustment.active(down))
        shapes = down.model.values.shapes
        none = {name: torch.zeros(shapes[name], dtype=torch.bool) for name in due}
        return [Up(down.model, none or None)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        masks = mask_adjustment.current_masks(down, local, lambda number: self.first(ctx)[1])
        due = self.adjustment.due(ctx, mask_adjustment.active(down))
        work = mask_adjustment.begin(ctx, down, masks, self.training.rate(ctx), due)
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        masked_training.step(ctx, self.training, work.model, batch)
        if work.due and batch.step + 1 == batch.steps:
            work.keep(masked_training.dense_gradient(ctx, work.model, batch))
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = mask_adjustment.finish(ctx, work, self.bn)
        up = Up(done.up.model, done.up.gradients.places if done.up.gradients else None)
        return Result(up, done.local, done.masks, {}, done.metrics, done.searched)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.model.params

    def measures(self, ctx: Ctx, state: Server) -> core.Measures:
        """The mask of the model."""
        return core.Measures(state.model.masks)


@dataclass
class Votes:
    """Weighted sums of the clients' votes."""

    masks: Masks
    core: Counts  # active weights that each client votes for: all but those to be adjusted
    due: Counts  # pruned weights that each client votes for, where the mask is adjusted
    sums: dict[tuple[str, str], torch.Tensor] = field(default_factory=dict)
    total: float = 0.0

    def read(self, up: object, weight: float) -> SparseModel:
        """Adds the votes of a reply, and returns its model."""
        if not isinstance(up, Up) or (up.grow is None) != (not self.due):
            raise WireError("places came back unasked, or were asked for and did not")
        for name, count in self.due.items():
            places = (up.grow or {})[name]
            if int(places.count_nonzero()) != count or bool((places & self.masks[name]).any()):
                raise WireError(f"not the {count} places of {name} that were asked for")
            self.add(name, "grow", places, weight)
        values = unpack(up.model.values, self.masks)
        for name, mask in sparsity.largest(values, self.core, self.masks, least=0).items():
            self.add(name, "core", mask, weight)
        self.total += weight
        return up.model

    def add(self, name: str, kind: str, places: torch.Tensor, weight: float) -> None:
        zeros = torch.zeros(places.shape, dtype=torch.float64)
        self.sums.setdefault((name, kind), zeros).add_(places, alpha=weight)

    def share(self, name: str, kind: str) -> torch.Tensor:
        """Which part of the clients, by weight, voted for each weight."""
        return self.sums[name, kind] / self.total
