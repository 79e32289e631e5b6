"""What is known about the costs of compressed messages before training, and how papers count."""

from __future__ import annotations

from dataclasses import replace

from gossamer.accounting import Accounting
from gossamer.accounting.forecast import Learned
from gossamer.compression.compressors import Compressor, Ternary, TopK

WHAT = "how well compressed numbers can be coded depends on training"
LEVELS = ("CompressedUp.payload.levels", "CompressedDown.news")
MASKS = ("CompressedUp.payload.masks",)


def accounting_of(compressor: Compressor | None) -> Accounting:
    """How the paper of a compressor counts what it sends."""
    match compressor:
        case Ternary():
            return Accounting(level_code="golomb")
        case TopK():
            return Accounting(mask_code="coo")
        case _:
            return Accounting()


def learned(inner: Learned | None, compressor: Compressor | None) -> Learned:
    """The parts of messages whose size depends on training.

    Args:
        inner: Those of the method without compression.
        compressor: Of replies.
    """
    if inner is not None:
        values = tuple(name.replace("Up.", "CompressedUp.record.") for name in inner.values)
        masks = tuple(name.replace("Up.", "CompressedUp.record.") for name in inner.masks)
        what = f"{inner.what}; {WHAT}"
        return replace(inner, what=what, values=values, masks=masks, levels=LEVELS)
    if not isinstance(compressor, TopK):
        return Learned(WHAT, levels=LEVELS)
    share = compressor.share
    return Learned(WHAT, moves=MASKS, least=share, most=share, levels=LEVELS)
