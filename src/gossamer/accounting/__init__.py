"""What a run costs: bits and floating-point operations, in one arithmetic for all methods."""

from gossamer.accounting.bits import (
    Accounting,
    Cost,
    Entry,
    MaskCode,
    Recipients,
    ledger_rows,
    mask_bits,
    paper_bits,
    paper_rows,
    paper_tensors,
    seed_bits,
    stale_share,
    visitors,
)
from gossamer.accounting.flops import FLOPS, Effort, FlopsModel, densities, density

__all__ = [
    "FLOPS",
    "Accounting",
    "Cost",
    "Effort",
    "Entry",
    "FlopsModel",
    "MaskCode",
    "Recipients",
    "densities",
    "density",
    "ledger_rows",
    "mask_bits",
    "paper_bits",
    "paper_rows",
    "paper_tensors",
    "seed_bits",
    "stale_share",
    "visitors",
]
