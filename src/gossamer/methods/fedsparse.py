"""FedSparse: filters and neurons have gates that clients learn, and what is shut is sent no more.

Louizos, Reisser, Soriaga, Welling: An expectation-maximization perspective on federated learning.
2021. https://arxiv.org/abs/2111.10192

A group of weights is open with the probability that its norm is above a threshold. Clients train
weights and thresholds by gates drawn for each batch, then draw their gates once more and send the
weights of those that are open. The server learns from which gates clients opened, prunes groups
that are seldom open, and sends what survives: a model that shrinks, for all clients.

Differs from the paper, whose signs and factors contradict each other: all terms are those of a
loss to be minimised, the drift has a factor of one half, and every weight of an open group pays.
Moments of pruned groups are dropped, so that they stay pruned. Options have the other readings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gossamer import merge
from gossamer.core import (
    Batch,
    Client,
    Ctx,
    Exchange,
    Job,
    Masks,
    Measures,
    Params,
    Result,
    sample,
)
from gossamer.fields import option
from gossamer.methods import compacting, gated
from gossamer.methods.gated import Gating, Work
from gossamer.methods.gatekeeper import Gatekeeper, Heard, Server, theta
from gossamer.methods.sparse import BatchNorm
from gossamer.optim import Training
from gossamer.sparsity import hard_concrete
from gossamer.sparsity.hard_concrete import Groups, Objective
from gossamer.wire import EXACT, Packed, WireError, pack, unpack

LOW, MIDDLE, HIGH = 5e-7, 5e-6, 5e-5
"""Prices of a weight that the paper has figures for."""


@dataclass(frozen=True)
class Down:
    alive: Masks
    """A bit per group."""
    values: Packed
    """Weights of groups that are alive."""
    thresholds: Packed = field(metadata=EXACT)
    """Of these groups. Half a percent of a number would be several logits."""
    dense: Params
    buffers: Params


@dataclass(frozen=True)
class Up:
    opened: Masks
    """A bit per group that is alive."""
    values: Packed
    """Weights of groups that are open."""
    dense: Params
    buffers: Params


@dataclass(frozen=True)
class Local:
    """What a client sent last, and its moments of thresholds where they are kept."""

    opened: Masks
    """A bit per group."""
    values: Packed
    dense: Params
    buffers: Params
    first: Tensor
    second: Tensor
    steps: int


@dataclass(frozen=True)
class FedSparse:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    threshold_lr: float = option(1e-3, "clients' learning rate of thresholds (Adamax)", above=0)
    gating: Gating = Gating()
    objective: Objective = Objective()
    gatekeeper: Gatekeeper = Gatekeeper()
    weighting: merge.Weighting = option("uniform", "what a client counts for at the server")
    client_moments: Literal["fresh", "keep"] = option(
        "fresh", "clients' moments of thresholds begin anew in each round, or are kept"
    )
    personal_model: Literal["sent", "global"] = option(
        "sent", "a client's own model: what it sent last, or that of the server"
    )
    test_gates: Literal["open", "mean"] = option(
        "open", "weights of the model tested: as they are, or times their probability"
    )
    compact: bool = option(True, "clients train without what is pruned, as far as that is exact")
    bn: BatchNorm = option("running", "statistics are averaged, or found anew before a test")

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        self._check(ctx)
        return self.gatekeeper.first(ctx, self.gating, self.gating.groups(ctx.task.layout))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        groups = self.gating.groups(ctx.task.layout)
        return Down(
            state.alive,
            _values(groups, state.params, state.alive),
            pack(state.thresholds, state.alive),
            _dense(ctx, groups, state.params),
            self._buffers(ctx, state.params),
        )

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        groups = self.gating.groups(ctx.task.layout)
        raw = groups.join(state.thresholds)
        heard = Heard.nothing(groups)
        for exchange in exchanges:
            before = _received(ctx, groups, exchange.down)
            opened, found = _reply(ctx, groups, exchange.down, exchange.up)
            # Of the weights as they travelled: both sides must speak of the same probabilities.
            shares = torch.sigmoid(self.gating.logits(groups.norms(before), raw))
            gates = opened.to(raw.dtype)
            for name, factor in groups.spread(gates, found).items():
                found[name] = torch.where(factor > 0, found[name], before[name])
            ascent = hard_concrete.threshold_ascent(gates, shares, raw, self.gating.temperature)
            share = merge.weight(exchange.client, self.weighting)
            heard.add(before, found, gates, ascent, share)
        if not heard.clients:
            return state
        return self.gatekeeper.after(ctx, self.gating, groups, state, heard)

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """What the answer to a message looks like."""
        gates = {
            name: torch.zeros(int(a.sum()), dtype=torch.bool) for name, a in down.alive.items()
        }
        return [Up(gates, down.values, down.dense, down.buffers)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        self._check(ctx)
        groups = self.gating.groups(ctx.task.layout)
        whole = _received(ctx, groups, down)
        raw = groups.join(unpack(down.thresholds, down.alive))
        alive = groups.join(down.alive)
        start = gated.Start(groups, whole, raw, alive, len(ctx.own.train))
        # Weights decay whether or not anything reaches them.
        compact = self.compact and not self.training.weight_decay
        work = gated.begin(ctx, self.gating, self.objective, start, compact)
        work.rate = self.training.rate(ctx)
        if local is not None and local.steps:
            first, second = local.first[work.places], local.second[work.places]
            work.first, work.second = first.to(work.raw), second.to(work.raw)
            work.steps = local.steps
        return Job(work, self.training.epochs, self.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return gated.step(
            self.gating, self.objective, self.training, self.threshold_lr, work, batch
        )

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        groups = work.start.groups
        params = gated.whole(work)
        drawn = gated.opened(self.gating, work, ctx.key.fold("upload"))
        opened, alive = groups.split(drawn), groups.split(work.start.alive)
        up = Up(
            {name: each[alive[name]] for name, each in opened.items()},
            _values(groups, params, opened),
            _dense(ctx, groups, params),
            self._buffers(ctx, params),
        )
        return Result(
            up,
            self._local(work, up, opened),
            gated.active(work),
            metrics={
                "loss": work.loss.item() / max(work.examples, 1),
                "regulariser": float(gated.regulariser(self.gating, self.objective, work)),
                "open": float(drawn.float().mean()),
            },
        )

    def _local(self, work: Work, up: Up, opened: Masks) -> Local | None:
        keeps = self.client_moments == "keep"
        if self.personal_model == "global" and not keeps:
            return None
        first, second = gated.moments(work) if keeps else (torch.zeros(0), torch.zeros(0))
        steps = work.steps if keeps else 0
        if self.personal_model == "global":
            return Local({}, Packed({}, {}), {}, {}, first, second, steps)
        return Local(opened, up.values, up.dense, up.buffers, first, second, steps)

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """What survives at the server, or what a client sent last."""
        groups = self.gating.groups(ctx.task.layout)
        if local is not None and self.personal_model == "sent":
            return _joined(ctx, groups, local.opened, local.values, local.dense, local.buffers)
        if self.test_gates == "open":
            return state.params
        shares = groups.spread(theta(self.gating, groups, state), state.params)
        return {**state.params, **{name: state.params[name] * shares[name] for name in shares}}

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """Which weights survive, and how open their gates are."""
        groups = self.gating.groups(ctx.task.layout)
        alive = groups.join(state.alive)
        left = int(alive.sum())
        shares = theta(self.gating, groups, state)[alive]
        zeros = (groups.sizes() * ~alive).sum() / ctx.task.layout.count
        metrics = {
            "alive": left / groups.total,
            "theta": float(shares.mean()) if left else 0.0,
            "undecided": float(((shares > 0.1) & (shares < 0.9)).float().mean()) if left else 0.0,
            "zeros": float(zeros),
        }
        for name, part in state.alive.items():
            metrics[f"alive.{name}"] = float(part.float().mean())
        return Measures(_masks(ctx, groups, alive), metrics)

    # parts ----------------------------------------------------------------------------------------

    def _buffers(self, ctx: Ctx, params: Params) -> Params:
        return {n: params[n] for n in ctx.task.layout.buffers} if self.bn == "running" else {}

    def _check(self, ctx: Ctx) -> None:
        if self.gating.theta0 <= self.gatekeeper.prune_below:
            raise ValueError(
                f"gates that start open with probability {self.gating.theta0:g} are pruned at once "
                f"below {self.gatekeeper.prune_below:g}; use a larger --theta0, or a smaller "
                "--prune-below"
            )
        if self.gating.gate_bias:
            try:
                compacting.behind(ctx.task)
            except ValueError as problem:
                raise ValueError(
                    f"--gate-bias must know which norms stand behind which filters, and {problem}; "
                    "or leave out --gate-bias"
                ) from problem
        if self.gating.gate_sample == "example" and ctx.task.layout.batch_norm:
            raise ValueError(
                "--gate-sample example trains on one example at a time, which batch normalisation "
                "refuses; use --gate-sample batch or a model without it"
            )


# what travels -------------------------------------------------------------------------------------


def _values(groups: Groups, params: Params, kept: Masks) -> Packed:
    """The weights of some groups, without the others.

    As `pack` has them with a mask of all weights, in a tenth of the time: slices go as a whole.
    """
    values = {}
    for name, axis in zip(groups.names, groups.axes, strict=True):
        tensor, flags = params[name], kept[name]
        if not bool(flags.all()):
            tensor = tensor[:, flags] if axis == 1 else tensor[flags]
        values[name] = tensor.flatten()
    return Packed(values, {name: tuple(params[name].shape) for name in groups.names})


def _weights(ctx: Ctx, groups: Groups, kept: Masks, packed: Packed) -> Params:
    """The inverse, with zeros for the others; a `WireError` if there are too few or too many."""
    found = {}
    for name, axis, size in zip(groups.names, groups.axes, groups.weights, strict=True):
        flags, values, shape = kept[name], packed.values[name], ctx.task.layout.leaves[name].shape
        count = int(flags.sum())
        if values.numel() != size * count or packed.shapes[name] != shape:
            raise WireError(
                f"{name} of shape {packed.shapes[name]} came with {values.numel()} values, but its "
                f"gates leave {size * count} of {shape}"
            )
        if count == flags.numel():
            found[name] = values.reshape(shape)
            continue
        found[name] = torch.zeros(shape, dtype=values.dtype)
        if axis is None:
            found[name].masked_scatter_(flags, values)
        else:
            sizes = [count if place == axis else each for place, each in enumerate(shape)]
            found[name].index_copy_(axis, flags.nonzero().flatten(), values.view(sizes))
    return found


def _dense(ctx: Ctx, groups: Groups, params: Params) -> Params:
    """What is trained and has no gates."""
    return {name: params[name] for name in ctx.task.layout.parameters if name not in groups.names}


def _masks(ctx: Ctx, groups: Groups, vector: Tensor) -> Masks:
    return groups.masks(vector, {name: ctx.task.layout.leaves[name].shape for name in groups.names})


def _joined(
    ctx: Ctx, groups: Groups, kept: Masks, values: Packed, dense: Params, buffers: Params
) -> Params:
    """The whole model from its parts; statistics that did not travel are those of a fresh one."""
    weights = _weights(ctx, groups, kept, values)
    whole = {**ctx.task.buffers(), **weights, **dense, **buffers}
    return {name: whole[name] for name in ctx.task.layout.names}


def _received(ctx: Ctx, groups: Groups, down: Down) -> Params:
    return _joined(ctx, groups, down.alive, down.values, down.dense, down.buffers)


def _reply(ctx: Ctx, groups: Groups, down: Down, up: Up) -> tuple[Tensor, Params]:
    """Which gates a client opened and what it sent; a `WireError` if the two do not fit."""
    if up.opened.keys() != down.alive.keys():
        raise WireError("a reply has gates of other tensors than were sent")
    opened = {}
    for name, alive in down.alive.items():
        told = up.opened[name]
        if told.dtype != torch.bool or tuple(told.shape) != (int(alive.sum()),):
            raise WireError(
                f"{name} came back with {tuple(told.shape)} gates for {int(alive.sum())} groups"
            )
        opened[name] = torch.zeros_like(alive).masked_scatter_(alive, told)
    kinds = {n: t.dtype for n, t in up.values.values.items()}
    if kinds != {n: t.dtype for n, t in down.values.values.items()}:
        raise WireError("weights came back with other names or types than were sent")
    dense, buffers = merge.fitting(up.dense, down.dense), merge.fitting(up.buffers, down.buffers)
    return groups.join(opened), {**_weights(ctx, groups, opened, up.values), **dense, **buffers}


def low() -> FedSparse:
    """A price at which the paper's models lose little."""
    return FedSparse(objective=Objective(lambda0=LOW))


def high() -> FedSparse:
    """A price at which the paper's models lose about two thirds of their weights."""
    return FedSparse(objective=Objective(lambda0=HIGH))
