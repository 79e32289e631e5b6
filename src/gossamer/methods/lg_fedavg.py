"""LG-FedAvg: every client keeps its own early layers; only the last layers are sent and averaged.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think locally, act globally:
federated learning with local and global representations. 2020. https://arxiv.org/abs/2001.01523

Differs from the authors' code: clients start from random weights, not from a trained model;
momentum is 0.9, not 0.5; and only the clients of a round are charged for the download, while their
code sends it to everybody (`--recipients all`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.merge import Weighting
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model, own_layers
from gossamer.methods.parts.dense_model import Down, Up, Work
from gossamer.methods.parts.own_layers import Local
from gossamer.optim import Training
from gossamer.task.layout import Layout
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class LGFedAvg:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training(momentum=0.9)
    shared: str = option("1", "shared part: the number of last layers, without norms; or names")
    weighting: Weighting = option("uniform", "how client updates are weighted")
    accounting: Accounting = Accounting()
    privacy: ClassVar[Privacy] = COVERED

    def init(self, ctx: Ctx) -> Server:
        return Server(own_layers.initial(ctx, shared(ctx.task.layout, self.shared)))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        return Server({**state.params, **dense_model.average(exchanges, self.weighting)})

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        params = own_layers.joined(ctx, down.params, local)
        return dense_model.begin(ctx, self.training, params, None)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        return own_layers.finish(ctx, work, shared(ctx.task.layout, self.shared))

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return own_layers.joined(ctx, state.params, local)


def shared(layout: Layout, wanted: str) -> tuple[str, ...]:
    """The names of the tensors that are averaged."""
    return own_layers.last_layers(layout, wanted, "shared")
