"""Methods with one mask for all, which the server adjusts by what clients measure."""

from __future__ import annotations

from dataclasses import replace

from gossamer.accounting.forecast import Forecast, Labels, Learned
from gossamer.accounting.forecasts.personal import MOVES
from gossamer.core import Ctx
from gossamer.methods import FedMef, FedRTS, FedTiny, PruneFL
from gossamer.methods.as_published.fedmef import FedMefVariants
from gossamer.methods.as_published.fedtiny import AdjustmentReadings, FedTinyVariants
from gossamer.methods.as_published.prunefl import PruneFLVariants
from gossamer.methods.prunefl import Server
from gossamer.sparsity import allocate, apportion

USUAL = AdjustmentReadings()


def prunefl(method: PruneFL | PruneFLVariants, ctx: Ctx, last: int) -> Labels:
    """While nothing is trained, the first phase lasts a round, and nothing is pruned."""
    passed = _passed(method, ctx)
    adjusts = passed > 0 and passed % _pure(method).adjust_every == 0
    kind = "first" if passed < 0 else "adjusts" if adjusts else ""
    return kind, kind


def prunefl_forwarded(method: PruneFL | PruneFLVariants, ctx: Ctx, state: Server) -> Server:
    """The state counts rounds of the second phase."""
    return replace(state, rounds=max(0, _passed(method, ctx)))


def prunefl_learned(method: PruneFL | PruneFLVariants, ctx: Ctx) -> Learned:
    """How dense the model is, and how long the first phase lasts, depends on training."""
    models = ("Train", "Measure", "Update", "Measured")
    return Learned(
        "densities are learned, from 0 to 1; one round of the first phase is assumed",
        values=tuple(f"{message}.model.values" for message in models),
        masks=("Train.mask", "Measure.mask"),
        flops=True,
    )


def _pure(method: PruneFL | PruneFLVariants) -> PruneFL:
    return method.pure if isinstance(method, PruneFLVariants) else method


def _passed(method: PruneFL | PruneFLVariants, ctx: Ctx) -> int:
    """Rounds of the second phase before this one; -1 in the first phase."""
    return ctx.round - 1 - (_pure(method).first_rounds > 0)


def fedmef(method: FedMef, ctx: Ctx, last: int) -> Labels:
    """By the mask that a client holds."""
    return _adjusted(method, ctx, last, USUAL)


def fedrts(method: FedRTS, ctx: Ctx, last: int) -> Labels:
    """By the mask that a client holds."""
    return _adjusted(method, ctx, last, USUAL)


def fedrts_learned(method: FedRTS, ctx: Ctx) -> Learned:
    """How far masks move depends on training."""
    return Learned(MOVES, masks=("Train.mask",))


def fedmef_variants(method: FedMefVariants, ctx: Ctx, last: int) -> Labels:
    """By the mask that a client holds."""
    return _adjusted(method.pure, ctx, last, method.readings)


def fedtiny(method: FedTiny, ctx: Ctx, last: int) -> Labels:
    """By the round of the selection; then by the mask that a client holds."""
    return _selected(method, ctx, last, USUAL)


def fedtiny_variants(method: FedTinyVariants, ctx: Ctx, last: int) -> Labels:
    """By the round of the selection; then by the mask that a client holds."""
    return _selected(method.pure, ctx, last, method.readings)


def readings_learned(method: FedTinyVariants | FedMefVariants, ctx: Ctx) -> Learned | None:
    """How often masks go down depends on training, where pruned weights may grow again."""
    return Learned(MOVES, masks=("Train.mask",)) if method.readings.prune_first else None


def _selected(method: FedTiny, ctx: Ctx, last: int, readings: AdjustmentReadings) -> Labels:
    here = method.training_ctx(ctx)
    if here.round < 1:
        return ("selection", here.round), ("selection", here.round)
    return _adjusted(method, here, last - (ctx.round - here.round), readings)


def _adjusted(
    method: FedTiny | FedMef | FedRTS, ctx: Ctx, last: int, readings: AdjustmentReadings
) -> Labels:
    """Labels in rounds of training, counted from 1; `last` is 0 or less if there was none.

    If a weight that was pruned may grow again, the first adjustment of a layer is the last one that
    changes its mask while nothing is trained.
    """
    due = _due(method, ctx, readings)
    up = ctx.round if ctx.round in due else 0
    if readings.prune_first:
        due = due[: min(method.adjustment.blocks, len(ctx.task.layout.prunable))]
    version = sum(each < ctx.round for each in due)
    missed = sum(last <= each < ctx.round for each in due)
    if last < 1:
        return "whole" if version else "seed", up
    return ("held", ("revision", version), "whole")[min(missed, 2)], up


def _due(
    method: FedTiny | FedMef | FedRTS, ctx: Ctx, readings: AdjustmentReadings
) -> tuple[int, ...]:
    """The rounds that adjust the mask; asked for once for every client of every round."""
    layout = ctx.task.layout
    key = (method, readings, tuple((name, layout[name].shape) for name in layout.prunable))
    if key not in _DUE:
        # Adjustments keep the counts of layers, and the first candidate is the one chosen.
        active = apportion(layout, allocate(layout, method.density, method.allocation))
        how = method.adjustment
        rounds = range(1, how.adjust_until + 1, how.adjust_every)
        _DUE[key] = tuple(r for r in rounds if readings.due(how, replace(ctx, round=r), active))
    return _DUE[key]


_DUE: dict[tuple[object, ...], tuple[int, ...]] = {}


FORECASTS: dict[type, Forecast] = {
    **dict.fromkeys(
        (PruneFL, PruneFLVariants), Forecast(prunefl, prunefl_learned, prunefl_forwarded)
    ),
    FedTiny: Forecast(fedtiny),
    FedTinyVariants: Forecast(fedtiny_variants, readings_learned),
    FedMef: Forecast(fedmef),
    FedRTS: Forecast(fedrts, fedrts_learned),
    FedMefVariants: Forecast(fedmef_variants, readings_learned),
}
