"""Every method keeps every promise, as it comes and with the settings that change its records."""

from __future__ import annotations

import pytest

from gossamer import METHODS, fields
from gossamer.conformance.promises import PROMISES, check
from gossamer.engine.client import AnyMethod

LEFT_OUT = {"fedadam-kingma", "fedsparse-low", "fedsparse-high"}
"""Another name for the same, and other numbers for a price: they have nothing new to show."""

VARIANTS: dict[str, AnyMethod] = {
    **{name: method for name, method in METHODS.items() if name not in LEFT_OUT},
    "fedavg-local": fields.replace(METHODS["fedavg"], {"buffers": "local", "momentum": 0.9}),
    "fedopt-local": fields.replace(METHODS["fedopt"], {"buffers": "local", "server": "sgd"}),
    "fedsparse-pruning": fields.replace(
        METHODS["fedsparse-variants"], {"lambda0": 1.0, "prune_below": 0.98, "gate_bias": True}
    ),
    "fedtiny-adjusting": fields.replace(METHODS["fedtiny"], {"candidates": 1}),
    "fedavg-kept": fields.replace(
        METHODS["fedavg"], {"optimiser": "adamw", "moments": "kept", "buffers": "local"}
    ),
    **{
        f"{name}-adamw": fields.replace(
            METHODS[name], {"optimiser": "adamw", "weight_decay": 0.1, "lr": 0.01}
        )
        for name in ("spdst", "pffdst", "spafl", "fedsparse", "prunefl")
    },
    "fedprox-clip": fields.replace(METHODS["fedprox"], {"clip": 0.5, "weight_decay": 0.1}),
}


def test_the_names_left_out_are_others_for_the_same() -> None:
    assert METHODS["fedadam-kingma"] == METHODS["fedopt"]
    for name in ("fedsparse-low", "fedsparse-high"):
        assert fields.replace(METHODS[name], {"lambda0": 5e-6}) == METHODS["fedsparse"]


RARE = (
    *("-code", "-release", "-bytecode", "-paper", "-clean", "-sparing", "-static", "-sign"),
    *("-no-freezing", "-no-server", "-reddi", "fedyogi", "fedadagrad", "random_mask"),
    *("fedprox-clip", "-variants", "-adamw", "-lora", "fjord", "fedcom", "fedpaq"),
)
"""Presets that are other settings of a method which is tried anyway."""
OFTEN = [name for name in VARIANTS if not name.endswith(RARE)]


@pytest.mark.parametrize(
    "name",
    [*OFTEN, *(pytest.param(n, marks=pytest.mark.slow) for n in VARIANTS if n not in OFTEN)],
)
def test_the_method_keeps_every_promise(name: str) -> None:
    found = list(check(VARIANTS[name]))
    assert [finding for finding in found if not finding.ok] == []
    assert [finding.name for finding in found] == ["settings are sound", *PROMISES]
