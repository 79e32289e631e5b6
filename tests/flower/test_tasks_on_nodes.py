"""Tasks other than classification on nodes: the same bits, and figures of personal models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from loopback import Loopback, log_of, served, simulated
from torch import nn

import gossamer as gs
from gossamer.conformance.toys import small
from gossamer.engine import Run
from gossamer.flower.messages import Message, read_measured
from gossamer.methods import METHODS
from gossamer.task import REGRESSION
from gossamer.wire import WireError


def regression() -> Run:
    """SpaFL, whose clients keep models of their own, on targets far above one."""
    x = np.random.default_rng(0).normal(size=(160, 6)).astype(np.float32)
    data = gs.Federation.from_arrays(x, 1000 + 50 * x[:, 0], task="regression", pool=8)
    facts = data.describe()
    goal = REGRESSION.scaled(facts["target_mean"], facts["target_std"])  # type: ignore[arg-type]
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    task = gs.Task.of(net, data.client(0).train.x[:2], goal=goal)
    return Run(small(METHODS["spafl"]), task, data, rounds=3, name="spafl")


def test_a_regression_has_the_same_log_on_nodes(tmp_path: Path) -> None:
    setup = regression()
    here = simulated(setup, tmp_path / "here")
    there = served(setup, Loopback.of(setup, tmp_path), tmp_path / "there")
    assert there.state_hash == here.state_hash
    assert there.scores == here.scores and here.scores["personal_mean"] > 1
    assert log_of(tmp_path / "there") == log_of(tmp_path / "here")


@pytest.mark.parametrize("score", [-0.5, float("inf"), "high"])
def test_scores_outside_of_their_metric_are_refused(score: object) -> None:
    sent = Message({"kind": "measured", "figures": [[3, [score, None, 0.5, True]]]})
    with pytest.raises(WireError, match=r"is not (a score|within the bounds)"):
        read_measured(sent, [3], (0.0, None))
    good = Message({"kind": "measured", "figures": [[3, [80.5, None, 0.5, True]]]})
    found = read_measured(good, [3], (0.0, None))[3]
    assert found is not None and found.test == 80.5
    with pytest.raises(WireError, match="within the bounds"):
        read_measured(good, [3])
