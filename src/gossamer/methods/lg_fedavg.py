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
from fnmatch import fnmatchcase
from typing import ClassVar

import torch

from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.merge import Weighting
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Down, Up, Work
from gossamer.optim import Training
from gossamer.task.layout import Layout, did_you_mean
from gossamer.trust.declared import COVERED, Privacy


@dataclass(frozen=True)
class Local:
    params: Params  # the part of the model that never leaves the client


@dataclass(frozen=True)
class LGFedAvg:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training(momentum=0.9)
    shared: str = option("1", "number of last layers, without norms, or names: fc,lstm.*[384:512]")
    weighting: Weighting = option("uniform", "how client updates are weighted")
    accounting: Accounting = Accounting()
    privacy: ClassVar[Privacy] = COVERED

    def init(self, ctx: Ctx) -> Server:
        params = ctx.task.init(ctx.common.fold("init"))
        return Server(divided(params, shared(ctx.task.layout, self.shared))[0])

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        return Server({**state.params, **dense_model.average(exchanges, self.weighting)})

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        return dense_model.begin(ctx, self.training, self.joined(ctx, down.params, local), None)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        sent, kept = divided(work.params, shared(ctx.task.layout, self.shared))
        metrics = dense_model.finish(ctx, work, "average").metrics
        return Result(Up(sent), Local(kept) if kept else None, metrics=metrics)

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return self.joined(ctx, state.params, local)

    def joined(self, ctx: Ctx, params: Params, local: Local | None) -> Params:
        """The shared part with the client's own, or with the initial weights if it has none."""
        rows = shared(ctx.task.layout, self.shared)
        own = local.params if local else divided(ctx.task.init(ctx.common.fold("init")), rows)[1]
        whole = {**own, **params}
        for name, part in rows.items():
            if part and name in own:
                above, below = own[name][: part.start], own[name][part.start :]
                whole[name] = torch.cat([above, params[name], below])
        return {name: whole[name] for name in ctx.task.layout.names}


Rows = dict[str, slice | None]  # by tensor: the rows that are shared, None for all of them


def shared(layout: Layout, wanted: str) -> Rows:
    """The shared tensors, in the layout's order.

    A number N takes the last N modules with parameters, in the order of their definition. Norms
    count as modules but stay local; 3 gives the published sets of CNN-7 and ResNet-8. Anything else
    is a comma-separated list of names or patterns of layers and tensors, norms included. One that
    ends in `[start:stop]` shares these rows only: those of an LSTM's output gate, for example.
    """
    rows: Rows = {}
    if wanted.isdecimal():
        layers = list(dict.fromkeys(map(layer_of, layout.parameters)))
        last = layers[len(layers) - min(int(wanted), len(layers)) :]
        shares = (n for n in layout.parameters if layer_of(n) in last and layout[n].kind != "norm")
        rows = dict.fromkeys(shares)
    else:
        for each in filter(None, map(str.strip, wanted.split(","))):
            cut = re.fullmatch(r"(.+)\[(\d+):(\d+)\]", each)
            for name in matching(layout, cut[1] if cut else each):
                rows[name] = chosen(layout, name, int(cut[2]), int(cut[3])) if cut else None
    if not rows:
        raise ValueError(
            f"`shared={wanted!r}` leaves nothing to share; use a larger number of last layers, "
            f"e.g. 2, or names such as {layout.parameters[-1]}"
        )
    return {name: rows[name] for name in layout.names if name in rows}


def chosen(layout: Layout, name: str, start: int, stop: int) -> slice | None:
    """Some rows of a tensor; None if they are all of them."""
    count = layout[name].shape[0] if layout[name].shape else 0
    if not start < stop <= count:
        raise ValueError(f"`shared=`: {name} has rows 0 to {count}, not {start}:{stop}")
    return slice(start, stop) if stop - start < count else None


def divided(params: Params, rows: Rows) -> tuple[Params, Params]:
    """The shared part of a model, and the client's own."""
    own = {name: tensor for name, tensor in params.items() if name not in rows}
    parts = {name: part for name, part in rows.items() if part}
    for name, part in parts.items():
        own[name] = torch.cat([params[name][: part.start], params[name][part.stop :]])
    return {n: params[n][part] if part else params[n] for n, part in rows.items()}, own


def matching(layout: Layout, pattern: str) -> list[str]:
    """The tensors of a layer, or those that match a pattern."""
    names = [n for n in layout.names if n.startswith(f"{pattern}.") or fnmatchcase(n, pattern)]
    if not names:
        layers = [layer for layer in dict.fromkeys(map(layer_of, layout.names)) if layer]
        near = did_you_mean(pattern.rstrip(".*"), [*layout.names, *layers])
        raise ValueError(
            f"`shared=`: no layer or tensor of this model is called {pattern!r}{near} "
            f"it has {', '.join(layers or layout.names)}"
        )
    return names


def layer_of(name: str) -> str:
    """The module that a tensor belongs to."""
    return name.rpartition(".")[0]
