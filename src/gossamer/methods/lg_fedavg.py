"""LG-FedAvg: every client keeps its own early layers; only the last layers travel and are averaged.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think locally, act globally:
federated learning with local and global representations. 2020. https://arxiv.org/abs/2001.01523

Differs from the authors' code: clients start from the seed instead of a trained model, momentum is
0.9 instead of 0.5, and what goes down is charged to the clients of the round; `recipients` all
charges everybody, as the authors' code hands the shared part to everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Params, Result, sample
from gossamer.fields import option
from gossamer.merge import Weighting
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Down, Up, Work
from gossamer.optim import Training
from gossamer.task.layout import Layout, did_you_mean


@dataclass(frozen=True)
class Local:
    """The part of the model that never leaves its client: weights, norms, running statistics."""

    params: Params


@dataclass(frozen=True)
class LGFedAvg:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training(momentum=0.9)
    shared: str = option("1", "what travels: the last N layers, less norms; or names, with commas")
    weighting: Weighting = option("uniform", "how client updates are weighted")
    accounting: Accounting = Accounting()

    def init(self, ctx: Ctx) -> Server:
        params = _start(ctx)
        return Server({name: params[name] for name in shared(ctx.task.layout, self.shared)})

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        return Server({**state.params, **dense_model.average(exchanges, self.weighting)})

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        return dense_model.begin(ctx, self.training, _joined(ctx, down.params, local), None)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        sent = {name: work.params[name] for name in shared(ctx.task.layout, self.shared)}
        kept = {name: tensor for name, tensor in work.params.items() if name not in sent}
        metrics = dense_model.finish(ctx, work, "average").metrics
        return Result(Up(sent), Local(kept) if kept else None, metrics=metrics)

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return _joined(ctx, state.params, local)


def shared(layout: Layout, wish: str) -> tuple[str, ...]:
    """The tensors that travel, in the layout's order.

    A number takes what the last so many layers with parameters hold, in the order the module has
    them; normalisation counts as a layer but stays local. With 3 these are the published sets of
    CNN-7 and ResNet-8. Anything else is names of layers or tensors, or patterns, with commas: they
    take all that they match, also norms and running statistics.
    """
    if wish.isdecimal():
        layers = list(dict.fromkeys(map(_layer, layout.parameters)))
        last = layers[len(layers) - min(int(wish), len(layers)) :]
        found = {n for n in layout.parameters if _layer(n) in last and layout[n].kind != "norm"}
    else:
        entries = [entry.strip() for entry in wish.split(",") if entry.strip()]
        found = {name for entry in entries for name in _match(layout, entry)}
    if not found:
        raise ValueError(
            f"--shared {wish!r} leaves nothing to share; use a larger number of last layers, e.g. "
            f"2, or names such as {layout.parameters[-1]}"
        )
    return tuple(name for name in layout.names if name in found)


def _match(layout: Layout, entry: str) -> list[str]:
    below = f"{entry}."
    found = [n for n in layout.names if n.startswith(below) or fnmatchcase(n, entry)]
    if not found:
        layers = [each for each in dict.fromkeys(map(_layer, layout.names)) if each]
        near = did_you_mean(entry.rstrip(".*"), [*layout.names, *layers])
        raise ValueError(
            f"--shared: no layer or tensor of this model is called {entry!r}{near} "
            f"it has {', '.join(layers or layout.names)}"
        )
    return found


def _layer(name: str) -> str:
    """The module that a tensor belongs to."""
    return name.rpartition(".")[0]


def _start(ctx: Ctx) -> Params:
    """The model that everybody begins with, known to all from the seed."""
    return ctx.task.init(ctx.common.fold("init"))


def _joined(ctx: Ctx, params: Params, local: Local | None) -> Params:
    """The shared part with the client's own, or with the common start for one that has none."""
    whole = {**(local.params if local else _start(ctx)), **params}
    return {name: whole[name] for name in ctx.task.layout.names}
