"""Variants of FLASH and NST with their defaults are the paper's methods, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
from flash_cases import equal, heard, played, toy

from gossamer import METHODS
from gossamer.methods.as_published.flash import FlashVariants, NSTVariants

BUDGETS = (0.05, 0.1, 0.2)
CASES: dict[str, tuple[str, dict[str, Any], tuple[float, ...]]] = {
    "pdst": ("pdst", {}, ()),
    "spdst": ("spdst", {"bn": "static"}, ()),
    "jmwst": ("jmwst", {"mask_every": 2, "momentum": 0.9}, ()),
    "nst": ("nst", {"averaging": "wfa"}, ()),
    "budgets": ("jmwst", {"clients": 6}, BUDGETS),
    "groups": ("jmwst", {"group": 4}, ()),
    "erk": ("jmwst", {"allocation": "erk"}, BUDGETS),
}


@pytest.mark.parametrize("name", CASES)
def test_a_variant_with_its_defaults_gives_the_bits_of_the_method(name: str) -> None:
    entry, changes, budgets = CASES[name]
    pure = toy(entry, **changes)
    variant = NSTVariants(pure) if entry == "nst" else FlashVariants(pure)
    methods = (pure, variant)
    for one, two in zip(*(played(each, 5, *budgets, norm=True) for each in methods), strict=True):
        assert equal(one.merged.params, two.merged.params)
    runs = [heard(each, 5, *budgets, norm=True) for each in methods]
    assert runs[0].finished == runs[1].finished  # losses, bits and operations of every client
    shown = [[event.metrics for event in run.measured] for run in runs]
    assert shown[0] == shown[1]


def test_the_entries_of_variants_are_spdst_and_nst() -> None:
    assert METHODS["flash-variants"].pure == METHODS["spdst"]
    assert METHODS["nst-variants"].pure == METHODS["nst"]
    assert METHODS["flash-variants"].accounting == METHODS["spdst"].accounting
