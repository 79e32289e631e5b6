"""SparsyFed: weights are powers of what is trained, so that small ones stay small and are pruned.

A layer computes with w = sign(t) |t|^alpha and trains t (Powerpropagation). Small weights then have
small gradients, and a weight that is zero stays zero at a client. For the gradient of its weights a
layer stores only the largest of its inputs, in the share in which its weights are not zero. After
local training a client prunes its model to the density. The server averages all models, so that a
weight lives while one client keeps it.

Guastella, Sani, Iacob, Mora, Bellavista, Lane: SparsyFed: sparse adaptive federated training.
ICLR 2025. https://arxiv.org/abs/2504.05153

Read from a public copy of the authors' code. Differs from it: layers that read the data store all
of their inputs, and the exponent is the same in all layers and rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from gossamer import merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.parts import sparse_model
from gossamer.methods.parts.sparse_model import BatchNorm, SparseModel
from gossamer.optim import Training, Velocity
from gossamer.sparsity import activations
from gossamer.trust.declared import CHOSEN_MASKS, Privacy
from gossamer.wire import Revision


@dataclass(frozen=True)
class Server:
    params: Params  # t where layers are prunable
    masks: Masks
    mean_jaccard: float = 0.0  # mean distance between the masks of two clients, last round


@dataclass(frozen=True)
class Down:
    model: SparseModel
    mask: Revision


@dataclass(frozen=True)
class Up:
    model: SparseModel
    mask: Revision


@dataclass
class Work:
    params: Params
    masks: Masks  # as they were received
    rate: float
    velocity: Velocity = field(default_factory=list)
    loss: Tensor | float = 0.0
    examples: int = 0


@dataclass(frozen=True)
class SparsyFed:
    clients: int = option(10, "clients per round", least=1)
    density: float = option(0.05, "fraction of the prunable weights kept", above=0, most=1)
    exponent: float = option(1.25, "exponent of the weights (alpha); 1: no power", least=1)
    prune_activations: bool = option(True, "store only the largest inputs of each layer")
    training: Training = Training(epochs=1, batch=16, lr=0.1, weight_decay=1e-3)
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    bn: BatchNorm = option("running", sparse_model.BN_HELP)
    accounting: Accounting = Accounting()
    privacy: ClassVar[Privacy] = CHOSEN_MASKS

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        params = ctx.task.init(ctx.common.fold("init"))
        names = sparse_model.prunable(ctx)
        roots = {name: power(params[name], 1 / self.exponent) for name in names}
        return Server({**params, **roots}, sparse_model.all_ones(ctx))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        model = sparse_model.send(ctx, state.params, state.masks, self.bn)
        return Down(model, Revision(state.masks))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        average = sparsity.masked_mean(self.received(ctx, exchanges), "fedavg")
        if not average.params:
            return state
        return Server({**state.params, **average.params}, average.owned, average.mean_jaccard)

    def received(
        self, ctx: Ctx, exchanges: Iterable[Exchange[Down, Up]]
    ) -> Iterator[tuple[Params, Masks, float]]:
        """Each client's model, masks and weight in the mean."""
        allowed = self.kept(ctx)
        for exchange in exchanges:
            up, down = exchange.up, exchange.down
            masks = sparse_model.affordable(up.mask.masks, allowed)
            params = sparse_model.receive_reply(ctx, up.model, down.model, masks)
            yield params, masks, merge.weight(exchange.client, self.weighting)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return [Up(down.model, Revision(sparse_model.all_zeros(ctx)))]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: None) -> Job[Work]:
        masks = down.mask.masks
        params = ctx.task.own(sparse_model.receive(ctx, down.model, masks))
        work = Work(params, masks, self.training.rate(ctx))
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        task = activations.as_sparse(ctx.task) if self.prune_activations else ctx.task
        weights = {name: power(work.params[name], self.exponent) for name in work.masks}
        loss, grads = task.gradients({**work.params, **weights}, batch)
        for name in weights if self.exponent > 1 else ():  # dw / dt = alpha |t|^(alpha - 1)
            grads[name].mul_(work.params[name].abs().pow_(self.exponent - 1)).mul_(self.exponent)
        self.training.update(work.params, grads, work.velocity, work.rate)
        work.loss, work.examples = work.loss + loss * len(batch.y), work.examples + len(batch.y)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, None]:
        trained = {name: work.params[name] for name in work.masks}
        everywhere = sparse_model.all_ones(ctx)
        masks = sparsity.largest_of_all(trained, self.kept(ctx), everywhere)
        masks = {name: mask & (trained[name] != 0).cpu() for name, mask in masks.items()}
        model = sparse_model.send(ctx, work.params, masks, self.bn)
        metrics = {"loss": float(work.loss) / max(work.examples, 1)}
        return Result(Up(model, Revision(masks, work.masks)), None, work.masks, metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: None) -> Params:
        """The weights that layers compute with."""
        weights = {name: power(state.params[name], self.exponent) for name in state.masks}
        return {**state.params, **weights}

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """Weights that some client keeps, and how far apart the masks of two clients are."""
        return Measures(state.masks, {"client_mismatch": state.mean_jaccard})

    def kept(self, ctx: Ctx) -> int:
        """How many weights a client keeps, in all layers together."""
        layout = ctx.task.layout
        whole = int(sparsity.as_fraction(self.density) * layout.total("count", layout.prunable))
        return max(whole, len(layout.prunable))  # a layer keeps at least one


def power(tensor: Tensor, exponent: float) -> Tensor:
    """A power of the magnitudes, with the signs of the tensor."""
    return tensor if exponent == 1 else torch.sign(tensor) * tensor.abs().pow(exponent)
