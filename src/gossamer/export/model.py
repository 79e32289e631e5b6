"""A trained model with facts about it, from the newest checkpoint of its run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import gossamer
from gossamer import fields, submodels
from gossamer.config import Config, common, read, tables
from gossamer.core import AnyMethod, Ctx, Ensemble, Examples, Key, Params, budgets_of
from gossamer.data.federation import Federation
from gossamer.engine import checkpoint
from gossamer.engine.checkpoint import Checkpoint
from gossamer.engine.client import server_ctx
from gossamer.engine.evaluate import density, is_global
from gossamer.engine.events import CONFIG, PROJECT
from gossamer.engine.files import Damaged, check_text
from gossamer.engine.processor import cores
from gossamer.engine.resuming import SIZES, check_beside
from gossamer.engine.statistics import Calibration
from gossamer.engine.store import Store
from gossamer.engine.workers import Workers
from gossamer.flower.node_state import NodeState
from gossamer.flower.remote_data import RemoteData
from gossamer.flower.server import read_sizes, set_up
from gossamer.task import Goal, Task
from gossamer.wire import load as decode
from gossamer.wire import record_types


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model: its task, its tensors, and facts about it."""

    task: Task
    params: Params | Ensemble
    facts: Mapping[str, Any]
    test: Examples
    """Test data: the client's for a personal model, if available, otherwise the server's."""
    personal: bool = False
    """Whether it is the server's model although clients have models of their own."""
    notices: tuple[str, ...] = ()
    """Newer checkpoints that are damaged, so that this model is an older one."""

    @property
    def members(self) -> tuple[Params, ...]:
        """One set of tensors, or those of all members of an ensemble."""
        return self.params.members if isinstance(self.params, Ensemble) else (self.params,)

    @property
    def whole(self) -> Params | Ensemble:
        """All tensors of the module: trained ones, buffers and frozen parameters."""
        constants = {name: tensor.detach() for name, tensor in self.task.constants.items()}
        if isinstance(self.params, Ensemble):
            members = tuple({**member, **constants} for member in self.params.members)
            return replace(self.params, members=members)
        return {**self.params, **constants}

    @property
    def weights(self) -> int:
        """The number of parameters, frozen ones included."""
        trained = sum(tensor.numel() for member in self.members for tensor in member.values())
        return trained + self.task.layout.frozen

    @property
    def density(self) -> float:
        """The share of non-zero prunable weights."""
        return density(self.task.layout, self.params)

    def module(self) -> nn.Module:
        """A plain module in inference mode, with these tensors."""
        whole = self.whole
        members = whole.members if isinstance(whole, Ensemble) else (whole,)
        parts = [_bound(self.task.module, member) for member in members]
        if isinstance(self.params, Ensemble):
            return Mixed(parts, self.params.weights, self.task.goal)
        return parts[0]

    def compact(self) -> Model:
        """A smaller model that computes the same: units without effect are removed.

        Raises:
            ValueError: the model is an ensemble.
        """
        if isinstance(self.params, Ensemble):
            raise ValueError("an ensemble has no compact form; its members lack different units")
        keep = submodels.needed(self.task, self.params)
        task, params = submodels.compact(self.task, self.params, keep)
        return replace(self, task=task, params=params)


class Mixed(nn.Module):
    """An ensemble of modules: the log of the weighted mean of their probabilities.

    For tasks without classes it is what the goal makes of several outputs.
    """

    def __init__(self, parts: list[nn.Module], weights: tuple[float, ...], goal: Goal) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.shares = [weight / sum(weights) for weight in weights]
        self.goal = goal

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of a batch."""
        if self.goal.kind in ("regression", "multilabel"):
            return self.goal.mixed([part(x) for part in self.parts], self.shares)
        each = [functional.log_softmax(part(x), -1) for part in self.parts]
        shares = torch.tensor(self.shares).log()
        return torch.logsumexp(torch.stack(each, -1) + shares, -1)


# from a run --------------------------------------------------------------------------------------


def take(
    run: Path | str,
    client: int | None = None,
    states: Path | str | None = None,
    parts: tuple[AnyMethod, Task, Federation] | None = None,
    best: bool = False,
) -> Model:
    """The model of a run's newest checkpoint, which stays as it is: the server's, or a client's.

    Args:
        run: the folder of the run.
        client: whose personal model to take; None: the server's model.
        states: what clients of a Flower project keep is on their nodes: the folder that a node has
            for it.
        parts: the method, task and federation of a run whose configuration cannot build them.
        best: take the server's model of the best round, if the run kept that.
    """
    folder = Path(run)
    networked = (folder / PROJECT).exists()
    path = folder / (PROJECT if networked else CONFIG)
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no run: there is no {path}")
    check_text(path)
    config = read(path) if parts is None else common(tables(path))
    config = replace(config, experiment=replace(config.experiment, device="cpu"))
    if best and client is not None:
        raise ValueError("of the best round only the server's model is kept; leave out `client=`")
    if best and not (folder / checkpoint.BEST).is_dir():
        raise FileNotFoundError(f"{folder} kept no best model; run it with `keep=best`")
    newest, damaged = _newest(folder / (checkpoint.BEST if best else "rounds"))
    if newest is None:
        if damaged:
            raise Damaged(f"{folder} has no checkpoint that can be read: {'; '.join(damaged)}")
        raise FileNotFoundError(f"{folder} has no model yet: there is no whole checkpoint in it")
    check_beside(newest, folder)
    remote = (folder / SIZES).exists()
    method, task, federation = parts or _built(config, folder, remote)
    experiment = config.experiment
    pool = federation.pool
    ctx = server_ctx(
        task, Key(experiment.seed), newest.progress.round, experiment.rounds, budgets_of(pool)
    )
    state = decode(newest.server, record_types(method))
    store = Store(folder / "rounds", record_types(method), run=newest.run)
    store.look(newest.progress.round, newest.states)
    params = method.model(ctx, state, None)
    test, personal = federation.test, False
    if client is not None:
        if client not in {each.id for each in pool}:
            raise ValueError(f"there is no client {client}; the run has {len(pool)}, from 0 up")
        nodes = Path(states) if states is not None else None
        local = _kept(store, config, newest, client, nodes, networked)
        own = method.model(ctx, state, decode(local, record_types(method)))
        if is_global(own, params):
            raise ValueError(f"client {client} has no model of its own; use the run's, without it")
        params, test = own, test if remote else federation.client(client).test
    elif not networked and (keep := store.clients()):
        personal = not is_global(method.model(ctx, state, store.get(keep[0])), params)
    params = _ready(ctx, method, federation, params, client, remote)
    model = Model(task, params, {}, test, personal, damaged)
    facts = _facts(config, federation, newest, client) | {"density": round(model.density, 6)}
    return replace(model, facts=facts)


def _newest(rounds: Path) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The newest undamaged checkpoint, and what is wrong with those after it."""
    damaged: list[str] = []
    for each in checkpoint.candidates(rounds):
        if isinstance(each, Checkpoint):
            return each, tuple(damaged)
        damaged.append(str(each))
    return None, tuple(damaged)


def _built(config: Config, folder: Path, remote: bool) -> tuple[AnyMethod, Task, Federation]:
    if not remote:
        return config.build()
    setup = set_up(config, RemoteData.of(config).sized(read_sizes(folder)))
    return setup.method, setup.task, setup.federation


def _kept(
    store: Store,
    config: Config,
    newest: Checkpoint,
    client: int,
    states: Path | None,
    networked: bool,
) -> bytes:
    """The kept state of a client, from the run or from its node."""
    data = store.raw(client)
    if data is None:
        raise ValueError(f"client {client} has kept nothing; use the run's model, without it")
    if not networked:
        return data
    if states is None:
        raise ValueError(
            f"what client {client} keeps is at its node; `states=` names the node's folder for it"
        )
    run = f"{config.method.rpartition(':')[2]}-{newest.run}"
    for node in sorted(states.glob("node-*")):
        if (own := NodeState(node).get(run, client, data.decode())) is not None:
            return own
    raise FileNotFoundError(
        f"{states} does not have what client {client} kept by round {newest.progress.round}"
    )


def _ready(
    ctx: Ctx,
    method: AnyMethod,
    federation: Federation,
    model: Params | Ensemble,
    client: int | None,
    remote: bool,
) -> Params | Ensemble:
    """The model as it is evaluated: static batch normalisation is recalibrated."""
    if fields.value(method, "bn", "running") != "static" or not ctx.task.running_statistics:
        return model
    if remote:
        raise ValueError(
            "batch normalisation of this method is calibrated on clients' data, which are not here"
        )
    workers = Workers(ctx.task, cores())
    try:
        calibration = Calibration(federation, workers)
        if client is not None:
            return calibration.own(ctx.task, model, client)
        return calibration.shared(ctx.task, model)
    finally:
        workers.close()


def _facts(
    config: Config, federation: Federation, newest: Checkpoint, client: int | None
) -> dict[str, Any]:
    """Facts that a user of the file needs."""
    experiment = config.experiment
    known = federation.describe()
    facts = {
        "version": gossamer.__version__,
        "method": config.method.rpartition(":")[2],
        "model": experiment.model,
        "round": newest.progress.round,
        "rounds": experiment.rounds,
        "seed": experiment.seed,
        "client": client,
    }
    about = ("name", "classes", "shape", "scale", "mean", "std", "vocabulary")
    return facts | {"data": {name: known[name] for name in about if name in known}}


def _bound(module: nn.Module, params: Params) -> nn.Module:
    bound = copy.deepcopy(module).to("cpu").eval()
    places = dict(bound.named_parameters()) | dict(bound.named_buffers())
    with torch.no_grad():
        for name, tensor in params.items():
            places[name].copy_(tensor)
    return bound.requires_grad_(False)
