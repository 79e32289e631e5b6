"""Methods whose messages depend on what was learned, and one whose messages grow with rounds."""

from __future__ import annotations

from gossamer.accounting.forecast import Forecast, Labels, Learned, Repeated
from gossamer.core import AnyMethod, Ctx
from gossamer.methods import FedMRN, FedPM, FedSparse, Laplace, SpaFL
from gossamer.methods.as_published.fedpm import FedPMVariants
from gossamer.methods.as_published.fedsparse import FedSparseVariants
from gossamer.methods.as_published.priors import LaplaceVariants
from gossamer.methods.as_published.spafl import SpaFLVariants


def moved_weights(method: AnyMethod, ctx: Ctx) -> Learned:
    """Laplace: how many weights move, and so go up, depends on training."""
    what = "which weights move is learned: from none of them to all"
    return Learned(what, values=("Up.changes",), moves=("Up.moved",))


def open_groups(method: AnyMethod, ctx: Ctx) -> Learned:
    """FedSparse: how many groups stay open depends on training."""
    values = ("Down.model.values", "Down.thresholds", "Up.model.values")
    what = "which groups are pruned is learned: from all of them to none"
    return Learned(what, values, moves=("Down.alive", "Up.opened"), flops=True)


def drawn_masks(method: AnyMethod, ctx: Ctx) -> Learned:
    """FedPM: how well masks can be compressed depends on the probabilities that clients learn."""
    what = "masks are learned: from certain ones, which cost nothing, to a bit per weight"
    return Learned(what, moves=("Up.masks",), flops=True)


def noise_masks(method: AnyMethod, ctx: Ctx) -> Learned:
    """FedMRN: how well masks can be compressed depends on the updates that clients learn."""
    what = "masks are learned: from certain ones, which cost nothing, to a bit per weight"
    return Learned(what, moves=("Up.masks",))


def densities(method: AnyMethod, ctx: Ctx) -> Learned:
    """SpaFL: only thresholds travel; what they prune depends on training."""
    what = "densities are learned, which FLOPs depend on and messages do not"
    return Learned(what, flops=True)


def spafl(method: SpaFL, ctx: Ctx, last: int) -> Labels:
    """A client is sent every broadcast that it missed."""
    return Repeated("", _missed(ctx, last)), ""


def spafl_variants(method: SpaFLVariants, ctx: Ctx, last: int) -> Labels:
    """The same, unless clients are sent the first weights, or thresholds only when sampled."""
    new = method.weight_start == "sent" and not last
    if method.downlink == "all":
        return Repeated(new, _missed(ctx, last)), ""
    return (ctx.round > 1, new), "" if ctx.round > 1 else "first"


def _missed(ctx: Ctx, last: int) -> int:
    """Broadcasts that a client did not receive; the first is known to all."""
    return max(ctx.round - 1 - max(last, 1), 0)


FORECASTS: dict[type, Forecast] = {
    **dict.fromkeys((Laplace, LaplaceVariants), Forecast(learned=moved_weights)),
    **dict.fromkeys((FedSparse, FedSparseVariants), Forecast(learned=open_groups)),
    **dict.fromkeys((FedPM, FedPMVariants), Forecast(learned=drawn_masks)),
    FedMRN: Forecast(learned=noise_masks),
    SpaFL: Forecast(spafl, densities),
    SpaFLVariants: Forecast(spafl_variants, densities),
}
