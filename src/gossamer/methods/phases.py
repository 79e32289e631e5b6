"""The two phases of PFFDST: how dense a model is in each, who moves its mask, and when."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Literal

from gossamer import masks as rule
from gossamer.core import Ctx, Masks, Params
from gossamer.fields import option
from gossamer.masks import Allocation, Counts, Rounding
from gossamer.methods.feddst import Readjustment


@dataclass(frozen=True)
class Phases:
    """Half of the weights in each phase; a little more is active while the server readjusts."""

    density: float = option(0.2, "part of the prunable weights kept in the end", above=0, most=1)
    freezing: bool = option(True, "train in two phases, and freeze what the first one leaves")
    readjust: Literal["server", "client", "none"] = option("server", "who moves the mask")
    ratio: float = option(0.5, "what the server readjusts of what is trained", least=0, most=1)
    every: int = option(10, "rounds between readjustments by the server", least=1)
    until: float = option(0.25, "part of a phase that has readjustments", least=0, most=1)
    scope: Literal["layer-fraction", "layer-quota", "global"] = option(
        "layer-fraction", "prune the same part of every layer, to quotas, or the smallest of all"
    )
    readjustment: Readjustment = Readjustment()
    allocation: Allocation = option("erk-feddst", "how densities of layers are found")
    rounding: Rounding = option("floor", "how counts of layers are rounded")

    @property
    def part(self) -> Fraction:
        """The density that one phase trains."""
        return rule.meant(self.density) / (2 if self.freezing else 1)

    @property
    def extra(self) -> Fraction:
        """What is active beyond that while the server readjusts: the differential sparsity."""
        return rule.meant(self.ratio) * self.part if self.readjust == "server" else Fraction(0)

    def half(self, ctx: Ctx) -> int:
        """The last round of the first phase."""
        return ctx.rounds // 2 if self.freezing else ctx.rounds

    def clock(self, ctx: Ctx) -> tuple[int, int]:
        """The number of a round in its phase, from 1, and how long the phase is."""
        half = self.half(ctx)
        return (ctx.round, half) if ctx.round <= half else (ctx.round - half, ctx.rounds - half)

    def wanted(self, ctx: Ctx) -> Fraction:
        """What is active at the end of a phase."""
        return self.part * (1 if ctx.round <= self.half(ctx) else 2)

    def share(self, ctx: Ctx) -> Fraction:
        """What clients readjust of the model in a round."""
        if self.readjust != "client":
            return Fraction(0)
        number, length = self.clock(ctx)
        return rule.meant(self.readjustment.rate(number - 1, length))

    def low(self, ctx: Ctx, params: Params, masks: Masks, frozen: Masks) -> Counts:
        """What the server's pruning leaves of every layer."""
        match self.scope:
            case "layer-fraction":
                removed = self.floors(ctx, self.extra)
                return {name: n - removed[name] for name, n in rule.count(masks).items()}
            case "layer-quota":
                return self.quotas(ctx, self.wanted(ctx))
            case "global":
                wanted = round(self.wanted(ctx) * ctx.task.layout.total("count", masks))
                left = rule.largest_of_all(params, wanted, masks, frozen or None)
                return rule.count(left)

    def quotas(self, ctx: Ctx, density: Fraction) -> Counts:
        """How many weights each layer has at a density."""
        layout = ctx.task.layout
        if not layout.prunable:
            raise ValueError("this model has no layer that may be pruned; see --prunable")
        shares = rule.allocate(layout, min(density, Fraction(1)), self.allocation)
        return rule.apportion(layout, shares, self.rounding)

    def floors(self, ctx: Ctx, share: Fraction) -> Counts:
        """The same part of every layer, as whole weights."""
        layout = ctx.task.layout
        return {name: floor(share * layout[name].count) for name in layout.prunable}
