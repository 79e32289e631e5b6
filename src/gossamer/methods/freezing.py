"""A model in two parts, one of them frozen: what travels of it, and what a client keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from gossamer import sparsity
from gossamer.core import Ctx, Masks, Missing, Params
from gossamer.methods import sparse
from gossamer.methods.feddst import First
from gossamer.methods.parts.sensitivity_probe import Probe, Sensitivity
from gossamer.methods.sparse import BatchNorm
from gossamer.wire import Packed, Revision, unpack

FreezeFrom = Literal["last", "best-valid", "best-test"]


@dataclass(frozen=True)
class Frozen:
    """The part of the model that every client receives once."""

    values: Packed
    masks: Masks


@dataclass(frozen=True)
class Down:
    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None
    """Of what is trained; nothing, if the client holds it."""
    frozen: Frozen | None
    keeps: bool
    """Whether there is a frozen part, sent or held."""


@dataclass(frozen=True)
class Up:
    values: Packed
    dense: Params
    buffers: Params
    mask: Revision | None
    """Only if clients readjust masks."""
    score: float | None
    """Of the model received, on validation or test data; -1 if the client has no test data."""


Message = Probe | First | Down
Reply = Sensitivity | Up


@dataclass(frozen=True)
class Local:
    masks: Masks
    frozen: Frozen | None


@dataclass
class Work:
    model: sparse.Work
    frozen: Frozen | None
    score: float | None


def message(
    ctx: Ctx, params: Params, masks: Masks, frozen: Masks, bn: BatchNorm, knows: bool, keeps: bool
) -> Down:
    """What a client is sent that `knows` the mask, or not, and `keeps` the frozen part, or not."""
    trained = sparsity.difference(masks, frozen) if frozen else masks
    sent = Frozen(sparse.values(params, frozen), frozen) if frozen and not keeps else None
    # Who holds the frozen mask needs to be told of the free places only.
    base = frozen if frozen and keeps else None
    return Down(
        sparse.values(params, trained),
        sparse.dense(ctx, params),
        sparse.buffers(ctx, params, bn),
        None if knows else Revision(trained, base),
        sent,
        bool(frozen),
    )


def received(ctx: Ctx, down: Down, local: Local | None) -> tuple[Params, Masks, Frozen | None]:
    """The whole model, the mask of what is trained, and the part that is not."""
    masks = down.mask.masks if down.mask else local.masks if local else None
    frozen = down.frozen or (local.frozen if local and down.keeps else None)
    if masks is None or (down.keeps and frozen is None):
        raise Missing("the mask or the frozen part was not sent, and is not held here")
    params = sparse.joined(ctx, down.values, masks, down.dense, down.buffers)
    if frozen:
        rests = unpack(frozen.values, frozen.masks)
        params |= {n: torch.where(m, rests[n], params[n]) for n, m in frozen.masks.items()}
    return params, masks, frozen


def score(ctx: Ctx, params: Params, by: FreezeFrom) -> float | None:
    """The accuracy of a model on what the client holds back, if that decides what is frozen."""
    if by == "last":
        return None
    held = ctx.own.valid if by == "best-valid" else ctx.own.test
    if not len(held):
        if by == "best-test":
            return -1.0
        raise ValueError(
            "--freeze-from best-valid goes by clients' validation data, and this client has none; "
            "use e.g. --valid 0.1"
        )
    with torch.inference_mode():
        found = ctx.task.logits(ctx.task.own(params), held.x.to(ctx.task.device)).argmax(-1)
    return float((found.cpu() == held.y).double().mean())


def scales(ctx: Ctx) -> list[str]:
    """Weights of normalisation layers."""
    leaves = ctx.task.layout.leaves
    return [n for n, leaf in leaves.items() if leaf.kind == "norm" and n.endswith("weight")]
