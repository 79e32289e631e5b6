"""A warm process answers for a node: the bits are the same, and a client that stalls is ended."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from loopback import Loopback, log_of, served, simulated

pytest.importorskip("flwr", reason="needs Flower: pip install 'gossamer[flower]'")

from gossamer.config import Config, Experiment
from gossamer.engine import events
from gossamer.flower.apps import STALLED
from gossamer.flower.carrier import Incoming, Outgoing
from gossamer.flower.light_client import get, put
from gossamer.flower.messages import Message
from gossamer.flower.server import set_up

NODES = 2

METHOD = '''
import threading
from dataclasses import dataclass
from pathlib import Path

from gossamer import FedAvg

SIGN = Path(__file__).with_name("stall")


@dataclass(frozen=True)
class Stalling(FedAvg):
    """The first client that finds a certain file removes it and never ends."""

    def begin(self, ctx, down, local):
        if SIGN.exists():
            SIGN.unlink()
            threading.Event().wait()
        return super().begin(ctx, down, local)
'''

WORKER = """
import subprocess, sys
from gossamer.flower.warm_worker import warm_worker

with warm_worker() as worker:
    print(worker.path, flush=True)
    worker.wait(subprocess.Popen([sys.executable, "-c", "input()"], stdin=sys.stdin))
"""


@contextmanager
def running() -> Iterator[Path]:
    """A warm worker in a process of its own, which ends with its input."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        yield path
        process.communicate("\n", timeout=60)
    assert process.returncode == 0 and not path.exists()


@dataclass
class Warm(Loopback):
    """A carrier whose nodes are forked from a warm worker."""

    path: Path = Path()
    config: Path = Path()
    states: Path = Path()
    broken: list[str] = field(default_factory=list)

    def nodes(self) -> list[int]:
        return [100 + index for index in range(NODES)]

    def _deliver(self, name: str, sent: Outgoing) -> None:
        place = {"num-partitions": NODES, "state-dir": str(self.states)}
        node = {"partition-id": sent.node - 100, **place}
        about = json.dumps({"config": str(self.config), "node": node}).encode()
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(str(self.path))
            put(stream, about, *sent.message.packed())
            try:
                problem, head, body = (get(stream) for _ in range(3))
            except ConnectionError as end:
                self.broken.append(str(end))
                self.arrivals[name] = Incoming(name, None, str(end))
                return
        message = None if problem else Message.parsed(head, body)
        self.arrivals[name] = Incoming(name, message, problem.decode())


def config(folder: Path, method: str, **settings: object) -> Config:
    wish = Experiment(data="synthetic", pool=4, model="", rounds=2)
    found = Config(method, settings, wish)
    (folder / "config.toml").write_text(found.toml())
    return found


def test_a_warm_process_gives_the_bits_of_threads_and_survives_what_it_is_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(METHOD)
    wishes = {
        name: config(tmp_path / name, method, clients=4, epochs=2)
        for name, method in (("spafl", "spafl"), ("mine", f"{tmp_path / 'mine.py'}:Stalling"))
        if not (tmp_path / name).mkdir()
    }
    with running() as path:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(str(path))
            put(stream, b"no JSON")
        missing = Warm({}, path=path, config=tmp_path / "none.toml", states=tmp_path / "states")
        with pytest.raises(TimeoutError, match="0 of 4 clients"):
            served(set_up(wishes["spafl"]), missing, tmp_path / "missing")
        loops = {
            name: Warm({}, path=path, config=tmp_path / name / "config.toml", states=tmp_path / "s")
            for name in wishes
        }
        served(set_up(wishes["spafl"]), loops["spafl"], tmp_path / "spafl" / "run", deadline=60.0)
        (tmp_path / "stall").touch()
        served(set_up(wishes["mine"]), loops["mine"], tmp_path / "mine" / "run", deadline=4.0)
    simulated(set_up(wishes["spafl"]), tmp_path / "threads")
    assert log_of(tmp_path / "spafl" / "run") == log_of(tmp_path / "threads")
    log = events.read(tmp_path / "mine" / "run" / "events.jsonl")
    (failed,) = [event for event in log if event["event"] == "client-failed"]
    assert failed["round"] == 1 and failed["stage"] == "network"
    assert failed["reason"] == "the client's process ended without an answer"
    rounds = [event for event in log if event["event"] == "round-finished"]
    assert [len(event["clients"]) for event in rounds] == [3, 4]


def test_a_client_that_outlives_its_round_ends_its_process() -> None:
    words = (
        "import threading; from gossamer.flower.apps import watched\n"
        "with watched(0.2): threading.Event().wait()"
    )
    assert (
        subprocess.run([sys.executable, "-c", words], check=False, timeout=300).returncode
        == STALLED
    )
