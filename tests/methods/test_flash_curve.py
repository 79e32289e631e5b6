"""A short run of SPDST on real images: a tenth of the weights learns, and little is sent."""

from __future__ import annotations

from typing import Any

import pytest
from flash_cases import Heard, zero_outside

import gossamer as gs
from gossamer import data, fields, models
from gossamer.accounting.dry_run import price

ROUNDS, POOL = 6, 40
COMMON: dict[str, Any] = {"clients": 5, "epochs": 2.0, "batch": 16}


def test_spdst_learns_with_a_tenth_of_the_weights_and_sends_little() -> None:
    """The first round trains nothing that is kept; the others are as those of FedAvg."""
    federation = data.federation("fmnist-mini", "dirichlet:0.3", pool=POOL, seed=1)
    task = gs.Task.of(
        models.build("mlp", federation.shape, 10), federation.test.x[:2], start="seed"
    )
    changes = {"density": 0.1, "probe_clients": 2, "probe_epochs": 1.0, "lr_end": 0.05}
    options = gs.Options(workers=1, eval_every=ROUNDS, personal=False)
    heard = Heard()
    found = gs.run(
        fields.replace(gs.METHODS["spdst"], {**COMMON, **changes}),
        task,
        federation,
        rounds=ROUNDS,
        seed=1,
        sinks=[heard],
        options=options,
    )
    assert found.density == 0.1 and found.failed == 0
    assert 0.5 < found.accuracy["global"] < 0.85
    assert zero_outside(found.state.params, found.state.masks[0])
    layers = [layer["density"] for layer in heard.measured[-1].layers.values()]
    assert max(layers) > 2 * min(layers)  # layers were found to differ

    where: dict[str, Any] = {"classes": 10, "pool": POOL, "examples": 100}
    whole = price(
        fields.replace(gs.FedAvg(), COMMON), task, rounds=ROUNDS, options=options, **where
    )
    dense = whole.total("up").sent + whole.total("down").sent
    sparse = found.cost.up + found.cost.down
    assert sparse < dense / 5
    assert sparse == pytest.approx(dense / 12, rel=0.1)  # a tenth, in five rounds of six
