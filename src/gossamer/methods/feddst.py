"""FedDST: one sparse model for all, whose mask clients readjust by their gradients now and then.

Bibikar, Vikalo, Wang, Chen: Federated dynamic sparse training: computing less, communicating less,
yet learning better. AAAI 2022. https://arxiv.org/abs/2112.09824

In a readjustment round every client prunes its smallest weights and grows where the gradient of its
last batch is largest; the server averages each weight over the clients that have it and prunes what
is too many. `mu` adds FedProx's term. Without readjustment it is RandomMask.

Differs from the authors' code: growth looks at inactive weights only, the share that is readjusted
falls over the rounds (there it only decides whether to readjust at all), the proximal term has a
gradient, clients are drawn without replacement and count by examples, and the first model is sent
and charged. `code_parity` brings the code's ways back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
)
from gossamer.fields import option
from gossamer.methods import sparse
from gossamer.methods.sparse import BatchNorm, Work
from gossamer.methods.visits import Counted, Weighting, drawn, repeated, weight
from gossamer.optim import Training
from gossamer.sparsity import Allocation, Averaging, Counts, Rounding
from gossamer.wire import Packed, Revision

TRAINING = Training(epochs=3, batch=32, lr=0.01, momentum=0.9, weight_decay=0.001)


@dataclass(frozen=True)
class Readjustment:
    """When clients readjust their masks, and how much of them."""

    readjust_ratio: float = option(0.01, "part of the weights, in the first round", least=0, most=1)
    readjust_every: int = option(15, "rounds between readjustments", least=1)
    readjust_until: float = option(0.5, "part of the run that has readjustments", least=0, most=1)
    readjust_decay: Literal["cosine", "constant"] = option(
        "cosine", "that part falls to zero until then, or stays, as in FedDST's code"
    )
    feddst_growth: bool = option(False, "growth may choose active weights, which then start anew")

    def rate(self, number: int, total: int) -> float:
        """What a round readjusts; `number` counts from 0. Zero, if it does not."""
        if (number - 1) % self.readjust_every:
            return 0.0
        left = sparsity.decayed(self.readjust_ratio, "cosine", number, self.readjust_until * total)
        return self.readjust_ratio if left and self.readjust_decay == "constant" else left


@dataclass(frozen=True)
class Server:
    params: Params
    masks: Masks
    version: int
    held: Tensor
    """By client id: the version of the masks that the client holds, or -1."""
    mean_jaccard: float = 0.0
    """The mean Jaccard distance of two clients of the last round."""


@dataclass(frozen=True)
class First:
    """Lets a client begin with the first model and mask, which it draws from the common seed."""


@dataclass(frozen=True)
class Down:
    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None
    """Nothing, if the client holds it."""


Message = First | Down


@dataclass(frozen=True)
class Up:
    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None
    """In readjustment rounds only."""


@dataclass(frozen=True)
class Local:
    masks: Masks


@dataclass(frozen=True)
class FedDST:
    clients: int = option(20, "clients per round", least=1)
    training: Training = TRAINING
    density: float = option(0.2, "part of the prunable weights that is kept", above=0, most=1)
    final_density: float = option(
        0.0, "density at the end; 0: as at the beginning", least=0, most=1
    )
    allocation: Allocation = option("erk-feddst", "how densities of layers are found")
    fc_density: float = option(
        1.0, "density of the last fully connected layer under erk-plus", least=0, most=1
    )
    rounding: Rounding = option("floor", "how counts of layers are rounded")
    start: Literal["magnitude", "random"] = option(
        "magnitude", "the first mask has the largest first weights, or any"
    )
    readjustment: Readjustment = Readjustment()
    mu: float = option(0.0, "strength of the pull towards the server's model", least=0)
    prox_noop: bool = option(False, "the pull has no effect, as in the released code")
    weighting: Weighting = option("samples", "what a client counts for in the mean")
    averaging: Averaging = option("wfa", "over all clients, or over those with a weight")
    min_votes: int = option(0, "clients that must have a weight for it to stay", least=0)
    remember_old: bool = option(False, "who pruned a weight counts with its old value")
    replacement: bool = option(
        False, "draw clients with replacement; one drawn twice trains once and counts twice"
    )
    free_first_download: bool = option(
        False, "clients of the first round draw its model from the seed, and are sent none"
    )
    bn: BatchNorm = option("running", "statistics are averaged, or found anew before a test")
    accounting: Accounting = Accounting()

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        params = ctx.task.init(ctx.common.fold("init"))
        masks = first_masks(ctx, params, self.quotas(ctx, self.density), self.start)
        return Server(sparsity.masked(params, masks), masks, 0, torch.zeros(0, dtype=torch.int32))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return drawn(ctx, pool, self.clients, self.replacement)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Message:
        if self.free_first_download and ctx.round == 1:
            return First()
        return self._message(ctx, state, sparse.holds(state.held, client, state.version))

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return self._message(ctx, state, holds=False)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Message, Up]]) -> Server:
        met: list[int] = []
        votes: dict[str, Tensor] = {}
        replies = self._replies(ctx, state, exchanges, met, votes)
        if self.replacement:
            replies = repeated(ctx, replies, met, self.clients)
        average = sparsity.masked_mean(replies, self.averaging)
        if not met:
            return state
        params, masks = {**state.params, **average.params}, average.owned
        if self.min_votes:
            masks = {name: mask & (votes[name] >= self.min_votes) for name, mask in masks.items()}
        quotas = self.quotas(ctx, self._density(ctx))
        if any(kept > quotas[name] for name, kept in sparsity.count(masks).items()):
            masks = sparsity.largest(params, quotas, masks)
        same = all(torch.equal(mask, state.masks[name]) for name, mask in masks.items())
        masks = state.masks if same else masks
        readjusts = self._rate(ctx) > 0
        held = sparse.marked(state.held, met, -1 if readjusts or not same else state.version)
        params, version = sparsity.masked(params, masks), state.version + (not same)
        return Server(params, masks, version, held, average.mean_jaccard)

    def replies(self, ctx: Ctx, down: Message) -> Sequence[Up]:
        """What the answer to a message looks like."""
        down = self._read(ctx, down)
        blank = {name: torch.zeros(ctx.task.layout[name].shape) > 0 for name in down.values.values}
        mask = Revision(blank) if self._rate(ctx) else None
        return [Up(down.values, down.dense, down.buffers, mask)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Message, local: Local | None) -> Job[Work]:
        down = self._read(ctx, down)
        masks = down.mask.masks if down.mask else local.masks if local else None
        if masks is None:
            raise Missing("the server sent no mask, and none is held here")
        params = sparse.joined(ctx, down.values, masks, down.dense, down.buffers)
        rate = self.training.rate(ctx)
        work = sparse.begin(ctx, params, masks, rate, moves=self._rate(ctx) > 0)
        work.anchor = ctx.task.own(params) if self._pull else {}
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        sparse.descend(ctx, self.training, work, batch, self._pull)
        if work.moves and batch.step + 1 == batch.steps:
            low = self.quotas(ctx, self._density(ctx) * (1 - self._rate(ctx)))
            high = self.quotas(ctx, self._density(ctx))
            readjust(ctx, work, batch, low, high, self.readjustment.feddst_growth)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        up = Up(
            sparse.values(work.params, work.masks),
            sparse.dense(ctx, work.params),
            sparse.buffers(ctx, work.params, self.bn),
            Revision(work.masks, work.start) if work.moves else None,
        )
        kept = None if work.moves else Local(work.start)
        return Result(up, kept, work.masks, metrics=sparse.metrics(work))

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The masks of the model, and how far those of clients were from one another."""
        return Measures(state.masks, {"client_mismatch": state.mean_jaccard})

    # parts ----------------------------------------------------------------------------------------

    def quotas(self, ctx: Ctx, density: float) -> Counts:
        """How many weights each layer has at a density."""
        layout = ctx.task.layout
        if not layout.prunable:
            raise ValueError("this model has no layer that may be pruned; see --prunable")
        shares = sparsity.allocate(layout, density, self.allocation, self.fc_density)
        return sparsity.apportion(layout, shares, self.rounding)

    def _density(self, ctx: Ctx) -> float:
        """What a round aims at: what was asked for, or a point on the line to the end."""
        if not self.final_density or ctx.rounds < 2:
            return self.density
        passed = (max(ctx.round, 1) - 1) / (ctx.rounds - 1)
        return self.density + (self.final_density - self.density) * passed

    def _rate(self, ctx: Ctx) -> float:
        return self.readjustment.rate(ctx.round - 1, ctx.rounds)

    @property
    def _pull(self) -> float:
        return 0.0 if self.prox_noop else self.mu

    def _read(self, ctx: Ctx, down: Message) -> Down:
        """The message itself, or what the first one stands for."""
        return self._message(ctx, self.init(ctx), False) if isinstance(down, First) else down

    def _message(self, ctx: Ctx, state: Server, holds: bool) -> Down:
        return Down(
            sparse.values(state.params, state.masks),
            sparse.dense(ctx, state.params),
            sparse.buffers(ctx, state.params, self.bn),
            None if holds else Revision(state.masks),
        )

    def _replies(
        self,
        ctx: Ctx,
        state: Server,
        exchanges: Iterable[Exchange[Message, Up]],
        met: list[int],
        votes: dict[str, Tensor],
    ) -> Iterator[Counted]:
        quotas = self.quotas(ctx, self._density(ctx))
        allowed = max(sparse.total(state.masks), sum(quotas.values()))
        known = sparse.dense(ctx, state.params) | sparse.buffers(ctx, state.params, self.bn)
        for exchange in exchanges:
            up, masks = exchange.up, state.masks
            if up.mask is not None:
                masks = sparse.affordable(up.mask.masks, allowed)
            rest = merge.fitting({**up.dense, **up.buffers}, known)
            whole = sparse.joined(ctx, up.values, masks, rest)
            if self.bn == "static":
                whole = {name: whole[name] for name in ctx.task.layout.parameters}
            met.append(exchange.client.id)
            for name, mask in masks.items() if self.min_votes else ():
                votes[name] = votes[name] + mask if name in votes else mask.int()
            if self.remember_old:
                whole, masks = _remembered(whole, masks, state)
            yield whole, masks, weight(exchange.client, self.weighting, self.training.batch)


def readjust(
    ctx: Ctx, work: Work, batch: Batch, low: Counts, high: Counts, everywhere: bool = False
) -> None:
    """Prunes by magnitude and grows where the gradient of a batch is largest; frozen ones stay."""
    weights = {name: work.params[name] for name in work.masks}
    grads = sparse.gradient(ctx, work, batch)
    frozen = work.frozen or None
    active = sparsity.union(work.masks, work.frozen) if frozen else work.masks
    change = sparsity.readjust(weights, active, low, high, grads, frozen, everywhere)
    if frozen:
        change = replace(change, masks=sparsity.difference(change.masks, frozen))
    sparse.changed(ctx, work, change)


def first_masks(
    ctx: Ctx, params: Params, quotas: Counts, start: Literal["magnitude", "random"]
) -> Masks:
    """Masks before anything is trained."""
    if start == "magnitude":
        return sparsity.largest(params, quotas)
    return sparsity.random_masks(ctx.common.fold("masks", 0), ctx.task.layout, quotas)


def random_mask() -> FedDST:
    """A mask that stays as it was at first."""
    return FedDST(readjustment=Readjustment(readjust_ratio=0.0))


def code_parity(method: FedDST) -> FedDST:
    """The ways of the released code, where they differ; its second softmax is a model's option."""
    return replace(
        method,
        readjustment=replace(method.readjustment, readjust_decay="constant", feddst_growth=True),
        prox_noop=True,
        weighting="batches",
        replacement=True,
        free_first_download=True,
    )


def _remembered(params: Params, masks: Masks, state: Server) -> tuple[Params, Masks]:
    """A client's model as if it had kept the server's values where it pruned."""
    gone = sparsity.difference(state.masks, masks)
    whole = {
        name: torch.where(gone[name], state.params[name], tensor) if name in gone else tensor
        for name, tensor in params.items()
    }
    return whole, sparsity.union(masks, gone)
