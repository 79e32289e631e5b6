"""FedTiny: clients choose among prunings of the first model, then refine one block by block.

Huang, Zhang, Sun, Fang, Yuan: Distributed pruning towards tiny neural networks in federated
learning. ICDCS 2023. https://arxiv.org/abs/2212.01977

The first two rounds train nothing. All draw the same few candidates from the common seed: the first
model, pruned by magnitude with other densities of its layers each time. Clients send what batch
normalisation would see of their data in each candidate, then, given the mean of all that, the loss
of each, and the lowest mean wins. A model without batch normalisation needs only the second round.
Then all train under its mask. Every so many rounds one block of layers is adjusted, from output to
input: clients send the largest gradients of missing weights, with their places; the server grows
those and prunes as many of the smallest.

Differs from the paper: clients draw the first model and its candidates themselves, so that neither
goes down.

What the sources leave open, or know only from the authors' library, is an option: how many
candidates there are (5) and how they differ, that clients count the same in the choice of one, that
the round numbered 0 adjusts nothing, and how blocks divide a model, here evenly by layers.

Differs from the authors' library: statistics are those of batch normalisation, not its scales and
shifts; candidates differ in densities, not in weights; clients send few gradients with true places.
`clean` is its simplest form: no candidates, all layers at once, all gradients, pruning first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, TypeAlias

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
    Masks,
    Measures,
    Params,
    Result,
    sample,
)
from gossamer.fields import option
from gossamer.methods import sparse
from gossamer.methods.parts import mask_adjustment
from gossamer.methods.parts.mask_adjustment import Adjustment, Local, Train, Update
from gossamer.methods.sparse import BatchNorm
from gossamer.optim import Training
from gossamer.sparsity import Allocation
from gossamer.sparsity.select import uniform_numbers
from gossamer.wire import EXACT, WireError

TRAINING = Training(epochs=5, batch=64, lr=0.1)
WORST = torch.finfo(torch.float32).max
"""The loss of a candidate that has none, or an infinite one: such numbers do not travel."""


@dataclass(frozen=True)
class Selection:
    """Candidates for the first mask, and who chooses one of them."""

    candidates: int = option(
        5, "prunings of the first model that clients choose from; 1: no choice", least=1
    )
    differ: Literal["densities", "weights"] = option(
        "densities", "candidates have other densities of layers, or other first weights"
    )
    spread: float = option(
        0.5,
        "part by which a layer is denser or sparser than the rule, at most",
        least=0,
        most=1,
    )
    adapt: bool = option(
        True, "try candidates with batch statistics of clients' data; else with fresh ones"
    )
    select_clients: int = option(10, "clients that choose", least=1)
    select_epochs: float = option(
        1.0, "part of a client's data that candidates are tried on", above=0, most=1
    )
    loss_weighting: merge.Weighting = option("uniform", "what a client counts for in the choice")

    def rounds(self, ctx: Ctx) -> int:
        """How many rounds the choice takes."""
        if self.candidates == 1:
            return 0
        return 2 if self.adapt and ctx.task.running_statistics else 1


@dataclass(frozen=True)
class Server:
    model: mask_adjustment.AdjustedModel
    statistics: tuple[Params, ...]
    """Of each candidate, between the two rounds of choice."""


@dataclass(frozen=True)
class Candidates:
    """Asks for the batch statistics of all candidates, which the client draws from the seed."""


@dataclass(frozen=True)
class Score:
    """Asks for the loss of each candidate with these statistics."""

    statistics: tuple[Params, ...]


Down: TypeAlias = Candidates | Score | Train


@dataclass(frozen=True)
class Statistics:
    means: tuple[Params, ...]
    """Means and variances in each candidate."""


@dataclass(frozen=True)
class Losses:
    losses: Tensor = field(metadata=EXACT)
    """One for each candidate."""


Up: TypeAlias = Statistics | Losses | Update


@dataclass
class Trial:
    """Candidates at a client that tries them; `step` updates it in place."""

    models: tuple[Params, ...]
    masks: Masks
    """Of the first candidate; all are about as dense."""
    scores: bool
    """Whether losses are asked for, and not statistics."""
    sums: list[Params]
    losses: Tensor
    examples: int = 0


Work: TypeAlias = Trial | mask_adjustment.Work


@dataclass(frozen=True)
class FedTiny:
    clients: int = option(10, "clients per round", least=1)
    training: Training = TRAINING
    density: float = option(0.1, "part of the prunable weights that is kept", above=0, most=1)
    allocation: Allocation = option("uniform", "densities of layers that candidates lie around")
    fc_density: float = option(
        1.0, "density of the last fully connected layer under erk-plus", least=0, most=1
    )
    selection: Selection = Selection()
    adjustment: Adjustment = Adjustment()
    weighting: merge.Weighting = option("samples", "what a client counts for in the mean")
    bn: BatchNorm = option("running", "statistics are averaged, or found anew before a test")
    accounting: Accounting = Accounting(mask_code="auto")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        self.adjustment.check()
        mask_adjustment.prunable(ctx)
        chooses = self.selection.rounds(ctx)
        if chooses >= ctx.rounds:
            raise ValueError(
                f"the choice of a candidate takes {chooses} rounds that train nothing, and the run "
                f"has {ctx.rounds}; use --rounds {chooses + 1} or more, or --candidates 1"
            )
        return Server(mask_adjustment.begun(*self.candidate(ctx, 0), 0), ())

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        if self._training(ctx):
            return sample(ctx.key, pool, self.clients)
        count = min(self.selection.select_clients, len(pool))
        return sample(ctx.common.fold("selection"), pool, count)  # the same in both rounds

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        if self._training(ctx):
            return mask_adjustment.message(ctx, state.model, client, self.bn)
        if self._estimating(ctx):
            return Candidates()
        return Score(state.statistics or ({},) * self.selection.candidates)

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return mask_adjustment.message(ctx, state.model, client, self.bn, lost=True)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        if self._estimating(ctx):
            means = merge.mean(self._statistics(ctx, exchanges))
            return replace(state, statistics=self._apart(ctx, means)) if means else state
        if not self._training(ctx):
            return self._chosen(ctx, state, exchanges)
        model = mask_adjustment.merged(
            self._since(ctx),
            state.model,
            mask_adjustment.training(exchanges),
            self.adjustment,
            self.weighting,
            self.bn,
        )
        return replace(state, model=model)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What the answer to a message looks like."""
        match down:
            case Candidates():
                return [Statistics((_statistics(ctx, ctx.task.buffers()),) * len(self._numbers))]
            case Score():
                return [Losses(torch.zeros(len(self._numbers)))]
            case Train():
                return [mask_adjustment.reply(self._since(ctx), down, self.adjustment)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        if isinstance(down, Train):
            here = self._since(ctx)
            rate = self.training.rate(here)
            work = mask_adjustment.begin(here, down, local, rate, self.adjustment, self._first(ctx))
            return Job(work, self.training.epochs, self.training.batch)
        drawn = [self.candidate(ctx, number) for number in self._numbers]
        found = down.statistics if isinstance(down, Score) else ({},) * len(drawn)
        models = tuple(
            ctx.task.own({**sparsity.masked(params, masks), **statistics})
            for (params, masks), statistics in zip(drawn, found, strict=True)
        )
        sums = [
            {name: torch.zeros_like(tensor) for name, tensor in _statistics(ctx, model).items()}
            for model in models
        ]
        scores = isinstance(down, Score)
        trial = Trial(models, drawn[0][1], scores, sums, torch.zeros(len(drawn)).double())
        return Job(trial, self.selection.select_epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        if isinstance(work, Trial):
            return _tried(ctx, work, batch)
        sparse.descend(ctx, self.training, work.model, batch)
        if work.asked and batch.step + 1 == batch.steps:
            grads = sparse.gradient(ctx, work.model, batch)
            work.gradients = self.adjustment.told(grads, work.model.masks, work.asked)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        if not isinstance(work, Trial):
            done = mask_adjustment.finish(ctx, work, self.adjustment, self.bn)
            return Result(done.up, done.local, done.masks, metrics=done.metrics)
        if work.scores:
            losses = (work.losses / max(work.examples, 1)).float().nan_to_num(WORST, WORST, -WORST)
            best = {"best_candidate": float(losses.argmin())}
            return Result(Losses(losses), None, work.masks, metrics=best)
        found = work.sums
        if work.examples:
            found = [{n: each / work.examples for n, each in sums.items()} for sums in found]
        means = tuple({name: each.cpu() for name, each in sums.items()} for sums in found)
        return Result(Statistics(means), None, work.masks)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.model.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The mask of the model, and the candidate that it began with."""
        return Measures(state.model.masks, {"candidate": float(state.model.number)})

    # candidates -----------------------------------------------------------------------------------

    def candidate(self, ctx: Ctx, number: int) -> tuple[Params, Masks]:
        """One of the prunings that all can draw; the first follows the rule to the letter."""
        layout, drawn = ctx.task.layout, ctx.common.fold("candidate", number)
        shares = sparsity.allocate(layout, self.density, self.allocation, self.fc_density)
        key = ctx.common.fold("init")
        if number and self.selection.differ == "weights":
            key = drawn.fold("init")
        elif number:
            noise = 2 * uniform_numbers(drawn, len(shares)) - 1
            spread = sparsity.as_fraction(self.selection.spread)
            wanted = {
                name: min(share * (1 + spread * sparsity.as_fraction(float(each))), Fraction(1))
                for (name, share), each in zip(shares.items(), noise, strict=True)
            }
            shares = sparsity.sensitivity(layout, wanted, self.density)
        params = ctx.task.init(key)
        return params, sparsity.largest(params, sparsity.apportion(layout, shares))

    def _first(self, ctx: Ctx) -> mask_adjustment.Draw:
        return lambda number: self.candidate(ctx, number)[1]

    @property
    def _numbers(self) -> range:
        return range(self.selection.candidates)

    def _statistics(
        self, ctx: Ctx, exchanges: Iterable[Exchange[Down, Up]]
    ) -> Iterator[tuple[Params, float]]:
        """What clients found, all candidates in one dictionary."""
        known = _statistics(ctx, ctx.task.buffers())
        for exchange in exchanges:
            if not isinstance(exchange.up, Statistics):
                raise WireError("statistics were asked for, and something else came back")
            for found in exchange.up.means:
                merge.fitting(found, known)
                if any(bool((found[n] < 0).any()) for n in found if n.endswith("running_var")):
                    raise WireError("a variance came back that is below zero")
            flat = {
                f"{number} {name}": tensor
                for number, found in enumerate(exchange.up.means)
                for name, tensor in found.items()
            }
            yield flat, merge.weight(exchange.client, self.weighting)

    def _apart(self, ctx: Ctx, means: Params) -> tuple[Params, ...]:
        names = ctx.task.running_statistics
        return tuple({name: means[f"{each} {name}"] for name in names} for each in self._numbers)

    def _chosen(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        """The candidate with the lowest mean loss, and with the statistics that it was tried."""
        total = torch.zeros(len(self._numbers)).double()
        met = 0
        for exchange in exchanges:
            if not isinstance(exchange.up, Losses):
                raise WireError("losses were asked for, and something else came back")
            total += exchange.up.losses * merge.weight(
                exchange.client, self.selection.loss_weighting
            )
            met += 1
        if not met:
            return state
        number = int(total.argmin())
        params, masks = self.candidate(ctx, number)
        statistics = state.statistics[number] if state.statistics else {}
        return Server(mask_adjustment.begun({**params, **statistics}, masks, number), ())

    # when -----------------------------------------------------------------------------------------

    def _training(self, ctx: Ctx) -> bool:
        return ctx.round > self.selection.rounds(ctx)

    def _estimating(self, ctx: Ctx) -> bool:
        return ctx.round == 1 and self.selection.rounds(ctx) == 2

    def _since(self, ctx: Ctx) -> Ctx:
        return mask_adjustment.later(ctx, self.selection.rounds(ctx))


def clean() -> FedTiny:
    """The simplest form of the authors' library, which it compares other methods with."""
    return FedTiny(
        allocation="erk",
        selection=Selection(candidates=1),
        adjustment=Adjustment(
            adjust_until=300, adjust_ratio=0.2, blocks=1, upload="all", prune_first=True
        ),
    )


def _statistics(ctx: Ctx, params: Params) -> Params:
    return {name: params[name] for name in ctx.task.running_statistics}


def _tried(ctx: Ctx, trial: Trial, batch: Batch) -> Trial:
    """One batch through all candidates."""
    size = len(batch.y)
    for number, model in enumerate(trial.models):
        if trial.scores:
            with torch.no_grad():
                loss = ctx.task.criterion(ctx.task.logits(model, batch.x), batch.y)
            trial.losses[number] += size * float(loss)
            continue
        for name, found in ctx.task.batch_statistics(model, batch.x).items():
            trial.sums[number][name].add_(found, alpha=size)
    trial.examples += size
    return trial
