"""FedBN: FedAvg whose clients keep their batch norms, weights and statistics, to themselves.

Clients whose inputs differ in style (scanners, cameras, pens) need other normalisations in front of
the same features. Without batch norms in the model, this is FedAvg.

Li, Jiang, Zhang, Kamp, Dou: FedBN: federated learning on non-IID features via local batch
normalization. ICLR 2021. https://arxiv.org/abs/2102.07623

Differs from the paper, where all clients take part in all rounds: those of a round are drawn, and a
client that has not taken part yet has the initial norms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.devices.declared import ANY_TIME, Timing
from gossamer.fields import option
from gossamer.merge import Weighting
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model, own_layers
from gossamer.methods.parts.dense_model import Down, Up, Work
from gossamer.methods.parts.own_layers import Local, Rows
from gossamer.optim import Training
from gossamer.task.layout import Layout
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class FedBN:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    weighting: Weighting = option("samples", "how client updates are weighted")
    privacy: ClassVar[Privacy] = COVERED
    timing: ClassVar[Timing] = ANY_TIME

    def init(self, ctx: Ctx) -> Server:
        return Server(own_layers.initial(ctx, shared(ctx.task.layout)))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        # Algorithm 1: the mean, layer by layer, unless the layer is a batch norm.
        return Server({**state.params, **dense_model.average(exchanges, self.weighting)})

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        params = own_layers.joined(ctx, down.params, local, shared(ctx.task.layout))
        return dense_model.begin(ctx, self.training, params, None)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        return own_layers.finish(ctx, work, shared(ctx.task.layout))

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return own_layers.joined(ctx, state.params, local, shared(ctx.task.layout))


def shared(layout: Layout) -> Rows:
    """All tensors but those of batch norms: norms that have running statistics, and buffers."""
    normed = {own_layers.layer_of(name) for name in layout.buffers}
    kept = {n for n in layout.parameters if layout[n].kind == "norm"}
    kept = {name for name in kept if own_layers.layer_of(name) in normed}
    return dict.fromkeys(name for name in layout.parameters if name not in kept)
