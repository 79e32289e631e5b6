"""Methods with one mask for all, which is drawn, or moved by clients or the server."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gossamer.accounting.forecast import Forecast, Labels, Learned
from gossamer.accounting.forecasts.personal import MOVES
from gossamer.accounting.forecasts.stages import stages
from gossamer.core import Ctx
from gossamer.methods import PFFDST, SSFL, FedDST, Flash, SparsyFed
from gossamer.methods.as_published.feddst import FedDSTVariants
from gossamer.methods.as_published.flash import FlashVariants
from gossamer.methods.as_published.pffdst import PFFDSTVariants
from gossamer.methods.as_published.pffdst_phases import Phases

LAYERS = Learned("densities of layers are learned; FLOPs are those of equal ones")
BY_CLIENTS = Learned(MOVES, masks=("Down.mask",), moves=("Up.mask",))


def feddst(method: FedDST, ctx: Ctx, last: int) -> Labels:
    """A mask goes down to a client that never took part, or readjusted its own."""
    lost = not last or method.rate(replace(ctx, round=last)) > 0
    return lost, method.rate(ctx) > 0


def feddst_learned(method: FedDST, ctx: Ctx) -> Learned | None:
    """How far readjusted masks move, and so what masks cost, depends on training."""
    how = method.readjustment
    return BY_CLIENTS if how.readjust_ratio and how.readjust_until else None


def feddst_variants(method: FedDSTVariants, ctx: Ctx, last: int) -> Labels:
    """As the pure method, unless the density falls in every round."""
    if method.final_density:
        return (ctx.round, last), ctx.round
    down, up = feddst(method.pure, ctx, last)
    return ("first" if method.free_first_download and ctx.round == 1 else down), up


def feddst_variants_learned(method: FedDSTVariants, ctx: Ctx) -> Learned | None:
    """What the pure method has."""
    return feddst_learned(method.pure, ctx)


def flash(method: Flash, ctx: Ctx, last: int) -> Labels:
    """Whether a client holds the mask, and whether that is still the one that was drawn."""
    if method.probing(ctx):
        return "probe", "probe"
    held = last >= _first(method) and not _moved(method, ctx, last)
    moved = _moved(method, ctx, _first(method))
    return "held" if held else "moved" if moved else "drawn", method.moves(ctx)


def _first(method: Flash) -> int:
    """The first round that trains a model."""
    return 2 if method.allocation == "sensitivity" else 1


def _moved(method: Flash, ctx: Ctx, since: int) -> bool:
    """Whether masks moved in a round before this one, from a round on."""
    rounds = range(max(since, ctx.round - method.mask_every), ctx.round)
    return method.mask_every > 0 and any(method.moves(replace(ctx, round=r)) for r in rounds)


def flash_learned(method: Flash, ctx: Ctx) -> Learned | None:
    """The densities of layers and, in mask rounds, the masks depend on training."""
    if method.mask_every:
        return Learned(MOVES, masks=("Train.mask",), moves=("Update.mask",))
    return LAYERS if method.allocation == "sensitivity" else None


def flash_variants(method: FlashVariants, ctx: Ctx, last: int) -> Labels:
    """Masks that churn are never held; those of small budgets may change in any round."""
    if method.resample and len(ctx.budgets) > 1:
        return (ctx.round, last), ctx.round
    down, up = flash(method.pure, ctx, last)
    early = ctx.round <= _first(method.pure)
    # Masks that were drawn loosely are cut to their counts when they move first.
    return ("moved" if method.churn and not early else down), (up, early)


def flash_variants_learned(method: FlashVariants, ctx: Ctx) -> Learned | None:
    """What the pure method has."""
    return flash_learned(method.pure, ctx)


def ssfl(method: SSFL, ctx: Ctx, last: int) -> Labels:
    """Scores in the first round; a mask goes down to a client that has not trained yet."""
    if ctx.round == 1:
        return "scores", "scores"
    return "held" if last > 1 else "mask", "model"


def ssfl_learned(method: SSFL, ctx: Ctx) -> Learned:
    """Which layers the mask is in, and so what it and operations cost, depends on the scores."""
    what = "the mask is learned: it and FLOPs are those of equal scores"
    return Learned(what, moves=("Train.mask",), flops=True)


def sparsyfed(method: SparsyFed, ctx: Ctx, last: int) -> Labels:
    """The first model is dense; later ones have the weights that some client kept."""
    return ctx.round == 1, ctx.round == 1


def sparsyfed_learned(method: SparsyFed, ctx: Ctx) -> Learned:
    """How far the masks of clients differ decides how dense the server's model is."""
    what = "clients choose masks: the model has what one of them keeps, from the density to all"
    moves, least = ("Down.mask", "Up.mask"), method.density
    return Learned(what, values=("Down.model.values",), moves=moves, least=least, flops=True)


def pffdst(method: PFFDST, ctx: Ctx, last: int) -> Labels:
    """By the stage of the masks, and whether a client holds them and the frozen part."""
    at, here = stages(_phases(method), ctx), ctx.round
    return at.label(here, last), (at.number(here), method.rate(ctx) > 0, at.mark(here))


@lru_cache
def _phases(method: PFFDST) -> Phases:
    """The phases of the paper's method, as its variants have them."""
    return Phases(
        freezing=method.freezing,
        readjust=method.readjust,
        density=method.density,
        ratio=method.ratio,
        every=method.every,
        trim_at=method.trim_at,
    )


def pffdst_learned(method: PFFDST, ctx: Ctx) -> Learned | None:
    """How far clients move masks depends on training, where they do."""
    moving = method.readjust == "client" and method.readjustment.readjust_ratio
    return BY_CLIENTS if moving else None


def pffdst_variants(method: PFFDSTVariants, ctx: Ctx, last: int) -> Labels:
    """The same with a probe, a first message that is not sent, and scores in the first phase."""
    phases, here = method.phases, ctx.round
    if phases.probing(ctx):
        return "probe", "probe"
    at = stages(phases, ctx)
    up = (at.number(here), phases.moves(ctx), phases.clock(ctx)[0], at.mark(here))
    if method.free_first_download and here == 1:
        return "first", up
    return at.label(here, last if last > phases.probes else 0), up


def pffdst_variants_learned(method: PFFDSTVariants, ctx: Ctx) -> Learned | None:
    """The densities of layers, and how far clients move masks, may depend on training."""
    if method.phases.readjust in ("client", "learned"):
        return BY_CLIENTS
    return LAYERS if method.phases.probes else None


FORECASTS: dict[type, Forecast] = {
    FedDST: Forecast(feddst, feddst_learned),
    FedDSTVariants: Forecast(feddst_variants, feddst_variants_learned),
    Flash: Forecast(flash, flash_learned),
    FlashVariants: Forecast(flash_variants, flash_variants_learned),
    SSFL: Forecast(ssfl, ssfl_learned),
    SparsyFed: Forecast(sparsyfed, sparsyfed_learned),
    PFFDST: Forecast(pffdst, pffdst_learned),
    PFFDSTVariants: Forecast(pffdst_variants, pffdst_variants_learned),
}
