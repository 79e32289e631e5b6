"""FedDST as its authors' released code runs it, and with every other reading as an option.

Differences of the released code from the paper: growth may choose active weights, the cosine only
decides until when masks are readjusted, the proximal term has no gradient, clients are drawn with
replacement and weighted by batches, and the first download is not charged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gossamer import fields, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params
from gossamer.fields import option
from gossamer.methods import feddst
from gossamer.methods.as_published.delegation import variants_of
from gossamer.methods.as_published.repeated_draws import Sampling, Weighted
from gossamer.methods.feddst import Down, FedDST, Server
from gossamer.methods.parts import client_readjustment, held_versions, masked_training, sparse_model
from gossamer.methods.parts.client_readjustment import TRAINING, Up
from gossamer.methods.parts.held_versions import Local
from gossamer.methods.parts.masked_training import Work
from gossamer.methods.parts.sparse_model import BatchNorm
from gossamer.optim import Training
from gossamer.sparsity import Allocation, Averaging, Counts, Rounding
from gossamer.wire import Revision

Start = Literal["magnitude", "random"]


@dataclass(frozen=True)
class Readjustment:
    """When clients readjust their masks, how much of them, and where weights grow."""

    pure: client_readjustment.Readjustment = client_readjustment.Readjustment()
    readjust_decay: Literal["cosine", "constant"] = option(
        "cosine", "the fraction that clients readjust decays, or stays as in FedDST's code"
    )
    feddst_growth: bool = option(False, "growth may choose active weights, which restart from zero")

    def rate(self, number: int, rounds: int) -> float:
        """The fraction readjusted in a round, counted from 0; 0 if none is due."""
        rate = self.pure.rate(number, rounds)
        return self.pure.readjust_ratio if rate and self.readjust_decay == "constant" else rate


@dataclass(frozen=True)
class First:
    """Lets a client start from the first model and mask, which it draws from the common seed."""


@variants_of(FedDST)
@dataclass(frozen=True)
class FedDSTVariants:
    clients: int = option(20, "clients per round", least=1)
    training: Training = TRAINING
    density: float = option(0.2, "fraction of the prunable weights kept", above=0, most=1)
    final_density: float = option(
        0.0, "density in the last round, reached linearly; 0: as in the first", least=0, most=1
    )
    allocation: Allocation = option("erk-feddst", "how the density of each layer is determined")
    fc_density: float = option(
        1.0, "density of the last fully connected layer under erk-plus", least=0, most=1
    )
    rounding: Rounding = option("floor", "how the counts of layers are rounded")
    mask_start: Start = option("magnitude", "first mask: the largest first weights, or random")
    readjustment: Readjustment = Readjustment()
    mu: float = option(0.0, "strength of the proximal term", least=0)
    prox_noop: bool = option(False, "the proximal term has no gradient, as in the released code")
    sampling: Sampling = Sampling()
    averaging: Averaging = option("wfa", "mean over all clients, or over those that kept a weight")
    min_votes: int = option(0, "clients that must keep a weight for it to stay", least=0)
    remember_old: bool = option(False, "a client that pruned a weight votes for its old value")
    ties: Literal["index", "votes"] = option(
        "index", "of equal weights, such as new ones, keep the first, or those of most clients"
    )
    free_first_download: bool = option(
        False, "clients of the first round draw its model from the seed; nothing is sent"
    )
    bn: BatchNorm = option("running", sparse_model.BN_HELP)
    accounting: Accounting = Accounting()

    @property
    def pure(self) -> FedDST:
        """The method of the paper, for all that no option changes."""
        return FedDST(
            self.clients,
            self.density,
            self.readjustment.pure,
            0.0 if self.prox_noop else self.mu,
            self.training,
            bn=self.bn,
            accounting=self.accounting,
        )

    @property
    def spans_rounds(self) -> str:
        """The fall of the density, and the schedules of the pure method."""
        final = f"--final-density {self.final_density:g}" if self.final_density else ""
        return fields.listed(final, fields.spans_rounds(self.pure))

    def init(self, ctx: Ctx) -> Server:
        params = ctx.task.init(ctx.common.fold("init"))
        masks = first_masks(ctx, params, self.quotas(ctx, self.density), self.mask_start)
        return Server(sparsity.masked(params, masks), masks, 0, held_versions.NOBODY)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return self.sampling.cohort(ctx, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> First | Down:
        if self.free_first_download and ctx.round == 1:
            return First()
        return self.pure.down(ctx, state, client)

    def merge(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[First | Down, Up]]
    ) -> Server:
        counts = self.quotas(ctx, self._density(ctx))
        sent = sparse_model.send(ctx, state.params, state.masks, self.bn)
        participants: list[int] = []
        votes: dict[str, Tensor] = {}
        by_votes = self.ties == "votes"

        def replies() -> Iterator[Weighted]:
            for exchange in exchanges:
                up, client = exchange.up, exchange.client
                masks = client_readjustment.accepted(up.mask, state.masks, counts, frozen={})
                params = sparse_model.receive_reply(ctx, up.model, sent, masks)
                participants.append(client.id)
                for name, mask in masks.items() if self.min_votes or by_votes else ():
                    votes[name] = votes[name] + mask if name in votes else mask.int()
                if self.remember_old:
                    params, masks = _remembered(params, masks, state)
                yield params, masks, self.sampling.weight(client, self.training.batch)

        weighted = self.sampling.repeated(ctx, replies(), participants, self.clients)
        average = sparsity.masked_mean(weighted, self.averaging)
        if not participants:
            return state
        if self.min_votes:
            owned = {
                name: mask & (votes[name] >= self.min_votes) for name, mask in average.owned.items()
            }
            average = replace(average, owned=owned)
        if by_votes:
            owned = _largest(average.params, votes, average.owned, counts)
            average = replace(average, owned=owned)
        return feddst.updated(state, average, counts, participants, self._rate(ctx) > 0)

    def replies(self, ctx: Ctx, down: First | Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return self.pure.replies(ctx, self._read(ctx, down))

    def begin(self, ctx: Ctx, down: First | Down, local: Local | None) -> Job[Work]:
        return self.pure.begin(ctx, self._read(ctx, down), local)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        masked_training.step(ctx, self.training, work, batch, prox=self.pure.mu)
        rate = self._rate(ctx)
        if rate and batch.step + 1 == batch.steps:
            low = self.quotas(ctx, self._density(ctx) * (1 - rate))
            high = self.quotas(ctx, self._density(ctx))
            everywhere = self.readjustment.feddst_growth
            client_readjustment.readjust(ctx, work, batch, low, high, everywhere)
        return work

    def quotas(self, ctx: Ctx, density: float) -> Counts:
        """The number of active weights of each layer."""
        sparse_model.prunable(ctx)
        shares = sparsity.allocate(ctx.task.layout, density, self.allocation, self.fc_density)
        return sparsity.apportion(ctx.task.layout, shares, self.rounding)

    def _density(self, ctx: Ctx) -> float:
        """The target density of a round."""
        if not self.final_density or ctx.rounds < 2:
            return self.density
        passed = (max(ctx.round, 1) - 1) / (ctx.rounds - 1)
        return self.density + (self.final_density - self.density) * passed

    def _rate(self, ctx: Ctx) -> float:
        return self.readjustment.rate(ctx.round - 1, ctx.rounds)

    def _read(self, ctx: Ctx, down: First | Down) -> Down:
        """The message itself, or the one that the first message stands for."""
        if isinstance(down, Down):
            return down
        state = self.init(ctx)
        model = sparse_model.send(ctx, state.params, state.masks, self.bn)
        return Down(model, Revision(state.masks))


def first_masks(ctx: Ctx, params: Params, counts: Counts, start: Start) -> Masks:
    """The masks before anything is trained."""
    if start == "magnitude":
        return sparsity.largest(params, counts)
    return sparsity.random_masks(ctx.common.fold("masks", 0), ctx.task.layout, counts)


def _remembered(params: Params, masks: Masks, state: Server) -> tuple[Params, Masks]:
    """A client's model as if it had kept the server's values where it pruned."""
    gone = sparsity.difference(state.masks, masks)
    whole = {
        name: torch.where(gone[name], state.params[name], tensor) if name in gone else tensor
        for name, tensor in params.items()
    }
    return whole, sparsity.union(masks, gone)


def _largest(params: Params, votes: Params, masks: Masks, counts: Counts) -> Masks:
    """The largest weights within masks; among equal ones, those that most clients kept."""
    kept = {}
    for name, mask in masks.items():
        size = torch.where(mask, params[name].abs(), -1).flatten()
        order = votes[name].flatten().argsort(descending=True, stable=True)
        order = order[size[order].argsort(descending=True, stable=True)]
        first = torch.zeros_like(mask).flatten()
        first[order[: counts[name]]] = True
        kept[name] = first.view_as(mask) & mask
    return kept


def code_parity(method: FedDSTVariants) -> FedDSTVariants:
    """The released code; its second softmax is an option of the model."""
    return replace(
        method,
        readjustment=replace(method.readjustment, readjust_decay="constant", feddst_growth=True),
        prox_noop=True,
        sampling=Sampling("batches", replacement=True),
        free_first_download=True,
    )


ENTRIES: dict[str, Any] = {
    "feddst-variants": FedDSTVariants(),
    "feddst-code": code_parity(FedDSTVariants()),
}
