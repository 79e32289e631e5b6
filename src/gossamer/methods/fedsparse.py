"""FedSparse: clients learn which filters and neurons are worth keeping; the others are pruned.

Each group of weights has a gate, open with a probability that rises with the norm of the group
above a learned threshold. Clients train weights and thresholds under randomly drawn gates, and send
the groups whose gates are open. The server learns from both, and prunes groups that rarely are.

Louizos, Reisser, Soriaga, Welling: A graphical model perspective on federated learning. Workshop
paper, 2021. A later text is https://arxiv.org/abs/2111.10192

Differs from the paper, whose signs and factors contradict each other: every term is part of a loss
to be minimised, the drift has the factor of eq. 9, and an open group pays for each of its weights.
Pruned groups lose their moments, so that they stay pruned. A bias has no gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gossamer import core, merge, optim, sparsity
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result
from gossamer.fields import option
from gossamer.methods.parts.gated_model import Frame
from gossamer.methods.parts.server_optimiser import Moments, ServerOptimiser
from gossamer.methods.parts.sparse_model import BN_HELP, BatchNorm, SparseModel
from gossamer.optim import Training
from gossamer.sparsity import gated_training, hard_concrete
from gossamer.sparsity.grouping import Gates, Grouping
from gossamer.sparsity.groups import Groups
from gossamer.sparsity.hard_concrete import threshold_ascent
from gossamer.submodels.compaction import part_of, removable, removed_share, scattered
from gossamer.wire import EXACT, Packed, pack, unpack

THRESHOLDS = "."  # the thresholds' name among tensors; no tensor of a model has it


@dataclass(frozen=True)
class Server:
    params: Params  # zero where a group is pruned
    thresholds: Tensor  # v, one per group; positive by softplus
    alive: Tensor  # a bit per group: not pruned
    moments: Moments  # of Adam, for parameters
    first: Tensor  # moments of Adamax, for thresholds
    second: Tensor


@dataclass(frozen=True)
class Down:
    alive: Masks  # a bit per group
    removed: Masks  # a bit per pruned group: nothing reaches the inputs that it fed
    beyond: Params = field(metadata=EXACT)  # squares of a group's weights at these inputs, summed
    model: SparseModel
    thresholds: Packed = field(metadata=EXACT)  # half a percent would be several logits


@dataclass(frozen=True)
class Up:
    opened: Masks  # z: a bit per group that is alive
    model: SparseModel


@dataclass(frozen=True)
class Local:  # what the client sent last
    opened: Masks  # a bit per group
    model: SparseModel
    alive: Masks
    removed: Masks


@dataclass(frozen=True)
class FedSparse:
    clients: int = option(10, "clients per round", least=1)
    training: Training = Training()
    grouping: Gates = Grouping()
    lambda0: float = option(5e-6, "price of each weight of an open group", least=0)
    cross_entropy: float = option(1e-4, "pull of clients' gates towards the server's", least=0)
    drift: float = option(0.0, "pull of open weights towards the server's", least=0)
    temperature: float = option(1e-3, "difference of norms worth one logit of a gate", above=0)
    theta0: float = option(0.99, "initial probability that a gate is open", above=0, below=1)
    threshold_lr: float = option(1e-3, "clients' learning rate of thresholds (Adamax)", above=0)
    adaptive: ServerOptimiser = ServerOptimiser()
    server_threshold_lr: float = option(1e-2, "server's learning rate of thresholds", above=0)
    prune_below: float = option(0.1, "groups open no more often are pruned", least=0, below=1)
    compact: bool = option(
        True, "nobody sends or trains what pruned groups feed, where that is exact"
    )
    weighting: merge.Weighting = option("uniform", "how client updates are weighted")
    bn: BatchNorm = option("running", BN_HELP)

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        if self.theta0 <= self.prune_below:
            wanted = f"`theta0=` above `prune_below={self.prune_below:g}`, not {self.theta0:g}"
            raise ValueError(f"all groups would be pruned at once; use a {wanted}")
        groups, params = self.groups(ctx), ctx.task.init(ctx.common.fold("init"))
        raw = hard_concrete.first_thresholds(groups, params, self.theta0, self.temperature)
        alive, zeros = torch.ones_like(raw, dtype=torch.bool), torch.zeros_like(raw)
        moments = self.adaptive.start({name: params[name] for name in ctx.task.layout.parameters})
        return self.prune(groups, Server(params, raw, alive, moments, zeros, zeros))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return core.sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return self.message(ctx, state, {})

    def message(self, ctx: Ctx, state: Server, held: Masks) -> Down:
        """The message to a client; `held` is false where biases and norms stay zero."""
        groups, params = self.groups(ctx), state.params
        alive, thresholds = groups.split(state.alive), groups.split(state.thresholds)
        # Weight decay moves weights even if they have no effect.
        compact = self.compact and not self.training.weight_decay
        removed = removable(ctx.task, groups, alive, params, held) if compact else {}
        frame, values = Frame.of(ctx, groups, alive, removed), pack(thresholds, alive)
        model = frame.send(ctx, params, alive, self.bn)
        return Down(alive, removed, frame.beyond(params, alive), model, values)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        mean = merge.mean(self.ascents(ctx, state, exchanges))
        return self.prune(self.groups(ctx), self.ascend(state, mean)) if mean else state

    def ascents(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]
    ) -> Iterator[tuple[Params, float]]:
        """The gradient of the log-likelihood of each client's reply, and the client's weight."""
        groups, raw = self.groups(ctx), state.thresholds
        for exchange in exchanges:
            down, up = exchange.down, exchange.up
            frame = Frame.of(ctx, groups, down.alive, down.removed)
            sent = frame.weights(down.model, down.alive, down.model)
            opened = groups.opened(up.opened, down.alive)
            reply = frame.weights(up.model, groups.split(opened), down.model)
            ascent = {name: tensor.double() - sent[name] for name, tensor in reply.items()}
            for name, gate in groups.spread(opened, sent).items():
                ascent[name].masked_fill_(~gate, 0)  # eq. 12 and Algorithm 1, line 9
            # Eq. 14 and Algorithm 1, line 10, with theta of the weights as they travelled.
            share = self.theta(groups, sent, raw, scattered(groups, down.alive, down.beyond, sent))
            ascent[THRESHOLDS] = threshold_ascent(opened, share, raw, self.temperature)
            yield ascent, merge.weight(exchange.client, self.weighting)

    def ascend(self, state: Server, mean: Params) -> Server:
        """Algorithm 1, line 12: a step of Adam on parameters, and of Adamax on thresholds."""
        descent = -mean.pop(THRESHOLDS) * state.alive
        changes = {name: change.to(state.params[name].dtype) for name, change in mean.items()}
        trained = {name: changes.pop(name) for name in state.moments.first}
        params, moments = self.adaptive.step(state.params, trained, state.moments)
        params |= {name: state.params[name] + change for name, change in changes.items()}
        betas, eps = (self.adaptive.beta1, self.adaptive.beta2), self.adaptive.eps
        vectors = (state.thresholds, descent, state.first, state.second)
        rate = self.server_threshold_lr
        raw, first, second = optim.adamax(*vectors, moments.steps, rate, betas, eps)
        return Server({**state.params, **params}, raw, state.alive, moments, first, second)

    def prune(self, groups: Groups, state: Server) -> Server:
        """Algorithm 1, line 5: groups that are rarely open are zero from now on."""
        theta = self.theta(groups, state.params, state.thresholds)
        alive = state.alive & (theta > self.prune_below)
        first, second = state.first.masked_fill(~alive, 0), state.second.masked_fill(~alive, 0)
        state = replace(state, alive=alive, first=first, second=second)
        return masked(state, groups.masks(alive, state.params))

    def theta(self, groups: Groups, params: Params, raw: Tensor, more: Tensor | int = 0) -> Tensor:
        """The probabilities that gates are open (eq. 16); `more` is added to squared norms."""
        norms = (groups.squares(params) + more).sqrt()
        return torch.sigmoid(hard_concrete.logits(norms, raw, self.temperature))

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        return [Up(self.groups(ctx).closed(down.alive), down.model)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[gated_training.Work]:
        return Job(self.start(ctx, down, {}), self.training.epochs, self.training.batch)

    def start(self, ctx: Ctx, down: Down, held: Masks) -> gated_training.Work:
        """Algorithm 2, lines 1 to 3; `held` is false where biases and norms stay zero."""
        groups, alive = self.groups(ctx), down.alive
        frame = Frame.of(ctx, groups, alive, down.removed)
        params, raw = frame.receive(ctx, down.model, alive), unpack(down.thresholds, alive)
        part = part_of(ctx.task, groups, alive, params, held, frame.cut, down.beyond)
        work = gated_training.begin(part, groups.join(raw), self.temperature, self.drift)
        work.price, work.rate = self.price(work.sizes, work.start), self.training.rate(ctx)
        work.removed = down.removed
        return work

    def price(self, sizes: Tensor, logits: Tensor) -> Tensor:
        """What an open gate costs in eq. 31; `logits` are log(theta / (1 - theta))."""
        return self.lambda0 * sizes - self.cross_entropy * logits

    def step(self, ctx: Ctx, work: gated_training.Work, batch: Batch) -> gated_training.Work:
        drawn = [(batch, work.draws(batch.key.fold("gates")))]
        work.step(batch, drawn, self.training, self.threshold_lr)  # Algorithm 2, lines 6 to 10
        return work

    def finish(self, ctx: Ctx, work: gated_training.Work) -> Result[Up, Local]:
        groups, part = work.part.whole, work.part
        drawn = work.opened(ctx.key.fold("upload"))  # Algorithm 2, line 13
        opened, alive = groups.split(drawn), groups.split(part.alive)
        frame = Frame.of(ctx, groups, alive, work.removed)
        model = frame.send(ctx, part.restore(work.params), opened, self.bn)
        up = Up({name: each[alive[name]] for name, each in opened.items()}, model)
        metrics = {
            "loss": work.mean_loss(),
            "regulariser": float(self.regulariser(work, work.sizes)),
            "open": float(drawn.float().mean()),
        }
        return Result(up, Local(opened, model, alive, work.removed), part.active(), metrics=metrics)

    def regulariser(self, work: gated_training.Work, sizes: Tensor) -> Tensor:
        """The terms of eq. 31 beside the loss of the data, with the signs of a loss."""
        share = work.positive()
        opened = share * (self.drift / 2 * work.squares() + self.lambda0 * sizes)
        agreed = share * logsigmoid(work.start) + (1 - share) * logsigmoid(-work.start)
        return (opened - self.cross_entropy * agreed)[work.alive > 0].sum()

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """What survives at the server, or what a client sent last."""
        if local is None:
            return state.params
        frame = Frame.of(ctx, self.groups(ctx), local.alive, local.removed)
        return frame.receive(ctx, local.model, local.opened)

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """Which weights survive, and how open their gates are."""
        groups, alive, left = self.groups(ctx), state.alive, int(state.alive.sum())
        shares = self.theta(groups, state.params, state.thresholds)[alive]
        metrics = {
            "alive": left / groups.total,
            "theta": float(shares.mean()) if left else 0.0,
            "undecided": float(((shares > 0.1) & (shares < 0.9)).float().mean()) if left else 0.0,
            "zeros": float((groups.sizes() * ~alive).sum() / ctx.task.layout.count),
            "removed": removed_share(ctx.task, groups, groups.split(alive), state.params),
        }
        layers = groups.split(alive)
        metrics |= {f"alive.{name}": float(part.float().mean()) for name, part in layers.items()}
        return Measures(groups.masks(alive, state.params), metrics)

    def groups(self, ctx: Ctx) -> Groups:
        return self.grouping.groups(ctx.task.layout)


def masked(state: Server, masks: Masks) -> Server:
    """The state with parameters and their moments zero outside of these masks."""
    params, moments = sparsity.masked(state.params, masks), state.moments.masked(masks)
    return replace(state, params=params, moments=moments)


LOW, HIGH = FedSparse(lambda0=5e-7), FedSparse(lambda0=5e-5)
"""Prices at which the paper's models lose few of their weights, and about two thirds."""
