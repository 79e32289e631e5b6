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
from fnmatch import fnmatchcase
from typing import ClassVar

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
    shared: str = option("1", "shared part: the number of last layers, without norms; or names")
    weighting: Weighting = option("uniform", "how client updates are weighted")
    accounting: Accounting = Accounting()
    privacy: ClassVar[Privacy] = COVERED

    def init(self, ctx: Ctx) -> Server:
        params = ctx.task.init(ctx.common.fold("init"))
        return Server({name: params[name] for name in shared(ctx.task.layout, self.shared)})

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        return Server({**state.params, **dense_model.average(exchanges, self.weighting)})

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        return dense_model.begin(ctx, self.training, joined(ctx, down.params, local), None)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        sent = {name: work.params[name] for name in shared(ctx.task.layout, self.shared)}
        kept = {name: tensor for name, tensor in work.params.items() if name not in sent}
        metrics = dense_model.finish(ctx, work, "average").metrics
        return Result(Up(sent), Local(kept) if kept else None, metrics=metrics)

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return joined(ctx, state.params, local)


def shared(layout: Layout, wanted: str) -> tuple[str, ...]:
    """The names of the shared tensors, in the layout's order.

    A number N takes the last N modules with parameters, in the order of their definition. Norms
    count as modules but stay local; 3 gives the published sets of CNN-7 and ResNet-8. Anything else
    is a comma-separated list of names or patterns of layers and tensors, norms included.
    """
    if wanted.isdecimal():
        layers = list(dict.fromkeys(map(layer_of, layout.parameters)))
        last = layers[len(layers) - min(int(wanted), len(layers)) :]
        names = {n for n in layout.parameters if layer_of(n) in last and layout[n].kind != "norm"}
    else:
        patterns = [each.strip() for each in wanted.split(",") if each.strip()]
        names = {name for pattern in patterns for name in matching(layout, pattern)}
    if not names:
        raise ValueError(
            f"`shared={wanted!r}` leaves nothing to share; use a larger number of last layers, "
            f"e.g. 2, or names such as {layout.parameters[-1]}"
        )
    return tuple(name for name in layout.names if name in names)


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


def joined(ctx: Ctx, params: Params, local: Local | None) -> Params:
    """The shared part with the client's own, or with the initial weights if it has none."""
    own = local.params if local else ctx.task.init(ctx.common.fold("init"))
    whole = {**own, **params}
    return {name: whole[name] for name in ctx.task.layout.names}
