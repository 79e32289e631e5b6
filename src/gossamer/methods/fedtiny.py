"""FedTiny: clients choose among prunings of the initial model, then refine it block by block.

The first two rounds train nothing. All draw the same candidates from the common seed: the initial
model pruned by magnitude, each time with other layer densities. Clients send the BatchNorm
statistics of their data in each candidate; then, given the mean statistics, its loss. The candidate
with the lowest mean loss is trained. Every `adjust_every` rounds one block of layers is adjusted.

Huang, Zhang, Sun, Fang, Yuan: Distributed pruning towards tiny neural networks in federated
learning. ICDCS 2023. https://arxiv.org/abs/2212.01977

Differs from the paper: clients draw the initial model and its candidates, so neither is sent.
Differs from the authors' library: candidates adapt statistics of BatchNorm, not scales and shifts,
and differ in densities, not in weights; gradients are sent with their true places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gossamer import core, merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params, Result
from gossamer.fields import option
from gossamer.methods.parts import held_versions, mask_adjustment, masked_training, sparse_model
from gossamer.methods.parts.mask_adjustment import AdjustedModel, Adjustment, Local, Train, Update
from gossamer.methods.parts.sparse_model import BN_HELP, BatchNorm
from gossamer.optim import Training
from gossamer.wire import EXACT, WireError

WORST = torch.finfo(torch.float32).max  # sent in place of a loss that is not finite


@dataclass(frozen=True)
class Server:
    model: AdjustedModel
    statistics: tuple[Params, ...]  # of each candidate, between the two rounds of selection


@dataclass(frozen=True)
class Candidates:
    """Asks for the BatchNorm statistics of all candidates."""


@dataclass(frozen=True)
class Score:
    statistics: tuple[Params, ...]  # mean ones, with which to find the loss of each candidate


Down = Candidates | Score | Train


@dataclass(frozen=True)
class Statistics:
    means: tuple[Params, ...]  # running means and variances in each candidate


@dataclass(frozen=True)
class Losses:
    losses: Tensor = field(metadata=EXACT)  # one per candidate


Up = Statistics | Losses | Update


@dataclass
class Trial:
    models: list[Params]  # all candidates
    masks: Masks  # of the first one; all are about as dense
    scores: bool  # whether losses are asked for, not statistics
    sums: list[Params]  # of each candidate, over examples
    examples: int = 0


Work = Trial | mask_adjustment.Work


@dataclass(frozen=True)
class FedTiny:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training(epochs=5, batch=64, lr=0.1)
    density: float = option(0.1, "fraction of prunable weights kept", above=0, most=1)
    allocation: sparsity.Allocation = option("uniform", "layer densities that candidates vary")
    candidates: int = option(5, "prunings that clients choose from; 1: no selection", least=1)
    deviation: float = option(0.5, "most relative change of layer densities", least=0, most=1)
    adapt: bool = option(True, "adapt BatchNorm statistics of candidates before scoring them")
    select_clients: int = option(10, "clients in selection rounds", least=1)
    select_epochs: float = option(1.0, "epochs of a selection round, at most 1", above=0, most=1)
    adjustment: Adjustment = Adjustment()
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    bn: BatchNorm = option("running", BN_HELP)
    accounting: Accounting = Accounting(mask_code="auto")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        sparse_model.prunable(ctx)
        spent = ctx.rounds - self.training_ctx(ctx).rounds
        if spent >= ctx.rounds:
            raise ValueError(
                f"the selection takes {spent} rounds that train nothing, and the run has "
                f"{ctx.rounds}; use `rounds={spent + 1}` or more, or `candidates=1`"
            )
        return Server(mask_adjustment.start(*self.candidate(ctx, 0)), ())

    def training_ctx(self, ctx: Ctx) -> Ctx:
        """Rounds counted from the start of training; round 0 scores candidates, -1 adapts them."""
        adapts = self.adapt and ctx.task.running_statistics
        spent = 0 if self.candidates == 1 else 2 if adapts else 1
        return replace(ctx, round=ctx.round - spent, rounds=ctx.rounds - spent)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        if self.training_ctx(ctx).round > 0:
            return core.sample(ctx.key, pool, self.clients)
        count = min(self.select_clients, len(pool))
        return core.sample(ctx.common.fold("selection"), pool, count)  # the same in both rounds

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        number = self.training_ctx(ctx).round
        if number > 0:
            return mask_adjustment.send(ctx, state.model, client, self.bn)
        score = Score(state.statistics or ({},) * self.candidates)
        return score if number == 0 else Candidates()

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        model = replace(state.model, held=held_versions.NOBODY)
        return self.down(ctx, replace(state, model=model), client)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        here, masks = self.training_ctx(ctx), state.model.masks
        if here.round < 0:
            replies = read_statistics(exchanges, self.weighting)
            return replace(state, statistics=merge.mean_of_each(replies))
        if here.round == 0:
            best = lowest_loss(exchanges, "uniform")
            return state if best is None else chosen(state, *self.candidate(ctx, best), best)
        votes = mask_adjustment.Votes(masks, self.adjustment.due(here, sparsity.count(masks)))
        how = (self.weighting, votes.read, votes.change)
        return replace(state, model=mask_adjustment.merged(ctx, state.model, exchanges, *how))

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        match down:
            case Candidates():
                means = {name: ctx.task.buffers()[name] for name in ctx.task.running_statistics}
                return [Statistics((means,) * self.candidates)]
            case Score():
                return [Losses(torch.zeros(self.candidates))]
            case Train():
                due = self.adjustment.due(self.training_ctx(ctx), mask_adjustment.active(down))
                return [mask_adjustment.reply(down, due)]

    def candidate(self, ctx: Ctx, number: int) -> tuple[Params, Masks]:
        """The initial model, and a pruning of it; number 0 has the densities of `allocation`."""
        layout, key = ctx.task.layout, ctx.common.fold("candidate", number)
        shares = sparsity.allocate(layout, self.density, self.allocation)
        if number:
            shares = sparsity.perturbed(key, layout, shares, self.deviation, self.density)
        params = ctx.task.init(ctx.common.fold("init"))
        return params, sparsity.largest(params, sparsity.apportion(layout, shares))

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        if not isinstance(down, Train):
            drawn = [self.candidate(ctx, number) for number in range(self.candidates)]
            return Job(trial(ctx, down, drawn), self.select_epochs, self.training.batch)
        masks = mask_adjustment.current_masks(down, local, lambda n: self.candidate(ctx, n)[1])
        ctx = self.training_ctx(ctx)
        due = self.adjustment.due(ctx, mask_adjustment.active(down))
        work = mask_adjustment.begin(ctx, down, masks, self.training.rate(ctx), due)
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        if isinstance(work, Trial):
            return tried(ctx, work, batch)
        masked_training.step(ctx, self.training, work.model, batch)
        if work.due and batch.step + 1 == batch.steps:
            work.keep(masked_training.dense_gradient(ctx, work.model, batch))
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        if not isinstance(work, Trial):
            done = mask_adjustment.finish(ctx, work, self.bn)
            return Result(done.up, done.local, done.masks, {}, done.metrics, done.searched)
        count = max(work.examples, 1)
        means = tuple({name: (x / count).cpu() for name, x in each.items()} for each in work.sums)
        if not work.scores:
            return Result(Statistics(means), None, work.masks)
        losses = torch.stack([each["loss"] for each in means]).float()
        losses = losses.nan_to_num(WORST, WORST, -WORST)
        best = {"best_candidate": float(losses.argmin())}
        return Result(Losses(losses), None, work.masks, metrics=best)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.model.params

    def measures(self, ctx: Ctx, state: Server) -> core.Measures:
        """The mask of the model, and the candidate that was chosen."""
        return core.Measures(state.model.masks, {"candidate": float(state.model.number)})


def read_statistics(
    exchanges: Iterable[Exchange[Down, Up]], weighting: merge.Weighting
) -> Iterator[tuple[Sequence[Params], float]]:
    """The statistics of each candidate that clients sent, and the weight of each client."""
    for exchange in exchanges:
        if not isinstance(exchange.up, Statistics):
            raise WireError("statistics were asked for, and something else came back")
        tensors = (item for means in exchange.up.means for item in means.items())
        if any(name.endswith("running_var") and bool((x < 0).any()) for name, x in tensors):
            raise WireError("a variance came back that is below zero")
        yield exchange.up.means, merge.weight(exchange.client, weighting)


def lowest_loss(exchanges: Iterable[Exchange[Down, Up]], weighting: merge.Weighting) -> int | None:
    """The candidate with the lowest mean loss; None if nobody answered."""
    total: Tensor | None = None
    for exchange in exchanges:
        if not isinstance(exchange.up, Losses):
            raise WireError("losses were asked for, and something else came back")
        losses = (exchange.up.losses * merge.weight(exchange.client, weighting)).double()
        total = losses if total is None else total + losses
    return None if total is None else int(total.argmin())


def chosen(state: Server, params: Params, masks: Masks, number: int) -> Server:
    """The best candidate, with the statistics it was scored with."""
    adapted = state.statistics[number] if state.statistics else {}
    return Server(mask_adjustment.start({**params, **adapted}, masks, number), ())


def trial(ctx: Ctx, down: Candidates | Score, drawn: Sequence[tuple[Params, Masks]]) -> Trial:
    """The candidates at a client, before the first batch."""
    scores, names = isinstance(down, Score), ctx.task.running_statistics
    given = down.statistics if isinstance(down, Score) else ({},) * len(drawn)
    pairs = zip(drawn, given, strict=True)
    models = [ctx.task.own({**sparsity.masked(*each), **adapted}) for each, adapted in pairs]
    zeros = [{name: torch.zeros_like(model[name]) for name in names} for model in models]
    losses = [{"loss": torch.zeros((), dtype=torch.float64)} for _ in models]
    return Trial(models, drawn[0][1], scores, losses if scores else zeros)


def tried(ctx: Ctx, work: Trial, batch: Batch) -> Trial:
    """Runs a batch through all candidates."""
    for model, sums in zip(work.models, work.sums, strict=True):
        if work.scores:
            means = {"loss": ctx.task.test_loss(model, batch).cpu()}
        else:
            means = ctx.task.batch_statistics(model, batch.x)
        for name, mean in means.items():
            sums[name].add_(mean, alpha=len(batch.y))
    work.examples += len(batch.y)
    return work
