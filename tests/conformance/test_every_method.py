"""Every method keeps every promise, as it comes and with the settings that change its records."""

from __future__ import annotations

import pytest

from gossamer import METHODS, fields
from gossamer.check import PROMISES, check
from gossamer.engine.client import AnyMethod

VARIANTS: dict[str, AnyMethod] = {
    **METHODS,
    "fedavg-local": fields.replace(METHODS["fedavg"], {"buffers": "local", "momentum": 0.9}),
    "fedopt-local": fields.replace(METHODS["fedopt"], {"buffers": "local", "server": "sgd"}),
    "fedprox-clip": fields.replace(METHODS["fedprox"], {"clip": 0.5, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_method_keeps_every_promise(name: str) -> None:
    found = list(check(VARIANTS[name]))
    assert [finding for finding in found if not finding.ok] == []
    assert [finding.name for finding in found] == ["settings are sound", *PROMISES]
