"""FjORD: ordered dropout; in each step a client trains one of the nested models it can afford.

A client's budget p is the share of filters and neurons of its largest sub-model. Before each step
it draws one of the pool's budgets up to its own, and trains the first units of each layer in that
share. So the first units come to matter most, and the server's model can be cut to any budget. With
`distill`, every step also trains the largest sub-model, whose outputs the drawn one learns.

Horváth, Laskaridis, Almeida, Leontiadis, Venieris, Lane: FjORD: fair and accurate federated
learning under heterogeneous targets with ordered dropout. NeurIPS 2021.
https://arxiv.org/abs/2102.13451

Differs from the paper: batch norms have one scale and shift for all widths, and statistics of the
width that is evaluated (`bn`), where the paper has batch norms for each width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from gossamer import merge
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model, sparse_model, widths
from gossamer.methods.parts.dense_model import Up
from gossamer.methods.parts.sparse_model import BatchNorm
from gossamer.optim import Training
from gossamer.submodels import Cut
from gossamer.submodels.cut import Place
from gossamer.task import Gradients, Task
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class Local:
    width: float  # of the client's own model


@dataclass(frozen=True)
class Down:
    params: Params
    widths: Tensor  # that the client may draw, ascending; it is sent the sub-model of the last


@dataclass(frozen=True)
class Nested:
    task: Task
    places: dict[str, Place]  # of its tensors in those of the client's largest sub-model

    def gradients(self, params: Params, batch: Batch, teacher: list[Tensor]) -> Gradients:
        """At the sub-model's part of `params`; labels are a teacher's probabilities, if any."""
        small = {n: widths.take_at(tensor, self.places.get(n)) for n, tensor in params.items()}

        def soft(leaves: Params, batch: Batch) -> Tensor:
            logits = self.task.logits(leaves, batch.x, batch.key)
            return functional.cross_entropy(logits, teacher[0].detach().softmax(1))

        return self.task.gradients(small, batch, loss=soft if teacher else None)


@dataclass
class Work:
    inner: widths.Work  # the largest sub-model
    nested: list[Nested]  # the smaller ones


@dataclass(frozen=True)
class FjORD:
    clients: int = option(10, "clients per round", least=1)
    distill: bool = option(False, "smaller models learn from the client's largest one (w/ KD)")
    training: Training = Training(epochs=1, batch=32, lr=0.1)
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    bn: BatchNorm = option("static", sparse_model.BN_HELP)
    accounting: Accounting = Accounting(uncharged="widths")
    privacy: ClassVar[Privacy] = COVERED

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        widths.check(ctx, whole=True)
        return Server(ctx.task.init(ctx.common.fold("init")))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        width = widths.width_of(client)
        levels = [level for level in ctx.budgets if level < width]
        params = widths.sent(ctx, state.params, self.bn)
        small = widths.cut(ctx.task, width).take(params)
        return Down(small, torch.tensor([*levels, width], dtype=torch.float64))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        def choice(width: float) -> Cut:
            return widths.cut(ctx.task, width)

        # Each part of the model over the clients with p_max that reaches it.
        replies = (
            Exchange(
                each.client, widths.Down(each.down.params, float(each.down.widths[-1])), each.up
            )
            for each in exchanges
        )
        return Server(widths.average(state.params, replies, self.weighting, choice))

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return [Up(down.params)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        *smaller, width = down.widths.tolist()
        cut = widths.cut(ctx.task, width)
        job = widths.begin(ctx, self.training, down.params, width, cut)
        nested = [nested_in(cut, ctx.task, each) for each in smaller]
        return Job(Work(job.work, nested), job.epochs, job.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        largest, task, params = work.inner.inner, work.inner.task, work.inner.inner.params
        drawn = int(batch.key.fold("width").numpy().integers(len(work.nested) + 1))
        if drawn == len(work.nested):  # p = p_max
            return replace(work, inner=widths.step(self.training, work.inner, batch))
        logits: list[Tensor] = []

        def hard(leaves: Params, batch: Batch) -> Tensor:
            logits.append(task.logits(leaves, batch.x, batch.key))
            return task.criterion(logits[0], batch.y)

        if self.distill:
            _, grads = task.gradients(params, batch, loss=hard)
        else:
            grads = {name: torch.zeros_like(params[name]) for name in ctx.task.layout.parameters}
        loss, part = work.nested[drawn].gradients(params, batch, logits)
        for name, grad in part.items():
            widths.add_at(grads[name], work.nested[drawn].places.get(name), grad)
        dense_model.descend(self.training, largest, batch, loss, grads)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        inner = work.inner
        params = widths.sent(ctx, inner.inner.params, self.bn)
        metrics = {"loss": dense_model.mean_loss(inner.inner)}
        return Result(Up(params), Local(inner.width), inner.cut.masks(), metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """The server's model, or the part of it that a client can afford."""
        if local is None or local.width >= 1:
            return state.params
        return widths.cut(ctx.task, local.width).silence(state.params)


def nested_in(larger: Cut, task: Task, width: float) -> Nested:
    """The sub-model of a width, inside of a client's largest one."""
    cut = widths.cut(task, width)
    return Nested(cut.task(task), cut.within(larger))
