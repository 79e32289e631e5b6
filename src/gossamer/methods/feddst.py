"""FedDST: clients train one sparse model, and now and then move its mask by their gradients.

In a readjustment round, every client prunes its smallest weights and regrows as many where the
gradient of its last batch is largest. The server averages each weight over the clients that kept
it and prunes the union of their masks to the target density. `mu` adds FedProx's proximal term;
with `readjust_ratio` 0 the first mask stays (RandomMask).

Bibikar, Vikalo, Wang, Chen: Federated dynamic sparse training: computing less, communicating less,
yet learning better. AAAI 2022. https://arxiv.org/abs/2112.09824
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.devices.declared import of_masks
from gossamer.fields import option
from gossamer.methods.parts import client_readjustment, held_versions, masked_training, sparse_model
from gossamer.methods.parts.client_readjustment import (
    TRAINING,
    Readjustment,
    Up,
    quotas,
    readjust_when_due,
)
from gossamer.methods.parts.held_versions import Local
from gossamer.methods.parts.masked_training import Work
from gossamer.methods.parts.sparse_model import BatchNorm, SparseModel
from gossamer.optim import Training
from gossamer.sparsity import Average, Counts
from gossamer.trust.declared import CHOSEN_MASKS, COVERED, Privacy
from gossamer.wire import Revision


@dataclass(frozen=True)
class Server:
    params: Params
    masks: Masks
    version: int  # of the masks
    held: Tensor  # by client id: the version that the client holds, or -1
    mean_jaccard: float = 0.0  # mean distance between the masks of two clients, last round


@dataclass(frozen=True)
class Down:
    model: SparseModel
    mask: Revision | None  # none if the client holds it


@dataclass(frozen=True)
class FedDST:
    clients: int = option(20, "clients per round", least=1)
    density: float = option(0.2, "fraction of the prunable weights kept", above=0, most=1)
    readjustment: Readjustment = Readjustment()
    mu: float = option(0.0, "strength of the proximal term", least=0)
    training: Training = TRAINING
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    bn: BatchNorm = option("running", sparse_model.BN_HELP)
    accounting: Accounting = Accounting()
    timing = property(lambda self: of_masks(self.readjustment.readjust_ratio > 0, False))

    @property
    def privacy(self) -> Privacy:
        """Replies can be covered unless clients move masks."""
        return COVERED if not self.readjustment.readjust_ratio else CHOSEN_MASKS

    def rate(self, ctx: Ctx) -> float:
        """The fraction of the active weights that clients readjust in this round."""
        return self.readjustment.rate(ctx.round - 1, ctx.rounds)

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        params = ctx.task.init(ctx.common.fold("init"))
        masks = sparsity.largest(params, quotas(ctx, self.density))
        return Server(sparsity.masked(params, masks), masks, 0, held_versions.NOBODY)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        message = self.resend(ctx, state, client)
        current = held_versions.holds(state.held, client, state.version)
        return replace(message, mask=None) if current else message

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        model = sparse_model.send(ctx, state.params, state.masks, self.bn)
        return Down(model, Revision(state.masks))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        participants: list[int] = []
        counts, here = quotas(ctx, self.density), (self.weighting, participants)
        replies = client_readjustment.received(ctx, exchanges, state.masks, counts, {}, *here)
        average = sparsity.masked_mean(replies, "wfa")  # eq. 4
        if not participants:
            return state
        return updated(state, average, counts, participants, self.rate(ctx) > 0)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return client_readjustment.replies(ctx, down.model, self.rate(ctx))

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        masks = held_versions.received(down.mask, local.masks if local else None)
        params = sparse_model.receive(ctx, down.model, masks)
        work = masked_training.begin(ctx, params, masks, self.training.rate(ctx))
        work.anchor = ctx.task.own(params) if self.mu else {}
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        masked_training.step(ctx, self.training, work, batch, prox=self.mu)
        readjust_when_due(ctx, work, batch, self.density, self.rate(ctx))
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        moved = self.rate(ctx) > 0
        model = sparse_model.send(ctx, work.params, work.masks, self.bn)
        up = Up(model, Revision(work.masks, work.start) if moved else None)
        local = None if moved else Local(work.masks)
        metrics = masked_training.metrics(work, moved)
        return Result(up, local, work.masks, metrics=metrics, searched=work.searched)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The masks of the model, and how far those of clients were from one another."""
        return Measures(state.masks, {"client_mismatch": state.mean_jaccard})


def updated(
    state: Server, average: Average, counts: Counts, participants: Sequence[int], readjusts: bool
) -> Server:
    """The server after a round; if masks keep more than `counts`, the smallest weights go."""
    params, masks = {**state.params, **average.params}, average.owned
    if any(kept > counts[name] for name, kept in sparsity.count(masks).items()):
        masks = sparsity.largest(params, counts, masks)
    moved = not sparse_model.same(masks, state.masks)
    masks = masks if moved else state.masks
    params, version = sparsity.masked(params, masks), state.version + moved
    held = held_versions.updated(state.held, participants, -1 if readjusts or moved else version)
    return Server(params, masks, version, held, average.mean_jaccard)


def random_mask() -> FedDST:
    """RandomMask: the mask of the largest first weights stays."""
    return FedDST(readjustment=Readjustment(readjust_ratio=0.0))
