"""Differential privacy on a network: noise and cohorts that no seed determines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from loopback import Loopback, served, set_up, simulated

from gossamer.config import Config, Experiment
from gossamer.flower.node import agreement
from gossamer.flower.server import at_node


@pytest.mark.parametrize("dp", ["clip=1,noise=0.8", "local:clip=1,noise=4"])
def test_served_runs_differ_in_noise_and_agree_on_epsilon(dp: str, tmp_path: Path) -> None:
    setup = replace(set_up("fedavg", rounds=2), dp=dp)
    secret = replace(setup, secret_noise=True)  # as a node sets itself up
    results = [
        served(setup, Loopback.of(secret, tmp_path / f"nodes-{i}"), tmp_path / f"served-{i}")
        for i in range(2)
    ]
    assert results[0].state_hash != results[1].state_hash
    plain = simulated(setup, tmp_path / "threads")
    again = simulated(setup, tmp_path / "again")
    assert plain.state_hash == again.state_hash != results[0].state_hash
    if not dp.startswith("local"):  # with local noise, epsilon depends on who was drawn
        assert results[0].privacy == results[1].privacy == plain.privacy


def test_nodes_draw_noise_of_their_own() -> None:
    config = Config("fedavg", {"clients": 3}, Experiment(pool=6, dp="local:clip=1,noise=4"))
    assert at_node(config, {}).secret_noise and at_node(config, {}).dp.startswith("local")
    assert not config.build_run().secret_noise


def test_server_and_nodes_must_agree_on_dp() -> None:
    setup = set_up("fedavg")
    assert agreement(setup) != agreement(replace(setup, dp="local:clip=1,noise=4"))
