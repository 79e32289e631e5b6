"""A million devices cost what the cohort costs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import gossamer as gs
from gossamer import data, models
from gossamer.core import Key
from gossamer.devices.selection import LOOK
from gossamer.engine import Run, start

POOL, COHORT, ROUNDS = 1_000_000, 10, 3


@pytest.mark.parametrize("how", ["", "buffer=5,concurrency=10"], ids=["rounds", "asynchronous"])
def test_a_run_draws_the_devices_that_it_looks_at_and_no_others(how: str, tmp_path: Path) -> None:
    began = time.perf_counter()
    federation = data.federation("synthetic", pool=POOL, seed=1)
    module = models.build("mlp:hidden=8", (60,), 10)
    task = gs.Task.of(module, federation.client(0).train.x[:2], start="seed")
    options = gs.Options(
        eval_every=0,
        devices="phone-2024:50%,mcu:50%",
        spread=0.5,
        availability="duty:24h:0.4",
        asynchronous=how,
    )
    method = gs.FedAvg(clients=COHORT, training=gs.Training(batch=32))
    run = Run(method, task, federation, rounds=ROUNDS, key=Key(1), options=options, out=tmp_path)
    assert run.fleet is not None
    ready = time.perf_counter() - began
    assert ready < 10  # a budget of the specification; it takes less than a second
    summary = start(run)
    drawn = run.fleet._known.cache_info().currsize  # type: ignore[attr-defined]
    choices = ROUNDS if not how else 1 + ROUNDS * 5
    assert 0 < drawn <= choices * (LOOK + 4 * COHORT)
    assert summary.device_seconds is not None and summary.rounds == ROUNDS
