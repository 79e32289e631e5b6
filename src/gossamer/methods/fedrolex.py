"""FedRolex: clients train a window of every layer, which rolls by one unit from round to round.

A client's budget is the share of filters and neurons in its window. Since windows move, all units
are trained equally often, and the server's model may be larger than that of any client.

Alam, Liu, Yan, Zhang: FedRolex: model-heterogeneous federated learning with rolling sub-model
extraction. NeurIPS 2022. https://arxiv.org/abs/2212.01548

Differs from the authors' code: the window rolls forwards, as in the paper; sizes are rounded up, as
in the code (the paper rounds down); and no class is left out of the loss (see HeteroFL).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gossamer import merge
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model, sparse_model, widths
from gossamer.methods.parts.dense_model import Up
from gossamer.methods.parts.sparse_model import BatchNorm
from gossamer.methods.parts.widths import Down, Work
from gossamer.optim import Training
from gossamer.submodels import Cut
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class FedRolex:
    clients: int = option(10, "clients per round", least=1)
    scaled: bool = option(True, "divide activations by the width in training (scaler)")
    training: Training = Training(epochs=1, batch=24, lr=0.05, momentum=0.9, weight_decay=5e-4)
    weighting: merge.Weighting = option("uniform", "how client updates are weighted")
    bn: BatchNorm = option("static", sparse_model.BN_HELP)
    accounting: Accounting = Accounting(uncharged="width")
    privacy: ClassVar[Privacy] = COVERED
    units_move: ClassVar[bool] = True

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        widths.check(ctx, whole=False)
        return Server(ctx.task.init(ctx.common.fold("init")))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        width = widths.width_of(client)
        params = widths.sent(ctx, state.params, self.bn)
        return Down(window(ctx, width).take(params), width)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        def choice(width: float) -> Cut:
            return window(ctx, width)

        # Selective averaging: each number over the clients whose windows have it.
        return Server(widths.average(state.params, exchanges, self.weighting, choice))

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return [Up(down.params)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: None) -> Job[Work]:
        cut = window(ctx, down.width)
        job = widths.begin(ctx, self.training, down.params, down.width, cut)
        if self.scaled:
            job.work.scale = widths.scales(cut, down.width)
        return job

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return widths.step(self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, None]:
        params = widths.sent(ctx, work.inner.params, self.bn)
        metrics = {"loss": dense_model.mean_loss(work.inner)}
        return Result(Up(params), None, work.cut.masks(), metrics=metrics)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: None) -> Params:
        return state.params


def window(ctx: Ctx, width: float) -> Cut:
    """The sub-model of a round: in the first, it begins at the first units of each layer."""
    return widths.cut(ctx.task, width, start=max(ctx.round - 1, 0))
