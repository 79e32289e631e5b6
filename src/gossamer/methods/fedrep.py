"""FedRep: clients share the representation; everyone has a head of its own.

A client first trains its head for many epochs on the representation that it received, then the
representation for one, behind a head that stays. It sends the representation alone.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting shared representations for personalized federated
learning. ICML 2021. https://arxiv.org/abs/2102.07078

Differs from the authors' code: weight decay is the same for biases (0, not 1e-4 for weights alone),
and there is no last round in which all clients train their heads once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.merge import Weighting
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model, own_layers
from gossamer.methods.parts.dense_model import Down, Up
from gossamer.methods.parts.own_layers import Local, Rows
from gossamer.optim import Training, Velocity
from gossamer.task.layout import Layout
from gossamer.trust.declared import COVERED, Privacy


@dataclass
class Work:
    inner: dense_model.Work
    velocity: Velocity = field(default_factory=list)  # momentum of the representation
    head_velocity: Velocity = field(default_factory=list)


@dataclass(frozen=True)
class FedRep:
    clients: int = option(10, "clients per round", least=1)
    head: str = option("1", "the clients' own part: the number of last layers; or names")
    head_epochs: float = option(10.0, "local epochs of the head, before those of the rest", least=0)
    training: Training = Training(batch=10, lr=0.01, momentum=0.5)
    weighting: Weighting = option("uniform", "how client updates are weighted")
    privacy: ClassVar[Privacy] = COVERED
    global_model: ClassVar[bool] = False

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        return Server(own_layers.initial(ctx, representation(ctx.task.layout, self.head)))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        # Algorithm 1, the server's update: the mean of the representations.
        return Server({**state.params, **dense_model.average(exchanges, self.weighting)})

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        params = self._joined(ctx, down.params, local)
        job = dense_model.begin(ctx, self.training, params, None)
        return Job(Work(job.work), self.head_epochs + job.epochs, job.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        inner, head = work.inner, own_head(ctx.task.layout, self.head)
        loss, grads = ctx.task.gradients(inner.params, batch)
        if batch.step < self.head_epochs * batch.per_epoch:  # tau steps of h_i
            part = {name: grad for name, grad in grads.items() if name in head}
            self.training.update(inner.params, part, work.head_velocity, inner.rate)
        else:  # then those of phi
            part = {name: grad for name, grad in grads.items() if name not in head}
            self.training.update(inner.params, part, work.velocity, inner.rate)
        dense_model.record(inner, loss, batch)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        return own_layers.finish(ctx, work.inner, representation(ctx.task.layout, self.head))

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return self._joined(ctx, state.params, local)

    def _joined(self, ctx: Ctx, params: Params, local: Local | None) -> Params:
        return own_layers.joined(ctx, params, local, representation(ctx.task.layout, self.head))


def own_head(layout: Layout, wanted: str) -> tuple[str, ...]:
    """The names of the tensors that a client keeps."""
    return own_layers.last_layers(layout, wanted, "head")


def representation(layout: Layout, wanted: str) -> Rows:
    """All other tensors, which are averaged."""
    kept = own_head(layout, wanted)
    rows: Rows = dict.fromkeys(name for name in layout.names if name not in kept)
    if not rows.keys() & set(layout.parameters):
        raise ValueError(
            f"`head={wanted!r}` leaves no representation to share; use fewer last layers than "
            f"the model has"
        )
    return rows
