"""Methods whose clients have masks of their own."""

from __future__ import annotations

from dataclasses import replace

from gossamer.accounting.forecast import Forecast, Labels, Learned
from gossamer.core import Ctx
from gossamer.methods import NST, FedSpa, LotteryFL, SubFedAvg
from gossamer.methods.as_published.flash import NSTVariants
from gossamer.methods.as_published.personal import (
    FedSpaVariants,
    LotteryFLVariants,
    SubFedAvgVariants,
)

MOVES = "how far masks move is learned: from not at all to a bit per weight"


def subfedavg(method: SubFedAvg, ctx: Ctx) -> Learned:
    """Whether a client prunes, and when, depends on its accuracy."""
    layout = ctx.task.layout
    share = layout.total("count", layout.parameters) / layout.total("count", layout.prunable)
    what = f"clients prune as they learn: from nothing to {method.target:g} of all parameters"
    return _shrinking(what, max(0.0, 1 - method.target * share))


def lotteryfl(method: LotteryFL, ctx: Ctx) -> Learned:
    """Whether a client prunes, and when, depends on its accuracy."""
    what = f"clients prune as they learn: from density 1 to {method.density:g}"
    return _shrinking(what, method.density)


def fedspa(method: FedSpa, ctx: Ctx) -> Learned | None:
    """How far clients move their masks depends on training."""
    return Learned(MOVES, moves=("Up.mask",)) if method.search else None


def nst(method: NST, ctx: Ctx) -> Learned:
    """The server's model is as dense as the union of its clients' masks."""
    least, most = method.density, min(1.0, method.clients * method.density)
    return Learned(
        f"how far clients' masks agree is learned: their union is {least:g} to {most:g}",
        values=("Sparse.model.values",),
        masks=("Sparse.masks",),
        moves=("Update.mask",),
        least=least,
        most=most,
    )


def subfedavg_variants(method: SubFedAvgVariants, ctx: Ctx) -> Learned:
    """What the pure method has."""
    return subfedavg(method.pure, ctx)


def lotteryfl_variants(method: LotteryFLVariants, ctx: Ctx) -> Learned:
    """What the pure method has; with whole steps, down to a step below the density."""
    learned = lotteryfl(method.pure, ctx)
    below = learned.least * (1 - method.pure.prune_step)
    return replace(learned, least=below) if method.overshoot else learned


def own_start(method: FedSpaVariants, ctx: Ctx, last: int) -> Labels:
    """A mask of its own is sent to a client once."""
    return method.own_start and not last, ""


def fedspa_variants(method: FedSpaVariants, ctx: Ctx) -> Learned | None:
    """What the pure method has."""
    return fedspa(method.pure, ctx)


def nst_variants(method: NSTVariants, ctx: Ctx) -> Learned:
    """What the pure method has."""
    return nst(method.pure, ctx)


def _shrinking(what: str, least: float) -> Learned:
    """What depends on training where clients only prune, down to a density."""
    values = ("Down.model.values", "Up.model.values")
    return Learned(what, values, masks=("Up.mask",), least=least, flops=True)


FORECASTS: dict[type, Forecast] = {
    SubFedAvg: Forecast(learned=subfedavg),
    SubFedAvgVariants: Forecast(learned=subfedavg_variants),
    LotteryFL: Forecast(learned=lotteryfl),
    LotteryFLVariants: Forecast(learned=lotteryfl_variants),
    FedSpa: Forecast(learned=fedspa),
    FedSpaVariants: Forecast(own_start, fedspa_variants),
    NST: Forecast(learned=nst),
    NSTVariants: Forecast(learned=nst_variants),
}
