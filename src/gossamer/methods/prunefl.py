"""PruneFL: keep the weights that lower the loss most for the time they cost.

First, one client trains alone, and the server prunes the model until its density is steady; a round
lasts until the next adjustment. Then all clients train. Every `adjust_every` rounds they also send
the importance of each weight, pruned or not: its squared gradient. The server drops the smallest
weights of each layer, and adds weights as long as the importance per second of a round grows.

Jiang, Wang, Valls, Ko, Lee, Leung, Tassiulas: Model pruning enables efficient federated learning on
edge devices. IEEE TNNLS 2022. https://arxiv.org/abs/1909.12326

Differs from the paper: the time of a weight comes from its products, not from measurements.
Differs from the authors' code: the first phase uses all data of its client, tests the accuracy only
before an adjustment, lets pruned weights return, and counts for the learning rate. Importance that
was gathered under another mask is discarded. Counts are exact under ties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer import core, merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params, Result
from gossamer.fields import option
from gossamer.methods.parts import held_versions, masked_training, sparse_model
from gossamer.methods.parts.sparse_model import BN_HELP, BatchNorm, SparseModel
from gossamer.optim import Training
from gossamer.sparsity import Gathered, Importance, Pace
from gossamer.wire import Revision, WireError


@dataclass(frozen=True)
class Server:
    params: Params  # a pruned weight keeps the value it was pruned with
    masks: Masks
    version: int  # of the masks
    held: Tensor  # by client id: the version that the client holds, or -1
    importance: Importance | None = None  # gathered in the first phase, before pruning starts
    alone: int = 0  # rounds of the first phase so far
    pruned: bool = False  # whether pruning has started
    steady: int = 0  # the latest adjustments in a row that hardly changed the density
    rounds: int = 0  # of the second phase so far


@dataclass(frozen=True)
class Train:
    model: SparseModel
    mask: Revision | None  # None if the client holds it, or nothing is pruned


@dataclass(frozen=True)
class Measure:
    model: SparseModel
    mask: Revision | None
    first: bool  # whether this is the first phase


Down = Train | Measure


@dataclass(frozen=True)
class Update:
    model: SparseModel


@dataclass(frozen=True)
class Measured:
    model: SparseModel
    importance: Importance
    ready: bool | None  # in the first phase: whether the model is accurate enough to be pruned


Up = Update | Measured


@dataclass(frozen=True)
class Local:
    masks: Masks
    importance: Importance | None  # gathered under these masks, and not sent yet


@dataclass
class Work:
    model: masked_training.Work
    gathered: Gathered  # gradients; in the first phase, their squares
    sends: bool  # whether the server asks for importance
    earlier: Importance | None = None  # of earlier rounds under the same masks


@dataclass(frozen=True)
class PruneFL:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training(batch=20, lr=0.1, schedule="exponential", decay=0.5**1e-4)
    steps: int = option(5, "local steps; 0: as many as --epochs have", least=0)
    first_rounds: int = option(20, "rounds of the first phase, at most; 0: none", least=0)
    first_batches: int = option(10, "batches in a pass of the first phase", least=1)
    first_accuracy: float = option(1.5, "pruning starts at so many times chance accuracy", least=0)
    first_change: float = option(0.1, "relative change of a steady density, at most", least=0)
    first_patience: int = option(5, "steady adjustments in a row that end the phase", least=1)
    adjust_every: int = option(50, "rounds between adjustments of the mask", least=1)
    adjust_ratio: float = option(0.3, "initial fraction of a layer dropped", least=0, most=1)
    adjust_half_life: float = option(10000.0, "rounds in which that fraction halves", above=0)
    max_density: float = option(1.0, "density up to which weights are added", above=0, most=1)
    pace: Pace = Pace()
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    bn: BatchNorm = option("running", BN_HELP)
    accounting: Accounting = Accounting()

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        masks = sparse_model.all_ones(ctx)
        return Server(ctx.task.init(ctx.common.fold("init")), masks, 0, held_versions.NOBODY)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        if not self.in_first_phase(state):
            return core.sample(ctx.key, pool, self.clients)
        lost = ctx.round - 1 - state.alone  # always the same client, unless it fails
        return core.sample_richest(ctx.common.fold("first", lost), pool, 1)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        model = sparse_model.send(ctx, state.params, state.masks, self.bn)
        holds = held_versions.holds(state.held, client, state.version)
        mask = None if holds or model.whole else Revision(state.masks)
        first = self.in_first_phase(state)
        return Measure(model, mask, first) if first or self.adjusts(state) else Train(model, mask)

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return self.down(ctx, replace(state, held=held_versions.NOBODY), client)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        clients: list[Client] = []
        gathered, ready = Importance({}, 0.0), False

        def replies() -> Iterator[tuple[Params, Masks, float]]:
            nonlocal gathered, ready
            for exchange in exchanges:
                up, down, client = exchange.up, exchange.down, exchange.client
                if isinstance(up, Measured) != isinstance(down, Measure):
                    raise WireError("importance came back unasked, or was asked for and did not")
                params = sparse_model.receive_reply(ctx, up.model, down.model, state.masks)
                if isinstance(up, Measured):
                    if up.importance.negative():
                        raise WireError("importance came with numbers below zero; no square is")
                    gathered = up.importance.times(1.0).plus(gathered)
                    ready = ready or bool(up.ready)
                clients.append(client)
                yield params, state.masks, merge.weight(client, self.weighting)

        mean = sparsity.masked_mean(replies(), "fedavg", state.params).params
        if not clients:
            return state
        held = held_versions.updated(state.held, [each.id for each in clients], state.version)
        merged = replace(state, params={**state.params, **mean}, held=held)
        if self.in_first_phase(state):
            return self.adjust_alone(ctx, merged, gathered, ready, clients)
        if self.adjusts(state):
            ratio = self.adjust_ratio * 0.5 ** (state.rounds / self.adjust_half_life)
            merged = self.adjust(ctx, merged, gathered, ratio, clients)
        return replace(merged, rounds=state.rounds + 1)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        if isinstance(down, Train):
            return [Update(down.model)]
        zeros = {name: torch.zeros(shape) for name, shape in down.model.values.shapes.items()}
        return [Measured(down.model, Importance(zeros, 0.0), False if down.first else None)]

    def in_first_phase(self, state: Server) -> bool:
        return state.alone < self.first_rounds and state.steady < self.first_patience

    def adjusts(self, state: Server) -> bool:
        """Whether the next round, if in the second phase, adjusts the masks."""
        return state.rounds > 0 and state.rounds % self.adjust_every == 0

    def adjust_alone(
        self, ctx: Ctx, state: Server, new: Importance, ready: bool, clients: Sequence[Client]
    ) -> Server:
        """The end of a round of the first phase."""
        gathered, alone = new.plus(state.importance), state.alone + 1
        if not gathered.any():  # a dry run: go on to the phase that costs more
            return replace(state, alone=self.first_rounds)
        if not (state.pruned or ready):
            return replace(state, alone=alone, importance=gathered)
        after = self.adjust(ctx, state, gathered, self.adjust_ratio, clients)
        old, kept = sparse_model.total(state.masks), sparse_model.total(after.masks)
        close = abs(kept - old) <= sparsity.as_fraction(self.first_change) * old
        steady = state.steady + 1 if state.pruned and close else 0
        return replace(after, alone=alone, importance=None, pruned=True, steady=steady)

    def adjust(
        self, ctx: Ctx, state: Server, gain: Importance, drop: float, clients: Sequence[Client]
    ) -> Server:
        """Drops the smallest weights, and adds those that are worth the time they take."""
        layout, examples = ctx.task.layout, sum(map(self.examples, clients)) / len(clients)
        masks = self.pace.adjust(
            layout, examples, state.params, state.masks, gain, drop, self.max_density
        )
        same = sparse_model.same(masks, state.masks)
        return state if same else replace(state, masks=masks, version=state.version + 1)

    def examples(self, client: Client) -> float:
        """How many examples a client trains on in a round of the second phase."""
        return self.steps * self.training.batch or self.training.epochs * client.examples

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        masks = sparse_model.all_ones(ctx)
        if not down.model.whole:
            masks = held_versions.received(down.mask, local.masks if local else None)
        params = sparse_model.receive(ctx, down.model, masks)
        model = masked_training.begin(ctx, params, masks, self.training.rate(ctx))
        first = isinstance(down, Measure) and down.first
        trained = {name: model.params[name] for name in ctx.task.layout.parameters}
        work = Work(model, Gathered.zeros(trained, squared=first), isinstance(down, Measure))
        if local is not None and not first and sparse_model.same(masks, local.masks):
            work.earlier = local.importance
        steps = self.adjust_every * self.first_batches if first else self.steps
        epochs = self.training.epochs_for(ctx, steps) if steps else self.training.epochs
        return Job(work, epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        model = work.model
        # Of pruned weights too.
        loss, grads = ctx.task.gradients(model.params, batch, model.masks, everywhere=True)
        work.gathered.add(grads)
        masked_training.multiply(grads, model.factors)
        self.training.update(model.params, grads, model.model.moments, model.rate)
        masked_training.record(model, loss, batch)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        params, masks, all_weights = work.model.params, work.model.masks, sparse_model.all_ones(ctx)
        model = sparse_model.send(ctx, params, masks, self.bn)
        metrics = masked_training.metrics(work.model)
        importance = work.gathered.importance(masks, work.model.examples).plus(work.earlier)
        if not work.sends:
            return Result(Update(model), Local(masks, importance), masks, all_weights, metrics)
        ready = None
        if work.gathered.squared:
            few = ctx.own.train.first(self.first_batches * self.training.batch)
            metrics["accuracy"], chance = ctx.task.share(params, few)
            ready = metrics["accuracy"] >= self.first_accuracy * chance
        up = Measured(model, importance, ready)
        return Result(up, Local(masks, None), masks, all_weights, metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return sparsity.masked(state.params, state.masks)

    def measures(self, ctx: Ctx, state: Server) -> core.Measures:
        """The masks of the model, and the phase of the next round."""
        return core.Measures(state.masks, {"phase": 1.0 if self.in_first_phase(state) else 2.0})
