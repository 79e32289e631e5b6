"""PruneFL: prunes by what a weight does for the loss and what it takes in time; no density is set.

Jiang, Wang, Valls, Ko, Lee, Leung, Tassiulas: Model pruning enables efficient federated learning on
edge devices. IEEE TNNLS 2022. https://arxiv.org/abs/1909.12326

In the first phase one client trains alone, and the server prunes the model until its density is
steady. In the second all clients train it, and now and then also send how important each weight is,
pruned or not: the square of its gradients. The server then gives up the smallest weights of each
layer, and takes those that bring more importance per second of a round than all the rest.

A round of the first phase is what lies between two adjustments, `adjust_every` passes over
`first_batches` batches, so that it is counted, resumed and metered like any other; it comes off the
rounds of the run. `first_rounds` 0 leaves the phase out.

Differs from the paper: products tell what time a weight takes, not measurements of each layer.

Differs from the authors' code: the first phase goes over all data of its client instead of 200
examples, and looks at its accuracy before an adjustment only; pruned weights have gradients there
and may come back; its rounds count for the learning rate; it obeys `max_density`, which is not
exceeded by one. Clients come from a pool, and what one has gathered is void once the mask is
another. They count by all of their examples. Counts are exact under ties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import floor, prod
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
    Masks,
    Measures,
    Missing,
    Params,
    Result,
    sample,
    sample_richest,
)
from gossamer.fields import option
from gossamer.methods import gradients, sparse
from gossamer.methods.gradients import Gathers, Work
from gossamer.methods.sparse import BatchNorm
from gossamer.optim import Training
from gossamer.sparsity import Importance, Pace
from gossamer.wire import Packed, Revision, WireError

TRAINING = Training(batch=20, lr=0.1, schedule="exponential", decay=0.5 ** (1 / 10000))
"""Of VGG-11 on CIFAR-10: the rate halves in 10,000 rounds."""


@dataclass(frozen=True)
class Beginning:
    """The phase at one client, and when it ends."""

    first_rounds: int = option(20, "rounds at one client, at most; 0: no such phase", least=0)
    first_batches: int = option(10, "batches of a pass there", least=1)
    first_accuracy: float = option(
        1.5, "accuracy from which on it prunes, in multiples of guessing", least=0
    )
    first_change: float = option(0.1, "part by which a steady density changes, at most", least=0)
    first_patience: int = option(5, "steady adjustments in a row that end the phase", least=1)


@dataclass(frozen=True)
class Server:
    params: Params
    """Of all weights: a pruned one has the value it was pruned with."""
    masks: Masks
    version: int
    held: Tensor
    """By client id: the version of the masks that the client holds, or -1."""
    importance: Importance | None = None
    """What the first phase has gathered before it prunes."""
    alone: int = 0
    """Rounds of the first phase, so far."""
    pruned: bool = False
    """Whether it began to prune."""
    steady: int = 0
    """Its last adjustments in a row that left the density about as it was."""
    rounds: int = 0
    """Of the second phase, so far."""


@dataclass(frozen=True)
class Train:
    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None
    """Nothing, if the client holds it or the model is dense."""


@dataclass(frozen=True)
class Measure:
    """Asks for training, and then for what is important."""

    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None
    first: bool
    """Whether this is the first phase, where training takes long."""


Down = Train | Measure


@dataclass(frozen=True)
class Update:
    values: Packed
    dense: Params
    buffers: Params


@dataclass(frozen=True)
class Measured:
    values: Packed
    dense: Params
    buffers: Params
    importance: Importance
    """With gradients in place of their squares, where the last ones count."""
    ready: bool | None
    """In the first phase: whether the model is good enough to be pruned."""


Up = Update | Measured


@dataclass(frozen=True)
class Local:
    masks: Masks
    importance: Importance | None
    """Gathered with these masks, and not yet sent."""


@dataclass
class Answers:
    """Who answered in a round, and what they say of importance."""

    clients: list[Client] = field(default_factory=list)
    importance: Importance | None = None
    share: float = 0.0
    """What all that was said counts for."""
    ready: bool = False

    def add(self, said: Importance, share: float, ready: bool) -> None:
        """One more client that measured."""
        self.importance = said.times(share).plus(self.importance)
        self.share += share
        self.ready = self.ready or ready


@dataclass(frozen=True)
class PruneFL:
    clients: int = option(10, "clients per round", least=1)
    training: Training = TRAINING
    steps: int = option(5, "local steps; 0: as many as --epochs have", least=0)
    beginning: Beginning = Beginning()
    adjust_every: int = option(50, "rounds between adjustments of the mask", least=1)
    adjust_ratio: float = option(0.3, "part of a layer that is given up, at first", least=0, most=1)
    adjust_half_life: float = option(10000.0, "rounds in which that part halves", above=0)
    max_density: float = option(1.0, "density at which no more is added", above=0, most=1)
    target_density: float = option(
        0.0, "the same at the end of the run, on a line to it; 0: no change", least=0, most=1
    )
    gathering: Literal["all", "round", "last"] = option(
        "all", "gradients of all rounds with a mask, of one round, or FedDST's way, of one step"
    )
    comeback: Literal["kept", "zero"] = option(
        "kept", "a weight that comes back has the value it was pruned with, or zero"
    )
    pace: Pace = Pace()
    weighting: merge.Weighting = option("samples", "what a client counts for in the mean")
    bn: BatchNorm = option("running", "statistics are averaged, or found anew before a test")
    accounting: Accounting = Accounting()

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if not ctx.task.layout.prunable:
            raise ValueError("this model has no layer that may be pruned; see --prunable")
        if self.target_density > self.max_density:
            raise ValueError(
                f"--target-density {self.target_density:g} is above --max-density "
                f"{self.max_density:g}, from which it is reached; let it be lower"
            )
        params = ctx.task.init(ctx.common.fold("init"))
        masks = {name: torch.ones(params[name].shape) > 0 for name in ctx.task.layout.prunable}
        return Server(params, masks, 0, torch.zeros(0, dtype=torch.int32))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        if not self._begins(state):
            return sample(ctx.key, pool, self.clients)
        lost = ctx.round - 1 - state.alone  # it is one client all the time, unless it fails
        return sample_richest(ctx.common.fold("first", lost), pool, 1)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return self._message(ctx, state, sparse.holds(state.held, client, state.version))

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return self._message(ctx, state, holds=False)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        answers = Answers()
        replies = self._replies(ctx, state, exchanges, answers)
        average = sparsity.masked_mean(replies, "fedavg", state.params)
        if not answers.clients:
            return state
        held = sparse.marked(state.held, [each.id for each in answers.clients], state.version)
        merged = replace(state, params={**state.params, **average.params}, held=held)
        if self._begins(state):
            return self._first(ctx, merged, answers)
        found = answers.importance
        if found is not None and self._measures(state):
            if self.gathering == "last":
                found = gradients.squares(found.times(1 / answers.share))
            ratio = self.adjust_ratio * 0.5 ** (state.rounds / self.adjust_half_life)
            merged = self._adjusted(ctx, merged, found, ratio, answers.clients)
        return replace(merged, rounds=state.rounds + 1)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What the answer to a message looks like."""
        parts = (down.values, down.dense, down.buffers)
        if isinstance(down, Train):
            return [Update(*parts)]
        blank = {name: torch.zeros(shape) for name, shape in down.values.shapes.items()}
        return [Measured(*parts, Importance(blank, 0.0), False if down.first else None)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        masks = _told(down, local)
        params = sparse.joined(ctx, down.values, masks, down.dense, down.buffers)
        gathers = self._gathers(down)
        work = gradients.begin(ctx, params, masks, self.training.rate(ctx), gathers)
        work.sends = isinstance(down, Measure)
        if local is not None and gathers == "sum" and _same(masks, local.masks):
            work.earlier = local.importance
        batch, steps = self.training.batch, self.steps
        if gathers == "squares":
            steps = self.adjust_every * self.beginning.first_batches
        epochs = gradients.epochs(ctx, batch, steps) if steps else self.training.epochs
        return Job(work, epochs, batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return gradients.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        parts = (
            sparse.values(work.params, work.masks),
            sparse.dense(ctx, work.params),
            sparse.buffers(ctx, work.params, self.bn),
        )
        metrics = {"loss": work.loss.item() / max(work.examples, 1)}
        found = gradients.importance(work)
        needed = {n: torch.ones_like(m) for n, m in work.masks.items()} if work.gathers else {}
        if found is None or not work.sends:
            return Result(Update(*parts), Local(work.masks, found), work.masks, needed, metrics)
        ready = None
        if work.gathers == "squares":
            most = self.beginning.first_batches * self.training.batch
            metrics["accuracy"], guessing = gradients.accuracy(ctx, work.params, most)
            ready = metrics["accuracy"] >= self.beginning.first_accuracy * guessing
        up = Measured(*parts, found, ready)
        return Result(up, Local(work.masks, None), work.masks, needed, metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return sparsity.masked(state.params, state.masks)

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The masks of the model, and the phase that comes next."""
        return Measures(state.masks, {"phase": 1.0 if self._begins(state) else 2.0})

    # when -----------------------------------------------------------------------------------------

    def _begins(self, state: Server) -> bool:
        """Whether a round is one of the first phase."""
        left = state.alone < self.beginning.first_rounds
        return left and state.steady < self.beginning.first_patience

    def _measures(self, state: Server) -> bool:
        """Whether a round of the second phase ends with an adjustment."""
        return state.rounds > 0 and state.rounds % self.adjust_every == 0

    # masks ----------------------------------------------------------------------------------------

    def _first(self, ctx: Ctx, state: Server, answers: Answers) -> Server:
        """The end of a round of the first phase."""
        assert answers.importance is not None
        gathered = answers.importance.plus(state.importance)
        if not gathered.any():
            # Nobody took a step: a dry run, which can only go on to what costs more.
            return replace(state, alone=self.beginning.first_rounds)
        state = replace(state, alone=state.alone + 1)
        if not (state.pruned or answers.ready):
            return replace(state, importance=gathered)
        found = self._adjusted(ctx, state, gathered, self.adjust_ratio, answers.clients)
        before, after = sparse.total(state.masks), sparse.total(found.masks)
        close = abs(after - before) <= sparsity.as_fraction(self.beginning.first_change) * before
        steady = state.steady + 1 if state.pruned and close else 0
        return replace(found, importance=None, pruned=True, steady=steady)

    def _adjusted(
        self, ctx: Ctx, state: Server, found: Importance, ratio: float, clients: Sequence[Client]
    ) -> Server:
        """The state with the masks that importance and time ask for."""
        if not found.any():
            return state
        layout, weights = ctx.task.layout, {name: state.params[name] for name in state.masks}
        examples = sum(map(self._examples, clients)) / len(clients)
        times, fixed = self.pace.times(layout, examples), self.pace.fixed(layout, examples)
        most = self._most(ctx, state)
        masks = sparsity.adjust(weights, state.masks, found, times, fixed, ratio, most).masks
        if _same(masks, state.masks):
            return state
        params = sparsity.masked(state.params, masks) if self.comeback == "zero" else state.params
        return replace(state, params=params, masks=masks, version=state.version + 1)

    def _most(self, ctx: Ctx, state: Server) -> int:
        """How many weights there may be when one is added."""
        density = self.max_density
        if self.target_density:
            density += (self.target_density - density) * min(state.rounds / ctx.rounds, 1)
        return floor(
            sparsity.as_fraction(density) * sum(mask.numel() for mask in state.masks.values())
        )

    def _examples(self, client: Client) -> float:
        """What a client trains on in a round of the second phase."""
        return self.steps * self.training.batch or self.training.epochs * client.examples

    # parts ----------------------------------------------------------------------------------------

    def _gathers(self, down: Down) -> Gathers | None:
        if isinstance(down, Measure):
            return "squares" if down.first else "last" if self.gathering == "last" else "sum"
        return "sum" if self.gathering == "all" else None

    def _message(self, ctx: Ctx, state: Server, holds: bool) -> Down:
        values = sparse.values(state.params, state.masks)
        dense, buffers = sparse.dense(ctx, state.params), sparse.buffers(ctx, state.params, self.bn)
        mask = None if holds or _whole(values) else Revision(state.masks)
        first = self._begins(state)
        if first or self._measures(state):
            return Measure(values, dense, buffers, mask, first)
        return Train(values, dense, buffers, mask)

    def _replies(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]], answers: Answers
    ) -> Iterator[tuple[Params, Masks, float]]:
        for exchange in exchanges:
            up, down, client = exchange.up, exchange.down, exchange.client
            rest = merge.fitting({**up.dense, **up.buffers}, {**down.dense, **down.buffers})
            whole = sparse.joined(ctx, up.values, state.masks, rest)
            if self.bn == "static":
                whole = {name: whole[name] for name in ctx.task.layout.parameters}
            share = merge.weight(client, self.weighting)
            if isinstance(up, Measured) != isinstance(down, Measure):
                raise WireError("importance came back unasked, or was asked for and did not")
            if isinstance(up, Measured):
                if self._gathers(down) == "last":
                    answers.add(up.importance, share, False)
                else:
                    answers.add(gradients.checked(up.importance), 1.0, bool(up.ready))
            answers.clients.append(client)
            yield whole, state.masks, share


def _told(down: Down, local: Local | None) -> Masks:
    """What a client makes of a message about masks; none means those it holds."""
    if down.mask is not None:
        return down.mask.masks
    if _whole(down.values):
        return {name: torch.ones(shape) > 0 for name, shape in down.values.shapes.items()}
    if local is None:
        raise Missing("the server sent no mask, and none is held here")
    return local.masks


def _whole(values: Packed) -> bool:
    """Whether nothing is masked."""
    return all(v.numel() == prod(values.shapes[name]) for name, v in values.values.items())


def _same(first: Masks, second: Masks) -> bool:
    return all(torch.equal(mask, second[name]) for name, mask in first.items())
