"""Flower's simulation runtime as an engine: actors of Ray give the bits of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from loopback import log_of

from gossamer.cli import main
from gossamer.flower.commands import CLOSED

RUN = ["run", "spafl", "--data", "fmnist-mini", "--model", "mlp:hidden=16", "--pool", "8"]
RUN += ["--clients", "4", "--rounds", "3", "--quiet"]

BOTH = """
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from gossamer import engine
from gossamer.config import read
from gossamer.engine import Stop
from gossamer.engine.events import RoundFinished
from gossamer.flower.server import set_up
from gossamer.flower.simulation import Cluster, simulation

folder = Path(sys.argv[1])
config = read(folder / "threads" / "config.toml")
run = set_up(config)
stop = Stop()


class Impatient:
    '''Asks twice for the end when the first round is over, so that the second is abandoned.'''

    def emit(self, event, clock):
        if isinstance(event, RoundFinished):
            stop.request()
            stop.request()

    def close(self):
        pass


with simulation(partial(set_up, config), Cluster(workers=2, address="")) as actors:
    engine.start(replace(run, out=folder / "actors"), transport=actors)
    run = replace(run, out=folder / "cut")
    cut = engine.start(run, transport=actors, stop=stop, sinks=[Impatient()])
assert cut.interrupted and cut.rounds == 1, cut
engine.start(run, resume=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: 'gossamer[flower-sim]'")
def test_actors_give_the_bits_of_threads_and_leave_a_round_that_is_abandoned(
    tmp_path: Path,
) -> None:
    assert main([*RUN, "--out", str(tmp_path / "threads")]) == 0
    done = subprocess.run(
        [sys.executable, "-c", BOTH, str(tmp_path)],
        env={**os.environ, **CLOSED},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert log_of(tmp_path / "actors") == log_of(tmp_path / "threads")
    assert log_of(tmp_path / "cut") == log_of(tmp_path / "threads")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: 'gossamer[flower-sim]'")
def test_the_command_runs_on_actors_what_it_runs_on_threads(tmp_path: Path) -> None:
    words = [*RUN, "--out", str(tmp_path / "threads")]
    assert main(words) == 0
    words = [*RUN, "--out", str(tmp_path / "actors"), "--engine", "flower-sim", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "gossamer", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert log_of(tmp_path / "actors") == log_of(tmp_path / "threads")


def test_without_ray_the_engine_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = ["run", "fedavg", "--out", str(tmp_path / "run"), "--engine", "flower-sim"]
    assert main(words) == 2
    assert "pip install 'gossamer[flower-sim]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main([*words[:-1], "ray"]) == 2
    assert "invalid choice: 'ray'" in capsys.readouterr().err
