"""FedSparse with the other readings of its paper, as options.

The paper gives the drift two factors (eqs. 9 and 31) and the server two steps (eqs. 10 and 12). It
does not say which groups linear layers have, how the relaxed gate follows from its probability,
what a group pays, whether terms are divided by the client's examples, or what becomes of biases and
moments of pruned groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count, tee
from typing import Any, Literal

import torch
from torch import Tensor

from gossamer import merge
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params, Result
from gossamer.fields import option
from gossamer.methods import fedsparse
from gossamer.methods.as_published.delegation import variants_of
from gossamer.methods.fedsparse import THRESHOLDS, Down, FedSparse, Server, Up
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.sparsity import hard_concrete
from gossamer.sparsity.gated_training import Drawn, Work
from gossamer.sparsity.grouping import GRANULARITY_HELP, Granularity, gated, head
from gossamer.sparsity.groups import Groups
from gossamer.sparsity.hard_concrete import HardConcrete
from gossamer.submodels.behind import behind, pruned_beside
from gossamer.task.layout import Layout
from gossamer.wire import Packed

LEAST_SHARE = 1e-6
"""The least probability of an open gate in closed form: zero has no threshold."""
NOTHING = SparseModel(Packed({}, {}), {}, {})


@dataclass(frozen=True)
class Local:
    """What a client sent last, and its moments of thresholds, where they are kept."""

    opened: Masks
    model: SparseModel
    alive: Masks
    removed: Masks
    first: Tensor
    second: Tensor
    steps: int


@dataclass(frozen=True)
class OtherGates:
    """Which weights share a gate, in every reading."""

    granularity: Granularity = option("groups", GRANULARITY_HELP)
    linear_axis: Literal["out", "in"] = option(
        "out", "gates of linear layers: on their outputs, or on their inputs"
    )
    gate_head: Literal["auto", "gated", "dense"] = option(
        "auto", "gates on the last linear layer; auto: unless they would remove whole classes"
    )

    def groups(self, layout: Layout) -> Groups:
        """The groups of every prunable tensor that has gates."""
        by_class = self.granularity == "groups" and self.linear_axis == "out"
        dense = self.gate_head == "dense" or (self.gate_head == "auto" and by_class)
        without = head(layout) if dense else []
        return gated(layout, {n: self.axis(layout, n) for n in layout.prunable if n not in without})

    def axis(self, layout: Layout, name: str) -> int | None:
        if self.granularity == "weights":
            return None
        return 1 if layout[name].kind == "linear" and self.linear_axis == "in" else 0


@variants_of(FedSparse)
@dataclass(frozen=True)
class FedSparseVariants:
    pure: FedSparse = FedSparse(grouping=OtherGates())
    concrete: HardConcrete = HardConcrete()
    lambda0_per: Literal["weight", "gate"] = option(
        "weight", "whether a group pays for each of its weights, or once"
    )
    theta: Literal["binary", "relaxed"] = option(
        "binary", "the server's gates in the cross-entropy: as sent, or as relaxed as the client's"
    )
    drift_factor: Literal["half", "whole"] = option(
        "half", "half the squared distance, as in eq. 9, or all of it, as in eqs. 30 and 31"
    )
    regulariser: Literal["whole", "per-example"] = option(
        "whole", "terms beside the mean loss: as they are, or divided by the client's examples"
    )
    gate_bias: bool = option(False, "biases and norms of pruned filters and neurons are pruned too")
    gate_sample: Literal["batch", "example"] = option(
        "batch", "gates are drawn once per mini-batch, or for each example (slow)"
    )
    server_step: Literal["gradient", "closed"] = option(
        "gradient", "a step of Adam and Adamax, or weights and probabilities in closed form"
    )
    reduction: Literal["mean", "sum"] = option("mean", "over clients, before the server's step")
    dead_moments: Literal["drop", "keep"] = option(
        "drop", "moments of pruned groups; kept, they may bring a group back"
    )
    client_moments: Literal["fresh", "keep"] = option(
        "fresh", "clients' moments of thresholds: reset in each round, or kept"
    )
    personal_model: Literal["sent", "global"] = option(
        "sent", "a client's own model: what it sent last, or the server's"
    )
    test_gates: Literal["open", "mean"] = option(
        "open", "weights of the evaluated model: as they are, or times their probability"
    )

    def init(self, ctx: Ctx) -> Server:
        if self.drift_factor == "whole" and not self.pure.drift:
            raise ValueError("`drift_factor='whole'` has no effect with `drift=0`; set `drift=`")
        if self.gate_bias:
            try:
                behind(ctx.task)
            except ValueError as problem:
                raise ValueError(
                    f"`gate_bias=True` must know which norm follows which filter, and {problem}; "
                    "or leave it out"
                ) from problem
        if self.gate_sample == "example" and ctx.task.layout.batch_norm:
            raise ValueError(
                "`gate_sample='example'` trains on one example at a time, which batch "
                "normalisation refuses; use `gate_sample='batch'` or a model without it"
            )
        return self.prune(ctx, self.pure.init(ctx))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        start = state
        if self.dead_moments == "keep":  # Algorithm 1 to the letter: all groups are judged anew
            start = replace(state, alive=torch.ones_like(state.alive))
        stepped = self.closed if self.server_step == "closed" else self.ascend
        after = stepped(ctx, start, exchanges)
        return self.prune(ctx, after) if after else state

    def ascend(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]
    ) -> Server | None:
        numbers = count()
        ascents = zip(self.pure.ascents(ctx, state, exchanges), numbers, strict=False)
        mean = merge.mean(ascent for ascent, _ in ascents)
        clients = next(numbers)
        if not clients:
            return None
        for name in (THRESHOLDS, *state.moments.first) if self.reduction == "sum" else ():
            kind = state.thresholds if name == THRESHOLDS else state.params[name]
            mean[name] = mean[name].to(kind.dtype).mul_(clients)
        return self.pure.ascend(state, mean)

    @property
    def own_merge(self) -> str:
        """Why the run's rule does not apply; empty if it does."""
        return "maximises the likelihood in closed form" if self.server_step == "closed" else ""

    def closed(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]
    ) -> Server | None:
        """The maximum over weights (eq. 10) and probabilities (eq. 11) for the gates drawn.

        Gates that all clients opened are as open as at the start: certainty has no threshold.
        """
        groups, total, sums = self.pure.groups(ctx), 0.0, dict[str, Tensor]()
        opened = torch.zeros(groups.total, dtype=torch.float64)
        exchanges, again = tee(exchanges)
        for (change, weight), each in zip(
            self.pure.ascents(ctx, state, exchanges), again, strict=True
        ):
            total += weight
            opened.add_(groups.opened(each.up.opened, each.down.alive), alpha=weight)
            for name, tensor in change.items():
                sums.setdefault(name, torch.zeros_like(tensor)).add_(tensor, alpha=weight)
        if not total:
            return None
        del sums[THRESHOLDS]
        old = state.params
        params = {n: old[n] + (part / total).to(old[n].dtype) for n, part in sums.items()}
        for name, gates in groups.spread(opened, old).items():
            mean = mean_of_open(old[name].double(), sums[name], gates)
            params[name] = mean.to(old[name].dtype)
        share = (opened / total).clamp(LEAST_SHARE, self.pure.theta0)
        norms, temperature = groups.norms(params), self.pure.temperature
        raw = hard_concrete.thresholds_for(norms, share, temperature)
        return replace(state, params={**old, **params}, thresholds=raw)

    def prune(self, ctx: Ctx, state: Server) -> Server:
        groups = self.pure.groups(ctx)
        pruned = self.pure.prune(groups, state)
        if self.gate_bias:
            pruned = fedsparse.masked(pruned, self.held(ctx, groups.split(pruned.alive)))
        if self.dead_moments == "drop":
            return pruned
        return replace(pruned, moments=state.moments, first=state.first, second=state.second)

    def held(self, ctx: Ctx, alive: Masks) -> Masks:
        """False where biases, scales and shifts are pruned with their groups."""
        return pruned_beside(ctx.task, self.pure.groups(ctx), alive) if self.gate_bias else {}

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        alive = self.pure.groups(ctx).split(state.alive)
        return self.pure.message(ctx, state, self.held(ctx, alive))

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        work = self.pure.start(ctx, down, self.held(ctx, down.alive))
        work.concrete = self.concrete
        if self.theta == "relaxed":
            work.start = self.concrete.location(work.start) - self.concrete.shift
        scale = self.scale(ctx)
        work.price = scale * self.pure.price(self.paid(work), work.start)
        work.drift = scale * self.with_factor.drift
        if local is not None and local.steps:
            first, second = local.first[work.part.places], local.second[work.part.places]
            work.first, work.second = first.to(work.raw), second.to(work.raw)
            work.steps = local.steps
        return Job(work, self.pure.training.epochs, self.pure.training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        work.step(batch, self.drawn(work, batch), self.pure.training, self.pure.threshold_lr)
        return work

    def drawn(self, work: Work, batch: Batch) -> Drawn:
        """The batch, or each of its examples, with draws for their gates."""
        parts = [batch]
        if self.gate_sample == "example" and len(batch.y) > 1:
            parts = [one_example(batch, index) for index in range(len(batch.y))]
        return [(part, work.draws(part.key.fold("gates"))) for part in parts]

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = self.pure.finish(ctx, work)
        metrics = {**done.metrics, "regulariser": float(self.value(ctx, work))}
        return Result(done.up, self.local(work, done.local), done.masks, metrics=metrics)

    def local(self, work: Work, sent: fedsparse.Local | None) -> Local | None:
        keeps, sends = self.client_moments == "keep", self.personal_model == "sent"
        if not keeps and not sends:
            return None
        first = second = torch.zeros(work.part.whole.total if keeps else 0, dtype=work.raw.dtype)
        if keeps:
            first = first.index_copy(0, work.part.places, work.first.cpu())
            second = second.index_copy(0, work.part.places, work.second.cpu())
        shown = sent if sends and sent else fedsparse.Local({}, NOTHING, {}, {})
        here = (shown.opened, shown.model, shown.alive, shown.removed)
        return Local(*here, first, second, work.steps if keeps else 0)

    def value(self, ctx: Ctx, work: Work) -> Tensor:
        """The terms beside the loss of the data."""
        return self.scale(ctx) * self.with_factor.regulariser(work, self.paid(work))

    def scale(self, ctx: Ctx) -> float:
        """The factor of all terms beside the loss."""
        return 1.0 if self.regulariser == "whole" else 1 / max(len(ctx.own.train), 1)

    def paid(self, work: Work) -> Tensor:
        """The number of weights that each group pays for."""
        return work.sizes if self.lambda0_per == "weight" else torch.ones_like(work.sizes)

    @property
    def with_factor(self) -> FedSparse:
        """The method whose half squared distance has the factor asked for."""
        whole = self.drift_factor == "whole"
        return replace(self.pure, drift=2 * self.pure.drift) if whole else self.pure

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        """What survives at the server, or what a client sent last."""
        if local is not None and self.personal_model == "sent":
            sent = fedsparse.Local(local.opened, local.model, local.alive, local.removed)
            return self.pure.model(ctx, state, sent)
        if self.test_gates == "open":
            return state.params
        groups = self.pure.groups(ctx)
        theta = self.pure.theta(groups, state.params, state.thresholds)
        shares = groups.spread(theta, state.params)
        return {**state.params, **{n: state.params[n] * share for n, share in shares.items()}}


def mean_of_open(old: Tensor, change: Tensor, opened: Tensor) -> Tensor:
    """The mean over clients that have a weight open (eq. 10); the old one if none has.

    Args:
        change: the sum over clients of gate times difference from the old weights.
        opened: the sum of gates, which may be probabilities.
    """
    return torch.where(opened > 0, old + change / opened.clamp_min(1e-38), old)


def one_example(batch: Batch, index: int) -> Batch:
    only, key = slice(index, index + 1), batch.key.fold("example", index)
    return replace(batch, x=batch.x[only], y=batch.y[only], key=key)


ENTRIES: dict[str, Any] = {
    "fedsparse-variants": FedSparseVariants(),
    # The readings whose sparsities come nearest to the printed ones.
    "fedsparse-paper": FedSparseVariants(gate_bias=True, theta="relaxed"),
}
