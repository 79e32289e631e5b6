"""HeteroFL: clients train the first part of every layer, as much of it as they can afford.

A client's budget is the share of filters and neurons of its sub-model, so a budget of 0.5 is about
a quarter of the weights. Sub-models are nested. Three helpers come with it: batch norms without
running statistics, activations that are scaled up in training where units are missing, and a loss
in which classes that a client lacks do not count.

Diao, Ding, Tarokh: HeteroFL: computation and communication efficient federated learning for
heterogeneous clients. ICLR 2021. https://arxiv.org/abs/2010.01264

Differs from the authors' code: the server sees which classes a client lacks by the rows of the last
layer that came back unchanged, as the paper has it; the code tells it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer import merge
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model, sparse_model, widths
from gossamer.methods.parts.dense_model import Up
from gossamer.methods.parts.sparse_model import BatchNorm
from gossamer.methods.parts.widths import Down
from gossamer.optim import Training
from gossamer.submodels import Cut
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class Local:
    width: float  # of the client's own model


@dataclass
class Work:
    inner: widths.Work
    present: Tensor | None  # classes that the client has; none if it has all
    start: Params  # the last layer as it was received


@dataclass(frozen=True)
class HeteroFL:
    clients: int = option(10, "clients per round", least=1)
    scaled: bool = option(True, "divide activations by the width in training (scaler)")
    own_classes: bool = option(True, "leave out classes that a client lacks (masked loss)")
    training: Training = Training(5, 10, 0.01, momentum=0.9, weight_decay=5e-4, clip=1.0)
    weighting: merge.Weighting = option("uniform", "how client updates are weighted")
    bn: BatchNorm = option("static", sparse_model.BN_HELP)
    accounting: Accounting = Accounting(uncharged="width")
    privacy: ClassVar[Privacy] = COVERED

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        widths.check(ctx, whole=True)
        return Server(ctx.task.init(ctx.common.fold("init")))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        width = widths.width_of(client)
        params = widths.sent(ctx, state.params, self.bn)
        return Down(widths.cut(ctx.task, width).take(params), width)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        def trained(reply: Params, sent: Params) -> Masks:
            names = last_layer(ctx) if self.own_classes else ()
            return {name: changed_rows(reply[name], sent[name]) for name in names}

        def choice(width: float) -> Cut:
            return widths.cut(ctx.task, width)

        # Eq. 2 to 4: each part over the clients whose sub-models have it.
        return Server(widths.average(state.params, exchanges, self.weighting, choice, trained))

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return [Up(down.params)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        cut = widths.cut(ctx.task, down.width)
        job = widths.begin(ctx, self.training, down.params, down.width, cut)
        if self.scaled:
            job.work.scale = widths.scales(cut, down.width)
        present = classes(ctx) if self.own_classes else None
        start = {name: down.params[name] for name in last_layer(ctx)}
        return Job(Work(job.work, present, start), job.epochs, job.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        widths.step(self.training, work.inner, batch, work.present)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        inner = work.inner
        params = widths.sent(ctx, inner.inner.params, self.bn)
        if work.present is not None:  # weight decay moves rows that no example trained
            for name, before in work.start.items():
                rows = work.present.view(-1, *[1] * (before.dim() - 1))
                params[name] = torch.where(rows, params[name], before)
        metrics = {"loss": dense_model.mean_loss(inner.inner)}
        return Result(Up(params), Local(inner.width), inner.cut.masks(), metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """The server's model, or the part of it that a client can afford."""
        if local is None or local.width >= 1:
            return state.params
        return widths.cut(ctx.task, local.width).silence(state.params)


def last_layer(ctx: Ctx) -> list[str]:
    """The tensors of the last layer, which has a row for each class."""
    layer = ctx.task.layout.prunable[-1].rpartition(".")[0]
    return [name for name in ctx.task.layout.parameters if name.rpartition(".")[0] == layer]


def classes(ctx: Ctx) -> Tensor | None:
    """Which classes a client's examples have; None if all, or if labels are no classes."""
    labels, count = ctx.own.train.y, ctx.task.layout[ctx.task.layout.prunable[-1]].rows
    if labels.dim() != 1 or labels.is_floating_point() or not len(labels) > 0:
        return None
    if int(labels.min()) < 0 or int(labels.max()) >= count:
        return None
    present = torch.zeros(count, dtype=torch.bool).index_fill_(0, labels.long().cpu(), True)
    return None if present.all() else present


def changed_rows(reply: Tensor, sent: Tensor) -> Tensor:
    """True in the rows of a tensor that a client changed."""
    changed = (reply != sent).flatten(1).any(1) if reply.dim() > 1 else reply != sent
    return changed.view(-1, *[1] * (reply.dim() - 1)).expand(reply.shape)
