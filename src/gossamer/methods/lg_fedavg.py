"""LG-FedAvg: every client keeps its own early layers; only the last layers are sent and averaged.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think locally, act globally:
federated learning with local and global representations. 2020. https://arxiv.org/abs/2001.01523

Differs from the authors' code: clients start from random weights, not from a trained model;
momentum is 0.9, not 0.5; and only the clients of a round are charged for the download, while their
code sends it to everybody (`--recipients all`).
"""

from __future__ import annotations

import re
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
from gossamer.methods.parts.own_layers import Local, Rows
from gossamer.optim import Training
from gossamer.task.layout import Layout
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class LGFedAvg:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training(momentum=0.9)
    shared: str = option("1", "number of last layers, without norms, or names: fc,lstm.*[384:512]")
    weighting: Weighting = option("uniform", "how client updates are weighted")
    accounting: Accounting = Accounting()
    privacy: ClassVar[Privacy] = COVERED
    global_model: ClassVar[bool] = False

    def init(self, ctx: Ctx) -> Server:
        return Server(own_layers.initial(ctx, shared(ctx.task.layout, self.shared)))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        return Server({**state.params, **dense_model.average(exchanges, self.weighting)})

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        return dense_model.begin(ctx, self.training, self._joined(ctx, down.params, local), None)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        return own_layers.finish(ctx, work, shared(ctx.task.layout, self.shared))

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return self._joined(ctx, state.params, local)

    def _joined(self, ctx: Ctx, params: Params, local: Local | None) -> Params:
        return own_layers.joined(ctx, params, local, shared(ctx.task.layout, self.shared))


def shared(layout: Layout, wanted: str) -> Rows:
    """What is averaged, in the layout's order.

    Names are those of `own_layers.last_layers`. One that ends in `[start:stop]` shares these rows
    only: those of an LSTM's output gate, for example.
    """
    names = [each.strip() for each in wanted.split(",") if each.strip()]
    if wanted.isdecimal() or not names:
        return dict.fromkeys(own_layers.last_layers(layout, wanted, "shared"))
    rows: Rows = {}
    for each in names:
        cut = re.fullmatch(r"(.+)\[(\d+):(\d+)\]", each)
        for name in own_layers.matching(layout, cut[1] if cut else each, "shared"):
            rows[name] = chosen(layout, name, int(cut[2]), int(cut[3])) if cut else None
    return {name: rows[name] for name in layout.names if name in rows}


def chosen(layout: Layout, name: str, start: int, stop: int) -> slice | None:
    """Some rows of a tensor; None if they are all of them."""
    count = layout[name].shape[0] if layout[name].shape else 0
    if not start < stop <= count:
        raise ValueError(f"`shared=`: {name} has rows 0 to {count}, not {start}:{stop}")
    return slice(start, stop) if stop - start < count else None
