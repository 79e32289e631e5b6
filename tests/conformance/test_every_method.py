"""Every method keeps every promise, as it comes and with the settings that change its records."""

from __future__ import annotations

import pytest

from gossamer import METHODS, fields
from gossamer.check import PROMISES, check
from gossamer.engine.client import AnyMethod

VARIANTS: dict[str, AnyMethod] = {
    # A second name of the same value has nothing new to show.
    **{name: method for name, method in METHODS.items() if name != "fedadam-kingma"},
    "fedavg-local": fields.replace(METHODS["fedavg"], {"buffers": "local", "momentum": 0.9}),
    "fedopt-local": fields.replace(METHODS["fedopt"], {"buffers": "local", "server": "sgd"}),
    "fedprox-clip": fields.replace(METHODS["fedprox"], {"clip": 0.5, "weight_decay": 0.1}),
}


def test_the_name_left_out_is_another_one_for_the_same() -> None:
    assert METHODS["fedadam-kingma"] == METHODS["fedopt"]


@pytest.mark.parametrize("name", VARIANTS)
def test_the_method_keeps_every_promise(name: str) -> None:
    found = list(check(VARIANTS[name]))
    assert [finding for finding in found if not finding.ok] == []
    assert [finding.name for finding in found] == ["settings are sound", *PROMISES]
