"""PruneFL: prunes by what a weight does for the loss and what it costs in time; no density is set.

Jiang, Wang, Valls, Ko, Lee, Leung, Tassiulas: Model pruning enables efficient federated learning on
edge devices. IEEE TNNLS 2022. https://arxiv.org/abs/1909.12326

In the first phase one client trains alone, and the server prunes the model until its density is
steady. In the second all clients train it, and now and then they also send how important every
weight is, pruned ones included: the square of its gradients. The server then drops the smallest
weights, and takes those that bring more importance per second of a round than the rest does.

A round of the first phase is all that lies between two adjustments, `adjust_every` passes over
`first_batches` batches: as long as many other rounds, but counted, resumed and metered like them.
Rounds of this phase come off the rounds of a run. `first_rounds` 0 leaves it out.

Differs from the paper: what time a weight takes is told by its multiply-accumulates, not measured;
`Pace` has the authors' devices.

Differs from the authors' code: the first phase goes over all data of its client, not over 200
examples; pruned weights have gradients there too and may come back; it obeys `max_density`, which
is never exceeded by one; its rounds count for the learning rate. Clients are a pool: what one has
gathered is lost when it meets another mask. They count by their examples, not by those of a round.
Counts are exact under ties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor
from typing import Literal

import torch
from torch import Tensor

from gossamer import masks as rule
from gossamer import merge, optim
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
from gossamer.cost import Accounting
from gossamer.fields import option
from gossamer.layout import Layout
from gossamer.methods import sparse
from gossamer.methods.sparse import BatchNorm
from gossamer.optim import Training
from gossamer.wire import Packed, Revision, WireError

TRAINING = Training(batch=20, lr=0.1, schedule="exponential", decay=0.5 ** (1 / 10000))
"""Of CIFAR-10 with VGG-11; the rate halves in 10,000 rounds."""


@dataclass(frozen=True)
class Beginning:
    """The phase at one client, and when it ends."""

    first_rounds: int = option(20, "rounds at one client, at most; 0: no such phase", least=0)
    first_batches: int = option(10, "batches of a pass at one client", least=1)
    first_accuracy: float = option(
        1.5, "accuracy from which on it prunes, in multiples of guessing", least=0
    )
    first_change: float = option(0.1, "part by which a steady density changes, at most", least=0)
    first_patience: int = option(5, "steady adjustments in a row that end it", least=1)


@dataclass(frozen=True)
class Pace:
    """What a round takes on a device; only ratios matter.

    By default what fits a Raspberry Pi on wireless, after the constants in the authors' code.
    """

    mac_time: float = option(
        2e-9, "seconds to train one example, by multiply-accumulate of its forward pass", least=0
    )
    weight_time: float = option(5.6e-6, "seconds to send and receive a weight", above=0)
    fixed_time: float = option(
        2.0, "time that no pruning saves, in multiples of that of dense training", least=0
    )

    def times(self, layout: Layout, examples: float) -> dict[str, float]:
        """What each weight of a layer adds to a round with so many examples."""
        each = self.mac_time * examples
        leaves = {name: layout[name] for name in layout.prunable}
        return {n: each * leaf.macs / leaf.count + self.weight_time for n, leaf in leaves.items()}

    def fixed(self, layout: Layout, examples: float) -> float:
        """What a round takes beside that."""
        return self.fixed_time * self.mac_time * examples * layout.macs


@dataclass(frozen=True)
class Server:
    params: Params
    """Of all weights: a pruned one has the value it was pruned with."""
    masks: Masks
    version: int
    held: Tensor
    """By client id: the version of the masks that the client holds, or -1."""
    importance: Params
    """What the first phase has gathered before it prunes."""
    rest: float
    """The same, of all that is never pruned."""
    alone: int
    """Rounds of the first phase, so far."""
    pruned: bool
    """Whether it has pruned anything."""
    steady: int
    """Its last adjustments in a row that left the density as it was."""
    rounds: int
    """Of the second phase, so far."""


@dataclass(frozen=True)
class First:
    """Asks one client to train for long, and to tell how important weights are."""

    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None
    """Nothing, if the client holds it or the model is dense."""


@dataclass(frozen=True)
class Train:
    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None


@dataclass(frozen=True)
class Measure:
    """Asks to train, and to tell how important weights are."""

    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None


Down = First | Train | Measure


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
    importance: Params
    """Of every prunable weight; its gradient instead, if the last one counts."""
    rest: float
    """The importance of all that is never pruned."""
    ready: bool | None
    """In the first phase: whether the model is good enough to be pruned."""


Up = Update | Measured


@dataclass(frozen=True)
class Local:
    masks: Masks
    importance: Params
    """Gathered with these masks and not yet sent."""
    rest: float


@dataclass
class Work:
    """A sparse model in training; `step` updates it in place."""

    params: Params
    masks: Masks
    kept: Params
    """The masks as numbers, to multiply gradients with."""
    rate: float
    asked: type[Down]
    gradients: Params
    """Their sum or, in the first phase, that of their squares; nothing, if nobody wants it."""
    importance: Params
    """Gathered in earlier rounds."""
    rest: float
    velocity: optim.Velocity = field(default_factory=list)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    examples: int = 0


@dataclass
class Gathered:
    """What the clients of a round say about importance."""

    importance: Params = field(default_factory=dict)
    rest: float = 0.0
    ready: bool = False
    share: float = 0.0

    def add(self, up: Measured, share: float) -> None:
        """One more client, that counts for so much."""
        for name, tensor in up.importance.items():
            before = self.importance.get(name)
            found = tensor.double() * share
            self.importance[name] = found if before is None else before.add_(found)
        self.rest += up.rest * share
        self.ready |= bool(up.ready)
        self.share += share


@dataclass(frozen=True)
class PruneFL:
    clients: int = option(10, "clients per round", least=1)
    training: Training = TRAINING
    steps: int = option(5, "local steps; 0: as many as --epochs have", least=0)
    beginning: Beginning = Beginning()
    adjust_every: int = option(50, "rounds between adjustments of the mask", least=1)
    adjust_ratio: float = option(
        0.3, "part of each layer that is up for pruning, at first", least=0, most=1
    )
    adjust_half_life: float = option(10000.0, "rounds in which that part halves", above=0)
    max_density: float = option(1.0, "density above which no weight is added", above=0, most=1)
    target_density: float = option(
        0.0, "the same at the end of the run, on a line to it; 0: as at first", least=0, most=1
    )
    importance: Literal["accumulated", "round", "last"] = option(
        "accumulated",
        "squares of gradients: of all rounds since an adjustment, of the round that sends them, or "
        "of its last step alone, as in FedDST's comparison",
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
                f"--target-density is {self.target_density:g} and --max-density, from which the "
                f"density falls to it, {self.max_density:g}; let the second be larger"
            )
        params = ctx.task.init(ctx.common.fold("init"))
        masks = {name: torch.ones(params[name].shape) > 0 for name in ctx.task.layout.prunable}
        nobody = torch.zeros(0, dtype=torch.int32)
        return Server(params, masks, 0, nobody, {}, 0.0, 0, False, 0, 0)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        if not self._begins(state):
            return sample(ctx.key, pool, self.clients)
        lost = ctx.round - 1 - state.alone  # rounds without an answer: who gave none is replaced
        return sample_richest(ctx.common.fold("first", lost), pool, 1)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return self._message(ctx, state, sparse.holds(state.held, client, state.version))

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return self._message(ctx, state, holds=False)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        met: list[Client] = []
        gathered = Gathered()
        replies = self._replies(ctx, state, exchanges, met, gathered)
        average = rule.masked_mean(replies, "fedavg", state.params)
        if not met:
            return state
        held = sparse.marked(state.held, [client.id for client in met], state.version)
        merged = replace(state, params={**state.params, **average.params}, held=held)
        examples = sum(map(self._examples, met)) / len(met)
        if self._begins(state):
            return self._begun(ctx, merged, gathered, examples)
        if self._measures(state):
            ratio = self.adjust_ratio * 0.5 ** (state.rounds / self.adjust_half_life)
            merged = self._adjusted(ctx, merged, gathered, ratio, examples)
        return replace(merged, rounds=state.rounds + 1)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What the answer to a message looks like."""
        parts = (down.values, down.dense, down.buffers)
        if isinstance(down, Train):
            return [Update(*parts)]
        blank = {name: torch.zeros(shape) for name, shape in down.values.shapes.items()}
        return [Measured(*parts, blank, 0.0, False if isinstance(down, First) else None)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        masks = _told(down, local)
        own = ctx.task.own(sparse.joined(ctx, down.values, masks, down.dense, down.buffers))
        kept = rule.numbers(masks, {name: own[name] for name in masks})
        gradients = {}
        if self.importance == "accumulated" or not isinstance(down, Train):
            gradients = {name: torch.zeros_like(own[name]) for name in ctx.task.layout.parameters}
        work = Work(own, masks, kept, self.training.rate(ctx), type(down), gradients, {}, 0.0)
        if local is not None and isinstance(down, Train | Measure) and _same(masks, local.masks):
            work.importance, work.rest = local.importance, local.rest
        steps = self.steps
        if isinstance(down, First):
            steps = self.adjust_every * self.beginning.first_batches
        batch = self.training.batch
        epochs = steps / _per_epoch(ctx, batch) if steps else self.training.epochs
        return Job(work, epochs, batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        dense = bool(work.gradients)
        loss, grads = ctx.task.gradients(work.params, batch, None if dense else work.kept)
        if dense:
            self._gather(work, grads)
            torch._foreach_mul_([grads[name] for name in work.kept], list(work.kept.values()))
        self.training.update(work.params, grads, work.velocity, work.rate)
        work.loss = work.loss + loss * len(batch.y)
        work.examples += len(batch.y)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        parts = (
            sparse.values(work.params, work.masks),
            sparse.dense(ctx, work.params),
            sparse.buffers(ctx, work.params, self.bn),
        )
        metrics = {"loss": work.loss.item() / max(work.examples, 1)}
        importance, rest = self._importance(ctx, work)
        needed = {name: mask | True for name, mask in work.masks.items()} if work.gradients else {}
        if work.asked is Train:
            kept = Local(work.masks, importance, rest)
            return Result(Update(*parts), kept, work.masks, needed, metrics)
        ready = None
        if work.asked is First:
            count = self.beginning.first_batches * self.training.batch
            metrics["accuracy"], guessed = _accuracy(ctx, work.params, count)
            ready = metrics["accuracy"] >= self.beginning.first_accuracy * guessed
        up = Measured(*parts, importance, rest, ready)
        return Result(up, Local(work.masks, {}, 0.0), work.masks, needed, metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return rule.masked(state.params, state.masks)

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The masks of the model, and which phase it is in."""
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

    def _begun(self, ctx: Ctx, state: Server, gathered: Gathered, examples: float) -> Server:
        """The end of a round of the first phase."""
        state = replace(state, alone=state.alone + 1)
        for name, tensor in state.importance.items():
            gathered.importance[name] += tensor
        gathered.rest += state.rest
        if not (state.pruned or gathered.ready):
            return replace(state, importance=gathered.importance, rest=gathered.rest)
        found = self._adjusted(ctx, state, gathered, self.adjust_ratio, examples)
        before, after = sparse.total(state.masks), sparse.total(found.masks)
        close = abs(after - before) <= rule.meant(self.beginning.first_change) * before
        steady = state.steady + 1 if state.pruned and close else 0
        return replace(found, importance={}, rest=0.0, pruned=True, steady=steady)

    def _adjusted(
        self, ctx: Ctx, state: Server, gathered: Gathered, ratio: float, examples: float
    ) -> Server:
        """The state with the masks that importance and time ask for."""
        importance, rest = gathered.importance, gathered.rest
        if self.importance == "last" and not self._begins(state):
            importance = {n: (tensor / gathered.share) ** 2 for n, tensor in importance.items()}
            rest /= gathered.share
        layout = ctx.task.layout
        times, fixed = self.pace.times(layout, examples), self.pace.fixed(layout, examples)
        weights = {name: state.params[name] for name in state.masks}
        most = self._most(ctx, state)
        found = rule.adjust(weights, state.masks, importance, times, ratio, fixed, rest, most)
        params = state.params
        if self.comeback == "zero":
            params = rule.masked(params, found.masks)
        if _same(found.masks, state.masks):
            return replace(state, params=params)
        return replace(state, params=params, masks=found.masks, version=state.version + 1)

    def _most(self, ctx: Ctx, state: Server) -> int:
        """How many weights masks may have before no more are added."""
        density = self.max_density
        if self.target_density:
            density += (self.target_density - density) * min(state.rounds / ctx.rounds, 1)
        return floor(rule.meant(density) * sum(mask.numel() for mask in state.masks.values()))
