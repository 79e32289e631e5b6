"""FLASH: learn how dense each layer must be, then train a sparse model whose mask everybody shares.

In stage 1 a few clients learn masks of their own and send only the density of each layer. With
these densities the server draws a random mask. In stage 2 it is frozen (SPDST), or clients move it
every few rounds and the server keeps the largest weights of the mean (JMWST). Without stage 1 it is
PDST. Clients with a small budget train a part of the mask.

Babakniya, Kundu, Prakash, Niu, Avestimehr: Revisiting sparsity hunting in federated learning: why
does sparsity consensus matter? TMLR 2023. https://openreview.net/forum?id=iHyhdpsnyi

Differs from the paper: the learning rate, which grows as printed, decays; a layer that would exceed
density 1 leaves the excess to the others; masks have exact counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from gossamer import core, merge, sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Key, Masks, Measures, Params, Result
from gossamer.devices.declared import of_masks
from gossamer.fields import option
from gossamer.methods.parts import mask_learning, masked_training, sensitivity_probe, sparse_model
from gossamer.methods.parts.held_versions import NOBODY, Local, holds, received, updated
from gossamer.methods.parts.mask_learning import SCHEDULE, Update
from gossamer.methods.parts.masked_training import Work
from gossamer.methods.parts.sensitivity_probe import Probe, Sensitivity
from gossamer.methods.parts.sparse_model import BN_HELP, BatchNorm, SparseModel
from gossamer.optim import Training
from gossamer.sparsity import Allocation, Averaging, Budgets, Densities
from gossamer.trust.declared import CHOSEN_MASKS, COVERED, LEARNED_DENSITIES, Privacy
from gossamer.wire import Drawn, Revision, WireError

Nested = tuple[Masks, ...]  # one set for each budget, each inside the next; the last is the model's


@dataclass(frozen=True)
class Server:
    params: Params
    masks: Nested
    drawn: Drawn  # the seed of the masks
    as_drawn: bool  # whether they are those of the seed still; not in stage 1
    version: int  # of the masks
    held: Tensor  # by client id: the version that the client holds, or -1
    union_density: float
    mean_jaccard: float  # distance between the masks of two clients of the last round


@dataclass(frozen=True)
class Train:
    model: SparseModel
    mask: Drawn | Revision | None  # none if the client holds it
    budget: float | None  # the density of a client that draws a part of the mask


Down = Probe | Train
Up = Sensitivity | Update
Exchanges = Iterable[Exchange[Down, Up]]


@dataclass(frozen=True)
class Flash:
    clients: int = option(10, "clients per round", least=1)
    training: Training = SCHEDULE
    density: float = option(0.05, "part of the prunable weights that is kept", above=0, most=1)
    allocation: Literal["sensitivity", Allocation] = option("sensitivity", "density of each layer")
    fc_density: float = option(1.0, "density of the last layer under erk-plus", least=0, most=1)
    group: int = option(0, "N:M masks with groups of M inputs; 0: unstructured", least=0)
    mask_every: int = option(0, "rounds between mask updates (r_int); 0: frozen masks", least=0)
    prune_rate: float = option(0.25, "part of a layer that a mask update prunes", least=0, most=1)
    probe_clients: int = option(10, "clients of stage 1", least=1)
    probe_epochs: float = option(10.0, "local epochs of stage 1", above=0)
    weighting: merge.Weighting = option("samples", "how client updates are weighted")
    averaging: Literal["auto", Averaging] = option("auto", "aggregation; auto: wfa with budgets")
    bn: BatchNorm = option("running", BN_HELP)
    accounting: Accounting = Accounting(mask_code="none", uncharged="budget")
    timing = property(lambda self: of_masks(self.mask_every > 0, self.allocation == "sensitivity"))

    @property
    def privacy(self) -> Privacy:
        frozen = CHOSEN_MASKS if self.mask_every else COVERED
        return LEARNED_DENSITIES if self.allocation == "sensitivity" else frozen

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> Server:
        sparse_model.prunable(ctx)
        self.budgets(ctx).check(self.density, self.group)
        if self.allocation == "sensitivity":
            sensitivity_probe.check(ctx)
        kind: Allocation = "uniform" if self.allocation == "sensitivity" else self.allocation
        densities = sparsity.allocate(ctx.task.layout, self.density, kind, self.fc_density)
        return self.start(ctx, ctx.common.fold("init"), densities, 0)  # Algorithm 1, lines 1-2

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        if self.probing(ctx):  # Algorithm 2, line 4
            return core.sample_richest(ctx.key, pool, self.probe_clients, self.density)
        return core.sample_by_budget(ctx.key, pool, self.clients, self.density)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        budgets = self.budgets(ctx)
        masks, part = state.masks[budgets.level(client)], budgets.part(client)
        model = sparse_model.send(ctx, state.params, masks, self.bn)
        if self.probing(ctx):
            return Probe(model, state.drawn, part)
        if holds(state.held, client, state.version):
            return Train(model, None, None)
        if state.as_drawn:
            return Train(model, state.drawn, part)
        return Train(model, Revision(masks), None)

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask."""
        return self.down(ctx, replace(state, held=NOBODY), client)

    def merge(self, ctx: Ctx, state: Server, exchanges: Exchanges) -> Server:
        if self.probing(ctx):  # Algorithm 1
            measured = sensitivity_probe.mean_sensitivity(ctx, (each.up for each in exchanges))
            if not measured:
                return state
            densities = sparsity.sensitivity(ctx.task.layout, measured, self.density)  # eq. 3
            return self.start(ctx, ctx.common.fold("init", 1), densities, 1)  # lines 9-10
        budgets, clients = self.budgets(ctx), list[Client]()
        updates = self.updates(ctx, state, exchanges, clients)
        average = sparsity.masked_mean(updates, budgets.averaging(self.averaging))  # Algorithm 3
        if not clients:
            return state
        # Weights that no client of the round could afford stay as they are.
        unoffered = budgets.unoffered(state.masks, clients)
        params = sparsity.replaced({**state.params, **average.params}, unoffered, state.params)
        union = sparsity.union(average.owned, unoffered)
        masks, moves = state.masks, self.moves(ctx)
        if moves:  # Algorithm 1, line 19
            masks = self.subsample(ctx, params, average.densities, union)
        return replace(
            state,
            params=sparsity.masked(params, masks[-1]),
            masks=masks,
            as_drawn=state.as_drawn and not moves,
            version=state.version + moves,
            held=updated(state.held, [each.id for each in clients], -1 if moves else state.version),
            union_density=float(sparsity.density(average.owned)),
            mean_jaccard=average.mean_jaccard,
        )

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        """Example replies, from which the reply schema is derived."""
        blank = sparse_model.all_zeros(ctx)
        if isinstance(down, Probe):
            return [sensitivity_probe.sensitivity(ctx, blank)]
        return [Update(down.model, Revision(blank) if self.moves(ctx) else None)]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        training, probing = self.training, self.probing(ctx)
        if isinstance(down.mask, Drawn):
            top = sparsity.drawn_masks(down.mask, ctx.task.layout, 0 if probing else self.group)
            masks = sparsity.part_of(top, down.budget, Key(down.mask.seed))
        else:
            masks = received(down.mask, local.masks if local else None)
        params = sparse_model.receive(ctx, down.model, masks)
        rate = training.lr if probing else training.rate(self.stage_2(ctx))
        epochs = self.probe_epochs if probing else training.epochs
        return Job(masked_training.begin(ctx, params, masks, rate), epochs, training.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        if self.probing(ctx) or self.moves(ctx):
            group = 0 if self.probing(ctx) else self.group
            mask_learning.step(ctx, self.training, work, batch, self.prune_rate, group)
        else:
            masked_training.step(ctx, self.training, work, batch)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        if self.probing(ctx):  # Algorithm 1, line 7
            up = sensitivity_probe.sensitivity(ctx, work.masks)
            return Result(up, None, work.masks, metrics=masked_training.metrics(work, moved=True))
        moves, model = self.moves(ctx), sparse_model.send(ctx, work.params, work.masks, self.bn)
        update = Update(model, Revision(work.masks, work.start) if moves else None)
        local = None if moves else Local(work.masks)
        return Result(update, local, work.masks, metrics=masked_training.metrics(work, moves))

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The masks of the model, and how far clients of the last round agree on them."""
        figures = {"union_density": state.union_density, "client_mismatch": state.mean_jaccard}
        pattern = sparsity.pattern(ctx.task.layout, sparsity.count(state.masks[-1]), self.group)
        figures |= {f"pattern.{name}": float(most) for name, most in pattern.items()}
        return Measures(state.masks[-1], figures)

    # stages and masks -----------------------------------------------------------------------------

    def probing(self, ctx: Ctx) -> bool:
        """Whether this round is stage 1."""
        return self.allocation == "sensitivity" and ctx.round == 1

    def stage_2(self, ctx: Ctx) -> Ctx:
        """The rounds of stage 2, counted from 1."""
        return sensitivity_probe.after_probe(ctx) if self.allocation == "sensitivity" else ctx

    def moves(self, ctx: Ctx) -> bool:
        """Whether masks move in this round of stage 2."""
        return self.mask_every > 0 and (self.stage_2(ctx).round - 1) % self.mask_every == 0

    def start(self, ctx: Ctx, key: Key, densities: Densities, version: int) -> Server:
        """New weights under a random mask; in stage 1 without groups, so that layers may grow."""
        drawn = sensitivity_probe.seed(ctx, sparsity.apportion(ctx.task.layout, densities), version)
        as_drawn = version > 0 or self.allocation != "sensitivity"
        top = sparsity.drawn_masks(drawn, ctx.task.layout, self.group if as_drawn else 0)
        masks = self.budgets(ctx).masks(top, Key(drawn.seed))
        params, density = sparsity.masked(ctx.task.init(key), top), float(sparsity.density(top))
        return Server(params, masks, drawn, as_drawn, version, NOBODY, density, 0.0)

    def budgets(self, ctx: Ctx) -> Budgets:
        """The densities that clients of several budgets train (d_set)."""
        return Budgets.of(ctx.budgets, self.density)

    def updates(
        self, ctx: Ctx, state: Server, exchanges: Exchanges, clients: list[Client]
    ) -> Iterator[tuple[Params, Masks, float]]:
        """The models that came back, with their masks and weights; lists their `clients`."""
        for exchange in exchanges:
            up, down, client = exchange.up, exchange.down, exchange.client
            if not isinstance(up, Update) or isinstance(down, Probe):
                raise WireError("densities of layers came back where weights were asked for")
            masks = state.masks[self.budgets(ctx).level(client)]
            clients.append(client)
            weight = merge.weight(client, self.weighting)
            yield *mask_learning.receive_update(ctx, up, down.model, masks), weight

    def subsample(self, ctx: Ctx, params: Params, measured: Densities, union: Masks) -> Nested:
        """Algorithm 4: masks of the largest weights of each layer, for all budgets."""
        budgets, density = self.budgets(ctx), sparsity.as_fraction(self.density)
        if budgets.several:  # lines 21-22
            ratio = density / max(sparsity.density(union), density)
            counts = sparsity.apportion(sparsity.count(union), dict.fromkeys(union, ratio))
        else:  # line 8, with eq. 3
            densities = sparsity.sensitivity(ctx.task.layout, measured, density)
            counts = sparsity.apportion(ctx.task.layout, densities)
        return budgets.masks(sparsity.largest_masks(params, counts, union, self.group), params)


def pdst() -> Flash:
    """Random masks of one density in every layer, frozen."""
    return Flash(allocation="uniform")


def jmwst() -> Flash:
    """Masks that clients move in every round; the paper counts them as bitmaps."""
    return Flash(mask_every=1, accounting=Accounting(uncharged="budget"))
