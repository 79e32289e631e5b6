"""Masks that a server shares with its clients: how they are found, drawn, moved and divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from gossamer import sparsity
from gossamer.core import Client, Ctx, Key, Masks, Missing, Params
from gossamer.fields import option
from gossamer.methods.parts.sensitivity_probe import after_probe
from gossamer.sparsity import Average, Change, Counts, Number, Rounding, Saturate
from gossamer.task.layout import Layout
from gossamer.wire import Drawn, Revision

LEVELS = 16
"""Budgets that a server keeps masks for."""


@dataclass(frozen=True)
class Masking:
    """How dense a model is, which weights that means, and what clients of less budget have."""

    density: float = option(0.05, "part of the prunable weights that is kept", above=0, most=1)
    allocation: Literal["sensitivity", "uniform", "er", "erk", "erk-plus", "erk-feddst"] = option(
        "sensitivity", "how densities of layers are found: by a first round of probing, or a rule"
    )
    fc_density: float = option(
        1.0, "density of the last fully connected layer under erk-plus", least=0, most=1
    )
    saturate: Saturate = option(
        "waterfill", "what a layer leaves that would be over-full when masks have moved"
    )
    rounding: Rounding = option("exact", "how counts of layers are rounded")
    bernoulli: bool = option(False, "draw each weight of a mask by itself; counts differ then")
    group: int = option(0, "N:M masks with groups of so many inputs; 0: no groups", least=0)
    churn: float = option(0.0, "Jaccard distance that masks move between rounds", least=0, most=1)
    churn_layers: str = option("", "where: e.g. 9-16 of the prunable layers, or names with commas")

    def check(self, ctx: Ctx) -> None:
        """Refuses what cannot be masked, or would leave a part of the model untrained."""
        if not ctx.task.layout.prunable:
            raise ValueError("this model has no layer that may be pruned; see --prunable")
        densities = self.densities(ctx)
        if densities[-1] < self.density - 1e-6:  # budgets have six decimals
            raise ValueError(
                f"the largest budget is {densities[-1]:g} and the density {self.density:g}, so a "
                f"part of the model would never be trained; use --density {densities[-1]:g}"
            )
        if len(densities) > LEVELS:
            raise ValueError(
                f"clients have {len(densities)} budgets up to the density, and the server keeps "
                f"masks for {LEVELS}; round them"
            )
        if self.group and len(densities) > 1:
            raise ValueError(
                "N:M masks cannot lie inside one another with the same groups; use --group or "
                "--budgets, not both"
            )
        if self.group and self.churn:
            raise ValueError(
                "churn moves weights from group to group; use --group or --churn, not both"
            )
        self._churned(ctx)

    @property
    def probes(self) -> bool:
        """Whether densities of layers are found by clients."""
        return self.allocation == "sensitivity"

    def probing(self, ctx: Ctx) -> bool:
        """Whether this is the round that finds them."""
        return self.probes and ctx.round == 1

    def since_probe(self, ctx: Ctx) -> Ctx:
        """Rounds counted without the first one, if that trains nothing."""
        return after_probe(ctx) if self.probes else ctx

    # from a seed ----------------------------------------------------------------------------------

    def seed(self, ctx: Ctx, shares: Mapping[str, Number], number: int) -> Drawn:
        """Random masks with these densities of layers, the `number`-th of a run."""
        layout = ctx.task.layout
        counts = sparsity.apportion(layout, shares, self.rounding)
        shapes = {name: layout[name].shape for name in counts}
        return Drawn.by(ctx.common.fold("masks", number), counts, shapes)

    def draw(self, layout: Layout, drawn: Drawn, probing: bool = False) -> Masks:
        """The masks that a seed stands for, at the server and at every client.

        Those that are probed have no groups, so that densities may move from layer to layer.
        """
        if self.group and not probing:
            return sparsity.random_groups(Key(drawn.seed), layout, drawn.kept, self.group)
        if self.bernoulli:
            return sparsity.random_masks(Key(drawn.seed), layout, drawn.kept, bernoulli=True)
        return drawn.masks()

    def told(
        self,
        ctx: Ctx,
        message: Drawn | Revision | None,
        budget: float | None,
        held: Masks | None,
        probing: bool = False,
    ) -> Masks:
        """What a client makes of a message about masks; none means those that it holds."""
        match message:
            case Drawn():
                top = self.draw(ctx.task.layout, message, probing)
                if budget is None:
                    return top
                return sparsity.nested(top, [budget], Key(message.seed))[0]
            case Revision():
                return message.masks
            case None if held is not None:
                return held
        raise Missing("the server sent no mask, and none is held here")

    def intended(self, ctx: Ctx, budget: float | None) -> int:
        """How many weights a client is to have, however its masks were drawn."""
        density = self.density if budget is None else budget
        return round(
            sparsity.as_fraction(density) * ctx.task.layout.total("count", ctx.task.layout.prunable)
        )

    def shown(self, ctx: Ctx, masks: Masks) -> dict[str, float]:
        """The N of each layer of an N:M mask, which no group of it exceeds."""
        if not self.group:
            return {}
        declared = sparsity.pattern(ctx.task.layout, sparsity.count(masks), self.group)
        return {f"pattern.{name}": float(most) for name, most in declared.items()}

    # by budget ------------------------------------------------------------------------------------

    def densities(self, ctx: Ctx) -> list[float]:
        """What clients can afford of the model, ascending, each density once."""
        return sorted({self.affords(budget) for budget in ctx.budgets})

    def affords(self, budget: float) -> float:
        """The density that a client of a budget trains; budgets have six decimals."""
        return budget if budget < self.density - 1e-6 else self.density

    def part(self, client: Client) -> float | None:
        """The density of a client that cannot afford the whole mask."""
        found = self.affords(client.budget)
        return found if found < self.density else None

    def level(self, ctx: Ctx, client: Client) -> int:
        """Which of the densities is a client's."""
        return self.densities(ctx).index(self.affords(client.budget))

    def levels(self, ctx: Ctx, top: Masks, by: Key | Params) -> tuple[Masks, ...]:
        """Masks for all densities, ascending, each inside the next, which end with `top`."""
        return (*sparsity.nested(top, self.densities(ctx)[:-1], by), top)

    # as they move ---------------------------------------------------------------------------------

    def chosen(self, ctx: Ctx, params: Params, average: Average) -> tuple[Masks, ...]:
        """The masks after clients moved theirs: the largest weights of the clients' mean."""
        layout = ctx.task.layout
        if len(self.densities(ctx)) > 1:
            counts = self.part_of(average.owned)
            top = sparsity.largest(params, counts, average.owned)
        else:
            shares = sparsity.sensitivity(layout, average.densities, self.density, self.saturate)
            counts = sparsity.apportion(layout, shares, self.rounding)
            if self.group:
                top = sparsity.largest_in_groups(params, counts, self.group)
            else:
                top = sparsity.largest(params, counts, average.owned)
        return self.levels(ctx, top, params)

    def part_of(self, union: Masks) -> Counts:
        """As many weights as the model has, each layer of the union giving the same part of it."""
        whole = sum(mask.numel() for mask in union.values())
        active = sparsity.count(union)
        share = sparsity.as_fraction(self.density) * whole / max(sum(active.values()), 1)
        return sparsity.apportion(
            active, dict.fromkeys(active, min(share, Fraction(1))), self.rounding
        )

    def churned(self, ctx: Ctx, top: Masks) -> Change:
        """Masks at the distance asked for from what they were, for an experiment's sake."""
        return sparsity.churn(ctx.key.fold("churn"), top, self.churn, self._churned(ctx))

    def _churned(self, ctx: Ctx) -> list[str] | None:
        return layers(ctx.task.layout.prunable, self.churn_layers) if self.churn_layers else None


def layers(names: Sequence[str], wish: str) -> list[str]:
    """Layers by number, as in `9-16` or `1,3`, counted from 1, or by name."""
    found = []
    for entry in (part.strip() for part in wish.split(",")):
        first, _, last = entry.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            fits = 0 < int(first) <= int(last or first) <= len(names)
            chosen = list(names[int(first) - 1 : int(last or first)]) if fits else []
        else:
            chosen = [name for name in names if name == entry]
        if not chosen:
            raise ValueError(
                f"--churn-layers takes numbers up to {len(names)}, such as 9-16, or names of "
                f"{', '.join(names)}, not {entry!r}"
            )
        found += chosen
    return found
