"""The two phases of PFFDST: how dense a model is in each, who moves its mask, and when."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Literal

import torch

from gossamer import sparsity
from gossamer.core import Ctx, Masks, Params
from gossamer.fields import option
from gossamer.methods.feddst import Readjustment
from gossamer.methods.parts.sensitivity_probe import after_probe
from gossamer.sparsity import Allocation, Average, Change, Counts, Densities, Rounding


@dataclass(frozen=True)
class Phases:
    """Half of the weights in each phase; a little more is active while the server readjusts."""

    density: float = option(0.2, "part of the prunable weights kept in the end", above=0, most=1)
    freezing: bool = option(True, "train in two phases, and freeze what the first one leaves")
    readjust: Literal["server", "client", "learned", "none"] = option(
        "server", "who moves the mask: the server, clients by gradients, or clients as in FLASH"
    )
    ratio: float = option(0.5, "what the server readjusts of what is trained", least=0, most=1)
    every: int = option(10, "rounds between readjustments by the server", least=1)
    until: float = option(0.25, "part of a phase that has readjustments", least=0, most=1)
    readjust_second: bool = option(
        True, "the server readjusts in the second phase too; else all that was grown there stays"
    )
    scope: Literal["layer-fraction", "layer-quota", "global"] = option(
        "layer-fraction", "prune the same part of every layer, to quotas, or the smallest of all"
    )
    readjustment: Readjustment = Readjustment()
    mask_every: int = option(1, "rounds between those in which clients learn masks", least=1)
    allocation: Literal["sensitivity", "uniform", "er", "erk", "erk-plus", "erk-feddst"] = option(
        "erk-feddst", "how densities of layers are found: by a rule, or by a first round of probing"
    )
    fc_density: float = option(
        1.0, "density of the last fully connected layer under erk-plus", least=0, most=1
    )
    rounding: Rounding = option("floor", "how counts of layers are rounded")

    @property
    def part(self) -> Fraction:
        """The density that one phase trains."""
        return sparsity.as_fraction(self.density) / (2 if self.freezing else 1)

    @property
    def extra(self) -> Fraction:
        """What is active beyond that while the server readjusts: the differential sparsity."""
        return (
            sparsity.as_fraction(self.ratio) * self.part
            if self.readjust == "server"
            else Fraction(0)
        )

    # when -----------------------------------------------------------------------------------------

    @property
    def probes(self) -> bool:
        """Whether a first round finds densities of layers and trains nothing."""
        return self.allocation == "sensitivity"

    def probing(self, ctx: Ctx) -> bool:
        """Whether this is that round."""
        return self.probes and ctx.round == 1

    def since_probe(self, ctx: Ctx) -> Ctx:
        """Rounds counted without it."""
        return after_probe(ctx) if self.probes else ctx

    def clock(self, ctx: Ctx) -> tuple[int, int, int]:
        """The phase, the number of a round in it, from 1, and how long it is."""
        here = self.since_probe(ctx)
        half = here.rounds // 2 if self.freezing else here.rounds
        if here.round <= half:
            return 1, here.round, half
        return 2, here.round - half, here.rounds - half

    def over(self, ctx: Ctx) -> bool:
        """Whether the first of two phases ends with this round, or has ended before."""
        phase, number, length = self.clock(ctx)
        return self.freezing and (phase == 2 or number == length)

    def moves(self, ctx: Ctx) -> bool:
        """Whether clients move masks in a round."""
        if self.readjust == "learned":
            return (self.clock(ctx)[1] - 1) % self.mask_every == 0
        return self.share(ctx) > 0

    def wanted(self, ctx: Ctx) -> Fraction:
        """What is active at the end of a phase."""
        return self.part * self.clock(ctx)[0]

    def share(self, ctx: Ctx) -> Fraction:
        """What clients readjust of the model in a round."""
        if self.readjust != "client":
            return Fraction(0)
        _, number, length = self.clock(ctx)
        return sparsity.as_fraction(self.readjustment.rate(number - 1, length))

    # masks ----------------------------------------------------------------------------------------

    def readjusted(
        self, ctx: Ctx, params: Params, masks: Masks, frozen: Masks, average: Average
    ) -> Change | None:
        """How the server changes masks after a round, if it does."""
        still = frozen or None
        if self.readjust == "client":
            quotas = self.quotas(ctx, self.wanted(ctx))
            if all(kept <= quotas[name] for name, kept in sparsity.count(masks).items()):
                return None
            return _pruned(masks, sparsity.largest(params, quotas, masks, still))
        if self.readjust == "learned":
            if not self.moves(ctx):
                return None
            counts = self.beside(ctx, self.part, average.densities, frozen)
            left = sparsity.largest(params, counts, average.owned)
            return _pruned(masks, sparsity.union(left, frozen) if frozen else left)
        phase, number, length = self.clock(ctx)
        if phase == 2 and not self.readjust_second:
            return None
        end = max(1, round(self.until * length))
        if not self.extra or (number < end and number % self.every):
            return None
        low = self.low(ctx, params, masks, frozen)
        high = low if number >= end else sparsity.count(masks)
        return sparsity.readjust(params, masks, low, high, ctx.key.fold("grow"), still)

    def trims(self, ctx: Ctx) -> bool:
        """Whether the server prunes its last growth of a phase, or has done so before."""
        _, number, length = self.clock(ctx)
        return self.readjust == "server" and number >= max(1, round(self.until * length))

    def second(self, ctx: Ctx, frozen: Masks, measured: Densities) -> Change:
        """The beginning of the second phase: what is there rests, as much is grown beside it."""
        share = self.part + self.extra
        room = sparsity.count(sparsity.inactive(frozen))
        if measured:
            wanted = self.beside(ctx, share, measured, frozen)
        else:
            wanted = self.floors(ctx, share)
        added = {name: min(number, room[name]) for name, number in wanted.items()}
        return Change.of(
            frozen, frozen, sparsity.grow_random(ctx.key.fold("second"), frozen, added)
        )

    # how many -------------------------------------------------------------------------------------

    def beside(self, ctx: Ctx, density: Fraction, measured: Densities, frozen: Masks) -> Counts:
        """Weights of each layer that are not frozen, by densities of layers that clients found."""
        sizes = {name: ctx.task.layout[name].count for name in ctx.task.layout.prunable}
        free = sparsity.count(sparsity.inactive(frozen)) if frozen else sizes
        total = sum(free.values())
        wanted = min(density * sum(sizes.values()) / total, Fraction(1)) if total else Fraction(0)
        # A layer asks for as many weights as it had, out of those that it still has to give.
        asked = {
            n: min(sparsity.as_fraction(measured[n]) * sizes[n] / max(free[n], 1), Fraction(1))
            for n in free
        }
        return sparsity.apportion(free, sparsity.sensitivity(free, asked, wanted), self.rounding)

    def low(self, ctx: Ctx, params: Params, masks: Masks, frozen: Masks) -> Counts:
        """What the server's pruning leaves of every layer."""
        match self.scope:
            case "layer-fraction":
                removed = self.floors(ctx, self.extra)
                return {name: n - removed[name] for name, n in sparsity.count(masks).items()}
            case "layer-quota":
                return self.quotas(ctx, self.wanted(ctx))
            case "global":
                wanted = round(self.wanted(ctx) * ctx.task.layout.total("count", masks))
                left = sparsity.largest_of_all(params, wanted, masks, frozen or None)
                return sparsity.count(left)

    def quotas(self, ctx: Ctx, density: Fraction, measured: Densities | None = None) -> Counts:
        """How many weights each layer has at a density, as measured or by the sparsity."""
        layout = ctx.task.layout
        if not layout.prunable:
            raise ValueError("this model has no layer that may be pruned; see --prunable")
        whole = min(density, Fraction(1))
        if measured:
            shares = sparsity.sensitivity(layout, measured, whole)
        else:
            kind: Allocation = "uniform"
            if self.allocation != "sensitivity":
                kind = self.allocation
            shares = sparsity.allocate(layout, whole, kind, self.fc_density)
        return sparsity.apportion(layout, shares, self.rounding)

    def intended(self, ctx: Ctx) -> int:
        """Weights that a client's mask is to keep, however many it has."""
        density = sparsity.as_fraction(self.density) if self.probing(ctx) else self.part
        return round(density * ctx.task.layout.total("count", ctx.task.layout.prunable))

    def floors(self, ctx: Ctx, share: Fraction) -> Counts:
        """The same part of every layer, as whole weights."""
        layout = ctx.task.layout
        return {name: floor(share * layout[name].count) for name in layout.prunable}


def _pruned(masks: Masks, left: Masks) -> Change:
    return Change.of(masks, left, {n: torch.zeros_like(mask) for n, mask in masks.items()})
