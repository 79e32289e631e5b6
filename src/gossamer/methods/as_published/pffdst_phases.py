"""The two phases of PFFDST in every reading: layer densities, scope of pruning, readjustment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from gossamer import sparsity
from gossamer.core import Ctx, Masks, Params
from gossamer.fields import option
from gossamer.methods.as_published.feddst import Readjustment
from gossamer.methods.parts import sparse_model
from gossamer.methods.parts.frozen_weights import Server, changed
from gossamer.methods.parts.sensitivity_probe import after_probe
from gossamer.methods.pffdst import PFFDST, fractions
from gossamer.sparsity import Average, Counts, Densities, Rounding


@dataclass(frozen=True)
class Phases:
    """The options of PFFDST's schedule; with its defaults, that of the paper."""

    density: float = option(0.2, "fraction of the prunable weights kept", above=0, most=1)
    freezing: bool = option(True, "train in two phases; freeze the weights of the first")
    readjust: Literal["server", "client", "learned", "none"] = option(
        "server", "who readjusts masks; learned: clients train them along, as in FLASH"
    )
    ratio: float = option(0.5, "fraction that the server readjusts", least=0, most=1)
    every: int = option(10, "rounds between readjustments by the server", least=1)
    trim_at: float = option(0.25, "part of a phase with such readjustments", least=0, most=1)
    readjust_second: bool = option(
        True, "the server readjusts in the second phase too; else all its first weights stay"
    )
    scope: Literal["layer-fraction", "layer-quota", "global"] = option(
        "layer-fraction", "prune the same fraction of each layer, to quotas, or across layers"
    )
    readjustment: Readjustment = Readjustment()
    mask_every: int = option(1, "rounds between those in which clients learn masks", least=1)
    allocation: Literal["sensitivity", "uniform", "er", "erk", "erk-plus", "erk-feddst"] = option(
        "erk-feddst", "how the density of each layer is determined; sensitivity: by a probe round"
    )
    fc_density: float = option(
        1.0, "density of the last fully connected layer under erk-plus", least=0, most=1
    )
    rounding: Rounding = option("floor", "how the counts of layers are rounded")

    @property
    def pure(self) -> PFFDST:
        """The method of the paper with this schedule, as far as it knows it."""
        return PFFDST(
            density=self.density,
            freezing=self.freezing,
            readjust="client" if self.readjust == "client" else "server",
            ratio=self.ratio if self.readjust == "server" else 0.0,
            every=self.every,
            trim_at=self.trim_at,
            readjustment=self.readjustment.pure,
        )

    # when -----------------------------------------------------------------------------------------

    @property
    def probes(self) -> bool:
        """Whether the first round only measures the densities of layers."""
        return self.allocation == "sensitivity"

    def probing(self, ctx: Ctx) -> bool:
        return self.probes and ctx.round == 1

    def since_probe(self, ctx: Ctx) -> Ctx:
        """The round counted without the probe."""
        return after_probe(ctx) if self.probes else ctx

    def clock(self, ctx: Ctx) -> tuple[int, int, int]:
        """The phase, 1 or 2; the round in it, from 1; and the rounds it has."""
        return self.pure.clock(self.since_probe(ctx))

    def over(self, ctx: Ctx) -> bool:
        """Whether the first of two phases ends with this round, or has ended before."""
        phase, number, rounds = self.clock(ctx)
        return self.freezing and (phase == 2 or number == rounds)

    def moves(self, ctx: Ctx) -> bool:
        """Whether clients move masks in this round."""
        if self.readjust == "learned":
            return (self.clock(ctx)[1] - 1) % self.mask_every == 0
        return self.rate(ctx) > 0

    def rate(self, ctx: Ctx) -> Fraction:
        """The fraction of the active weights that clients readjust in this round."""
        _, number, rounds = self.clock(ctx)
        rate = self.readjustment.rate(number - 1, rounds) if self.readjust == "client" else 0
        return sparsity.as_fraction(rate)

    # masks ----------------------------------------------------------------------------------------

    def readjusted(self, ctx: Ctx, state: Server, average: Average) -> Server:
        """The server with the masks after a round, changed if that is due."""
        params, frozen = state.params, state.frozen or None
        if self.readjust == "learned" and self.moves(ctx):
            counts = self.beside(ctx, self.pure.part, average.densities, state.frozen)
            masks = sparsity.largest(params, counts, average.owned)
            masks = sparsity.union(masks, state.frozen) if frozen else masks
            return changed(state, masks, masks)
        if self.readjust == "client":
            return self.pure.readjusted(ctx, state, self.quotas(ctx, self.target(ctx)))
        phase, number, rounds = self.clock(ctx)
        last = number >= max(1, round(self.trim_at * rounds))
        due = (last or number % self.every == 0) and (phase == 1 or self.readjust_second)
        if not self.pure.extra or state.trimmed or not due:
            return state
        low = self.low(ctx, params, state.masks, state.frozen)
        high, key = low if last else sparsity.count(state.masks), ctx.key.fold("grow")
        change = sparsity.readjust(params, state.masks, low, high, key, frozen)
        return changed(replace(state, trimmed=last), change.masks, change.kept)

    def low(self, ctx: Ctx, params: Params, masks: Masks, frozen: Masks) -> Counts:
        """The counts to which the server prunes."""
        match self.scope:
            case "layer-fraction":
                removed = fractions(ctx, self.pure.extra)
                return {name: n - removed[name] for name, n in sparsity.count(masks).items()}
            case "layer-quota":
                return self.quotas(ctx, self.target(ctx))
            case "global":
                wanted = round(self.target(ctx) * ctx.task.layout.total("count", masks))
                left = sparsity.largest_of_all(params, wanted, masks, frozen or None)
                return sparsity.count(left)

    # how many -------------------------------------------------------------------------------------

    def target(self, ctx: Ctx) -> Fraction:
        """The density at the end of the phase."""
        return self.pure.part * self.clock(ctx)[0]

    def quotas(self, ctx: Ctx, density: Fraction, measured: Densities | None = None) -> Counts:
        """The number of active weights of each layer, by measured densities or the allocation."""
        sparse_model.prunable(ctx)
        layout, whole = ctx.task.layout, min(density, Fraction(1))
        if measured:
            shares = sparsity.sensitivity(layout, measured, whole)
        else:
            kind = "uniform" if self.allocation == "sensitivity" else self.allocation
            shares = sparsity.allocate(layout, whole, kind, self.fc_density)
        return sparsity.apportion(layout, shares, self.rounding)

    def second(self, ctx: Ctx, frozen: Masks, measured: Densities) -> Counts:
        """The number of weights of each layer that the second phase starts with."""
        share = self.pure.part + self.pure.extra
        return self.beside(ctx, share, measured, frozen) if measured else fractions(ctx, share)

    def beside(self, ctx: Ctx, density: Fraction, measured: Densities, frozen: Masks) -> Counts:
        """The number of weights of each layer beside the frozen ones, by measured densities."""
        sizes = {name: ctx.task.layout[name].count for name in ctx.task.layout.prunable}
        free = sparsity.count(sparsity.inactive(frozen)) if frozen else sizes
        total = sum(free.values())
        wanted = min(density * sum(sizes.values()) / total, Fraction(1)) if total else Fraction(0)
        # A layer asks for as many weights as were measured, out of those that are not frozen.
        asked = {
            n: min(sparsity.as_fraction(measured[n]) * sizes[n] / max(free[n], 1), Fraction(1))
            for n in free
        }
        return sparsity.apportion(free, sparsity.sensitivity(free, asked, wanted), self.rounding)

    def intended(self, ctx: Ctx) -> int:
        """The number of weights that a client's learned mask aims at."""
        density = sparsity.as_fraction(self.density) if self.probing(ctx) else self.pure.part
        return round(density * ctx.task.layout.total("count", ctx.task.layout.prunable))
