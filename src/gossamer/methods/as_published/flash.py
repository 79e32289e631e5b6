"""FLASH and NST with every reading of their paper as an option, and as the authors' code is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import Any, Literal

from torch import Tensor

from gossamer import core, merge, sparsity
from gossamer.core import Batch, Client, Ctx, Job, Key, Masks, Measures, Params, Result
from gossamer.fields import option
from gossamer.methods import flash, nst
from gossamer.methods.as_published import mask_learning
from gossamer.methods.as_published.delegation import variants_of
from gossamer.methods.as_published.mask_learning import Learning, Work
from gossamer.methods.flash import Down, Exchanges, Flash, Nested, Train, Up, jmwst, pdst
from gossamer.methods.nst import NST
from gossamer.methods.parts import held_versions, sensitivity_probe, sparse_model
from gossamer.methods.parts.held_versions import Local
from gossamer.methods.parts.mask_learning import Update, receive_update
from gossamer.methods.parts.sensitivity_probe import Probe
from gossamer.optim import Training
from gossamer.sparsity import Allocation, Densities, Rounding, Saturate
from gossamer.wire import Drawn, Revision, WireError


@dataclass(frozen=True)
class Horizon:
    """The rounds that the schedule of the learning rate spans."""

    lr_horizon: int = option(0, "rounds that the schedule spans; 0: all", least=0)
    lr_lag: int = option(0, "rounds before the schedule starts", least=0)

    def spans(self, training: Training) -> str:
        """The schedule, if it is one over all rounds."""
        return "" if self.lr_horizon else training.spans_rounds

    def rate(self, training: Training, ctx: Ctx) -> float:
        rounds = self.lr_horizon or ctx.rounds
        return training.rate(replace(ctx, round=max(ctx.round - self.lr_lag, 1), rounds=rounds))


@dataclass(frozen=True)
class Server:
    params: Params
    masks: Nested
    drawn: Drawn  # the seed of the masks in their first version
    seeded: int  # that version, or -1 in stage 1
    versions: tuple[int, ...]  # of the masks of each budget
    held: Tensor  # by client id: the version that the client holds, or -1
    tested: Params  # the model that is tested, where it is not `params`
    union_density: float
    mean_jaccard: float


@variants_of(Flash)
@dataclass(frozen=True)
class FlashVariants:
    pure: Flash = Flash()
    learning: Learning = Learning()
    horizon: Horizon = Horizon()
    saturate: Saturate = option(
        "waterfill", "how the excess density of a saturated layer is redistributed in mask rounds"
    )
    rounding: Rounding = option("exact", "how weights of layers are rounded to whole numbers")
    bernoulli: bool = option(False, "draw each weight of a mask independently; counts then vary")
    churn: float = option(
        0.0, "Jaccard distance by which masks move between rounds (Table 2)", least=0, most=1
    )
    churn_layers: str = option("", "layers that churn, such as 9-16, or their names with commas")
    probe_among: Literal["richest", "any"] = option("richest", "which clients take part in probing")
    probe_saturate: Saturate = option(
        "waterfill", "how the excess density of a saturated layer is redistributed after stage 1"
    )
    reuse_init: bool = option(False, "stage 2 starts from the initial weights of stage 1")
    resample: bool = option(False, "smaller budgets follow the largest weights in every round")
    eval_model: Literal["masked", "union"] = option(
        "masked", "evaluate the sparse model, or the mean that it is cut from"
    )

    @property
    def spans_rounds(self) -> str:
        """The schedule of the learning rate, unless it has a horizon of its own."""
        return self.horizon.spans(self.pure.training)

    def init(self, ctx: Ctx) -> Server:
        pure = self.pure
        self.learning.check(pure.training, pure.prune_rate)
        if pure.group and pure.mask_every:
            self.learning.check_groups()
        if pure.group and self.churn:
            raise ValueError(
                "churn moves weights from group to group; use `group=` or `churn=`, not both"
            )
        pure.init(ctx)
        self.churned_layers(ctx)
        kind: Allocation = "uniform" if pure.allocation == "sensitivity" else pure.allocation
        densities = sparsity.allocate(ctx.task.layout, pure.density, kind, pure.fc_density)
        return self.start(ctx, densities, 0)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        if self.pure.probing(ctx) and self.probe_among == "any":
            return core.sample(ctx.key, pool, min(self.pure.probe_clients, len(pool)))
        return self.pure.cohort(ctx, self.seen_by(ctx, state, pool[0]), pool)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        down = self.pure.down(ctx, self.seen_by(ctx, state, client), client)
        if self.learning.exact or isinstance(down, Probe):
            return down
        # A client that counts loosely must know what to aim at.
        return replace(down, budget=self.pure.budgets(ctx).part(client))

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return self.down(ctx, replace(state, held=held_versions.NOBODY), client)

    def merge(self, ctx: Ctx, state: Server, exchanges: Exchanges) -> Server:
        pure, budgets, layout = self.pure, self.pure.budgets(ctx), ctx.task.layout
        if pure.probing(ctx):
            measured = sensitivity_probe.mean_sensitivity(ctx, (each.up for each in exchanges))
            if not measured:
                return state
            densities = sparsity.sensitivity(layout, measured, pure.density, self.probe_saturate)
            return self.start(ctx, densities, state.versions[-1] + 1)
        clients: list[Client] = []
        updates = self.updates(ctx, state, exchanges, clients)
        average = sparsity.masked_mean(updates, budgets.averaging(pure.averaging))
        if not clients:
            return state
        unoffered = budgets.unoffered(state.masks, clients)
        params = sparsity.replaced({**state.params, **average.params}, unoffered, state.params)
        union = sparsity.union(average.owned, unoffered)
        masks, moves = state.masks, pure.moves(ctx)
        if moves:
            masks = self.subsample(ctx, params, average.densities, union)
        elif self.resample and budgets.several:
            masks = budgets.masks(masks[-1], params)
        tested = params if self.eval_model == "union" else {}
        if self.churn:
            # What is moved starts from zero, and would be tested before it was ever trained.
            tested = tested or sparsity.masked(params, masks[-1])
            layers, key = self.churned_layers(ctx), ctx.key.fold("churn")
            change = sparsity.churn(key, masks[-1], self.churn, layers)
            masks = budgets.masks(change.masks, ctx.key.fold("levels"))
            params = sparsity.masked(params, change.kept)
        # A mask round gives everybody new masks, even where none happened to move.
        pairs = zip(masks, state.masks, strict=True)
        new = (moves or not sparse_model.same(*pair) for pair in pairs)
        held = [-1 if moves else state.versions[budgets.level(each)] for each in clients]
        return replace(
            state,
            params=sparsity.masked(params, masks[-1]),
            masks=masks,
            versions=tuple(map(add, state.versions, new)),
            held=held_versions.updated(state.held, [each.id for each in clients], held),
            tested=tested,
            union_density=float(sparsity.density(average.owned)),
            mean_jaccard=average.mean_jaccard,
        )

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        pure, probe = self.pure, isinstance(down, Probe)
        if isinstance(down.mask, Drawn):
            top = self.draw(ctx, down.mask, probe)
            masks = sparsity.part_of(top, down.budget, Key(down.mask.seed))
            job = pure.begin(ctx, Train(down.model, Revision(masks), None), None)
        else:
            job = pure.begin(ctx, down, local)
        if not probe:
            job.work.rate = self.horizon.rate(pure.training, pure.stage_2(ctx))
        work = Work(job.work, probe or pure.moves(ctx), probe)
        work.intended = intended(ctx, pure.density if down.budget is None else down.budget)
        return Job(work, job.epochs, job.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        pure, group = self.pure, 0 if work.probe else self.pure.group
        learning, rate = self.learning, pure.prune_rate
        mask_learning.step(ctx, pure.training, learning, work, batch, rate, group)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        result = self.pure.finish(ctx, work.model)
        return replace(result, trained=mask_learning.trained(self.learning, work))

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.tested or state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """As the pure method has them."""
        anyone = Client(0, 0, self.pure.density)
        return self.pure.measures(ctx, self.seen_by(ctx, state, anyone))

    # masks ----------------------------------------------------------------------------------------

    def seen_by(self, ctx: Ctx, state: Server, client: Client) -> flash.Server:
        """The state of the pure method, with the version of the masks of a client's budget."""
        version, first = state.versions[self.pure.budgets(ctx).level(client)], state.seeded
        masks, held = (state.masks, state.drawn, version == first, version), state.held
        return flash.Server(state.params, *masks, held, state.union_density, state.mean_jaccard)

    def draw(self, ctx: Ctx, drawn: Drawn, probing: bool) -> Masks:
        """The masks that a seed stands for, at the server and at every client."""
        layout, group = ctx.task.layout, 0 if probing else self.pure.group
        if self.bernoulli and not group:
            return sparsity.random_masks(Key(drawn.seed), layout, drawn.kept, bernoulli=True)
        return sparsity.drawn_masks(drawn, layout, group)

    def start(self, ctx: Ctx, densities: Densities, version: int) -> Server:
        """The server at the beginning of a stage."""
        probing = self.pure.allocation == "sensitivity" and not version
        counts = sparsity.apportion(ctx.task.layout, densities, self.rounding)
        drawn = sensitivity_probe.seed(ctx, counts, version)
        top, key = self.draw(ctx, drawn, probing), ctx.common.fold("init")
        params = ctx.task.init(key.fold(1) if version and not self.reuse_init else key)
        params = sparsity.masked(params, top)
        masks = self.pure.budgets(ctx).masks(top, Key(drawn.seed))
        seeded, versions = -1 if probing else version, (version,) * len(masks)
        tested, density = params if self.eval_model == "union" else {}, sparsity.density(top)
        figures = (tested, float(density), 0.0)
        return Server(params, masks, drawn, seeded, versions, held_versions.NOBODY, *figures)

    def updates(
        self, ctx: Ctx, state: Server, exchanges: Exchanges, clients: list[Client]
    ) -> Iterator[tuple[Params, Masks, float]]:
        for exchange in exchanges:
            up, down, client = exchange.up, exchange.down, exchange.client
            if not isinstance(up, Update) or isinstance(down, Probe):
                raise WireError("densities of layers came back where weights were asked for")
            masks = state.masks[self.pure.budgets(ctx).level(client)]
            clients.append(client)
            affordable, weight = self.learning.affordable, merge.weight(client, self.pure.weighting)
            yield *receive_update(ctx, up, down.model, masks, affordable), weight

    def subsample(self, ctx: Ctx, params: Params, measured: Densities, union: Masks) -> Nested:
        """The masks after clients moved theirs: the largest weights of the mean."""
        pure, layout, budgets = self.pure, ctx.task.layout, self.pure.budgets(ctx)
        if budgets.several:
            density = sparsity.as_fraction(pure.density)
            shares = dict.fromkeys(union, density / max(sparsity.density(union), density))
            counts = sparsity.apportion(sparsity.count(union), shares, self.rounding)
        else:
            shares = sparsity.sensitivity(layout, measured, pure.density, self.saturate)
            counts = sparsity.apportion(layout, shares, self.rounding)
        return budgets.masks(sparsity.largest_masks(params, counts, union, pure.group), params)

    def churned_layers(self, ctx: Ctx) -> list[str] | None:
        return layers(ctx.task.layout.prunable, self.churn_layers) if self.churn_layers else None


@variants_of(NST)
@dataclass(frozen=True)
class NSTVariants:
    pure: NST = NST()
    learning: Learning = Learning()
    horizon: Horizon = Horizon()
    bernoulli: bool = option(False, "draw each weight of a mask independently; counts then vary")

    @property
    def spans_rounds(self) -> str:
        """The schedule of the learning rate, unless it has a horizon of its own."""
        return self.horizon.spans(self.pure.training)

    def init(self, ctx: Ctx) -> nst.Server:
        self.learning.check(self.pure.training, self.pure.prune_rate)
        self.pure.init(ctx)
        first = self.first_masks(ctx)
        return nst.Server(sparsity.masked(ctx.task.init(ctx.common.fold("init")), first), first)

    def merge(self, ctx: Ctx, state: nst.Server, exchanges: nst.Exchanges) -> nst.Server:
        first, pure = self.first_masks(ctx), self.pure
        sent = sparse_model.send(ctx, state.params, first, pure.bn)
        known = (sent, first, self.learning.affordable)
        updates = (
            (*receive_update(ctx, each.up, *known), merge.weight(each.client, pure.weighting))
            for each in exchanges
        )
        average = sparsity.masked_mean(updates, pure.averaging)
        if not average.params:
            return state
        return nst.Server({**state.params, **average.params}, average.owned, average.mean_jaccard)

    def begin(self, ctx: Ctx, down: nst.Down, local: Local | None) -> Job[Work]:
        job = self.pure.begin(ctx, down, local or Local(self.first_masks(ctx)))
        work = Work(job.work.model, moves=True, base=job.work.base)
        work.model.rate = self.horizon.rate(self.pure.training, ctx)
        work.intended = intended(ctx, self.pure.density)
        return Job(work, job.epochs, job.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        pure, learning = self.pure, self.learning
        mask_learning.step(ctx, pure.training, learning, work, batch, pure.prune_rate)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Update, Local]:
        result = self.pure.finish(ctx, nst.Work(work.model, work.base))
        return replace(result, trained=mask_learning.trained(self.learning, work))

    def first_masks(self, ctx: Ctx) -> Masks:
        """The masks that everybody begins with, known to all from the seed."""
        layout, key = ctx.task.layout, ctx.common.fold("masks", 0)
        counts = sparsity.apportion(layout, sparsity.uniform(layout, self.pure.density))
        return sparsity.random_masks(key, layout, counts, self.bernoulli)


def intended(ctx: Ctx, density: float) -> int:
    """How many weights a client is to have, however its masks were drawn."""
    size = ctx.task.layout.total("count", ctx.task.layout.prunable)
    return round(sparsity.as_fraction(density) * size)


def layers(names: Sequence[str], entries: str) -> list[str]:
    """Layers by number, as in `9-16` or `1,3`, counted from 1, or by name."""
    selected = []
    for entry in (part.strip() for part in entries.split(",")):
        first, _, last = entry.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            fits = 0 < int(first) <= int(last or first) <= len(names)
            chosen = list(names[int(first) - 1 : int(last or first)]) if fits else []
        else:
            chosen = [name for name in names if name == entry]
        if not chosen:
            raise ValueError(
                f"`churn_layers=` takes numbers up to {len(names)}, such as 9-16, or names of "
                f"{', '.join(names)}, not {entry!r}"
            )
        selected += chosen
    return selected


LOOSE = Learning(exact=False, growth="bernoulli")
LATE = Horizon(lr_horizon=1000, lr_lag=1)


def released(method: Flash) -> FlashVariants:
    """FLASH as the released code runs it."""
    return FlashVariants(
        replace(method, weighting="uniform"),
        LOOSE,
        LATE,
        saturate="cap-ratio",
        rounding="floor",
        bernoulli=True,
        probe_among="any",
        probe_saturate="clip",
        resample=True,
        eval_model="union",
    )


ENTRIES: dict[str, Any] = {
    "flash-variants": FlashVariants(),
    "nst-variants": NSTVariants(),
    "nst-code": NSTVariants(NST(weighting="uniform"), LOOSE, LATE, bernoulli=True),
    "pdst-code": released(pdst()),
    "spdst-code": released(Flash()),
    "jmwst-code": released(jmwst()),
}
