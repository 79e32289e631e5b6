"""SSFL (SalientGrads): clients score all weights once, before training; the best-scored ones train.

A score is how much the loss depends on a weight, |gradient * weight|, on a client's first batch and
at the initial weights. The server averages the scores and keeps the highest of the whole model. The
mask stays; from then on this is FedAvg on the weights that were kept.

Ohib, Thapaliya, Dziugaite, Liu, Calhoun, Plis: SSFL: discovering sparse unified subnetworks at
initialization for efficient federated learning. TMLR 2025. https://arxiv.org/abs/2405.09037

Differs from the authors' code (https://github.com/riohib/SalientGrads): no weight decay (5e-4
there), and the learning rate stays (there it falls by 0.2 % a round).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import held_versions, masked_training, sensitivity_probe, sparse_model
from gossamer.methods.parts.held_versions import Local
from gossamer.methods.parts.sparse_model import BatchNorm, SparseModel
from gossamer.optim import Training
from gossamer.trust.declared import COVERED, Privacy
from gossamer.wire import Revision, WireError


@dataclass(frozen=True)
class Server:
    params: Params
    masks: Masks  # none before the scores are known
    held: Tensor  # by client id: 0 if the client has the masks, or -1


@dataclass(frozen=True)
class Score:  # asks for scores
    params: Params


@dataclass(frozen=True)
class Train:
    model: SparseModel
    mask: Revision | None  # none if the client holds it


@dataclass(frozen=True)
class Scores:
    scores: Params


@dataclass(frozen=True)
class Update:
    model: SparseModel


@dataclass
class Scoring:
    params: Params
    gradients: Params  # sums over the batches
    batches: int = 0


Down = Score | Train
Up = Scores | Update
Work = Scoring | masked_training.Work


@dataclass(frozen=True)
class SSFL:
    clients: int = option(10, "clients per round", least=1)
    density: float = option(0.5, "fraction of the prunable weights kept", above=0, most=1)
    probe_clients: int = option(0, "clients that score the weights; 0: all of them", least=0)
    probe_batches: int = option(1, "batches that a client scores the weights on", least=1)
    training: Training = Training(epochs=5, batch=16, lr=0.1)
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    bn: BatchNorm = option("running", sparse_model.BN_HELP)
    accounting: Accounting = Accounting()
    privacy: ClassVar[Privacy] = COVERED

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if ctx.rounds < 2:
            raise ValueError("the first round scores the weights and trains none; use `rounds=2`")
        sparse_model.prunable(ctx)
        return Server(ctx.task.init(ctx.common.fold("init")), {}, held_versions.NOBODY)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        if state.masks:
            return sample(ctx.key, pool, self.clients)
        return sample(ctx.key, pool, min(self.probe_clients or len(pool), len(pool)))

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        message = self.resend(ctx, state, client)
        current = held_versions.holds(state.held, client, 0)
        return replace(message, mask=None) if current and isinstance(message, Train) else message

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        params, masks = state.params, state.masks
        if not masks:
            return Score(params)
        return Train(sparse_model.send(ctx, params, masks, self.bn), Revision(masks))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        if not state.masks:
            return self.scored(ctx, state, exchanges)
        participants: list[int] = []
        mean = merge.mean(self.received(ctx, state, exchanges, participants))
        held = held_versions.updated(state.held, participants, 0)
        return replace(state, params={**state.params, **mean}, held=held) if mean else state

    def scored(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        """The masks of the highest mean scores."""
        weights = {name: state.params[name] for name in ctx.task.layout.prunable}

        def scores() -> Iterator[tuple[Params, float]]:
            for exchange in exchanges:
                if not isinstance(exchange.up, Scores):
                    raise WireError("a model came back where scores were asked for")
                yield merge.fitting(exchange.up.scores, weights), 1.0

        mean = merge.mean(scores())
        masks = best(mean, self.density) if mean else {}
        return replace(state, params=sparsity.masked(state.params, masks), masks=masks)

    def received(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]], ids: list[int]
    ) -> Iterator[tuple[Params, float]]:
        """Each client's model and its weight in the mean; appends the clients to `ids`."""
        for exchange in exchanges:
            up, down, client = exchange.up, exchange.down, exchange.client
            if not isinstance(up, Update) or not isinstance(down, Train):
                raise WireError("scores came back where a model was asked for")
            ids.append(client.id)
            params = sparse_model.receive_reply(ctx, up.model, down.model, state.masks)
            yield params, merge.weight(client, self.weighting)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        if isinstance(down, Train):
            return [Update(down.model)]
        return [Scores({name: down.params[name] for name in ctx.task.layout.prunable})]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        training = self.training
        if isinstance(down, Score):
            params = ctx.task.own(down.params)
            nothing = {name: torch.zeros_like(params[name]) for name in ctx.task.layout.prunable}
            epochs = training.epochs_for(ctx, self.probe_batches)
            return Job(Scoring(params, nothing), epochs, training.batch)
        masks = held_versions.received(down.mask, local.masks if local else None)
        params = sparse_model.receive(ctx, down.model, masks)
        rate = training.rate(sensitivity_probe.after_probe(ctx))
        return Job(masked_training.begin(ctx, params, masks, rate), training.epochs, training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        if not isinstance(work, Scoring):
            masked_training.step(ctx, self.training, work, batch)
            return work
        _, grads = ctx.task.gradients(work.params, batch)
        sums = {name: total + grads[name] for name, total in work.gradients.items()}
        return Scoring(work.params, sums, work.batches + 1)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        if isinstance(work, Scoring):
            return Result(Scores(saliency(work)))
        up = Update(sparse_model.send(ctx, work.params, work.masks, self.bn))
        return Result(up, Local(work.masks), work.masks, metrics=masked_training.metrics(work))

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The masks of the model; all weights before they are known."""
        return Measures(state.masks or sparse_model.all_ones(ctx))


def saliency(work: Scoring) -> Params:
    """The connection sensitivity |g * w| of each weight, g being the mean over the batches."""
    count = max(work.batches, 1)
    return {n: (total / count * work.params[n]).abs() for n, total in work.gradients.items()}


def best(scores: Params, density: float) -> Masks:
    """Masks of the highest scores of the whole model; a layer keeps at least one weight."""
    everywhere = {name: torch.ones_like(score, dtype=torch.bool) for name, score in scores.items()}
    total = sum(score.numel() for score in scores.values())
    return sparsity.largest_of_all(scores, int(sparsity.as_fraction(density) * total), everywhere)
