"""A real federation on loopback: SuperLink, SuperNodes, TLS, keys, and the bits of a simulation."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'gossamer[flower]'")

from loopback import simulated

from gossamer import engine
from gossamer.cli.flower import _await, _running
from gossamer.config import read
from gossamer.flower import certs, commands
from gossamer.flower.project import CONFIG, PACKAGE
from gossamer.flower.server import set_up
from gossamer.methods import METHODS
from helpers import lines

pytestmark = pytest.mark.slow

NODES = 4
LIMIT = 900.0
SMALL = ["--data", "fmnist-mini", "--model", "mlp:hidden=16", "--pool", "4", "--rounds", "3"]


def gossamer(*words: object) -> list[str]:
    return [sys.executable, "-m", "gossamer", *map(str, words)]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, so that nothing it started outlives the test."""
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            pass
        finally:
            ended(process)


def ended(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started, at once."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


class Federation:
    """A project with certificates, and the commands that run it."""

    def __init__(self, folder: Path, method: str, *more: object) -> None:
        self.folder, self.app, self.certs = folder, folder / "app", folder / "certs"
        self.port, *self.own = free_ports(1 + NODES)
        known = {"--clients": "4"} if hasattr(METHODS[method], "clients") else {}
        words = [word for pair in known.items() for word in pair]
        what = [self.app, "--method", method, *SMALL, *words, "--deadline", 300, *more]
        subprocess.run(gossamer("flower", "init", *what), check=True)
        make = gossamer("flower", "certs", self.certs, "--nodes", NODES)
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)

    def serve(self) -> list[str]:
        return gossamer("serve", self.app, "--port", self.port, "--certs", self.certs)

    def join(self, index: int) -> list[str]:
        states = self.folder / f"states-{index}"
        how = ["--certs", self.certs, "--states", states, "--port", self.own[index]]
        address = f"127.0.0.1:{self.port}"
        return gossamer("join", address, "--node", index, "--nodes", NODES, *how)

    @property
    def log(self) -> Path:
        return self.app / "run" / "events.jsonl"

    def wanted(self) -> list[str]:
        setup = set_up(read(self.app / PACKAGE / CONFIG))
        simulated(setup, self.folder / "threads")
        return lines(self.folder / "threads" / "events.jsonl")

    def told(self) -> str:
        texts = [path.read_text()[-3000:] for path in sorted(self.folder.glob("*.log"))]
        return "\n".join(texts)


@pytest.mark.parametrize("method", ["fedavg", "spafl"])
def test_a_federation_of_processes_has_the_bits_of_a_simulation(
    method: str, tmp_path: Path
) -> None:
    federation = Federation(tmp_path, method)
    with ExitStack() as stack:
        server = stack.enter_context(started(federation.serve(), tmp_path / "server.log"))
        for index in range(NODES):
            log = tmp_path / f"node-{index}.log"
            stack.enter_context(started(federation.join(index), log))
        assert server.wait(LIMIT) == 0, federation.told()
    assert lines(federation.log) == federation.wanted()
    assert json.loads(lines(federation.log)[-1])["event"] == "finished"


def until_rounds(count: int, log: Path, server: subprocess.Popen[bytes]) -> None:
    """Returns when so many rounds are in the log; an error if the server ends before."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if log.exists() and sum('"round-finished"' in line for line in lines(log)) >= count:
            return
        try:
            code = server.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"the server ended with {code} before round {count}")
    raise AssertionError(f"round {count} was not over within {LIMIT:g} s")


def test_a_server_killed_in_a_round_resumes_with_nodes_that_lived_on(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "spafl")
    with ExitStack() as stack:
        for index in range(NODES):
            log = tmp_path / f"node-{index}.log"
            stack.enter_context(started(federation.join(index), log))
        with started(federation.serve(), tmp_path / "server.log") as server:
            until_rounds(1, federation.log, server)
            ended(server)
        with started(federation.serve(), tmp_path / "server.log") as server:
            assert server.wait(LIMIT) == 0, federation.told()
    assert lines(federation.log) == federation.wanted()


def test_a_node_killed_in_a_round_is_left_out_and_used_again(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", "--deadline", 90, "--rounds", 5, "--eval-every", 0)
    with ExitStack() as stack:
        server = stack.enter_context(started(federation.serve(), tmp_path / "server.log"))
        for index in range(1, NODES):
            log = tmp_path / f"node-{index}.log"
            stack.enter_context(started(federation.join(index), log))
        with started(federation.join(0), tmp_path / "node-0.log") as victim:
            until_rounds(1, federation.log, server)
            ended(victim)
        stack.enter_context(started(federation.join(0), tmp_path / "node-0.log"))
        assert server.wait(LIMIT) == 0, federation.told()
    log = engine.events.read(federation.log)
    rounds = [event for event in log if event["event"] == "round-finished"]
    failed = [event for event in log if event["event"] == "client-failed"]
    assert rounds[0]["clients"] == rounds[-1]["clients"] == [0, 1, 2, 3]
    assert failed and {event["client"] for event in failed} == {0}
    assert all(event["stage"] == "network" and event["reason"] for event in failed)


def test_strange_keys_strange_authorities_and_plain_text_are_refused(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    certs.make(own, ["127.0.0.1"], 1)
    certs.make(other, ["127.0.0.1"], 1)
    (tmp_path / "mixed").mkdir()
    for source, name in ((own, certs.CA), (other, "node-0")):
        (tmp_path / "mixed" / name).write_bytes((source / name).read_bytes())
    port, node_port = free_ports(2)
    link = commands.Link("127.0.0.1", port, own)
    (tmp_path / "home").mkdir()
    environment = commands.environment(tmp_path / "home")
    with _running(commands.superlink(link, tmp_path / "state.db"), environment) as process:
        _await(link, process)
        for name, security, told in (
            ("key", ["--certs", tmp_path / "mixed"], "Failed to activate SuperNode"),
            ("authority", ["--certs", other], "CERTIFICATE_VERIFY_FAILED"),
            ("plain", ["--insecure"], "disconnected without sending a response"),
        ):
            how = [*security, "--states", tmp_path / "states", "--port", node_port, "--wait", 0]
            words = gossamer("join", link.address, "--node", 0, "--nodes", 1, *how)
            log = tmp_path / f"{name}.log"
            with started(words, log) as node:
                assert node.wait(LIMIT) != 0
            assert "could not establish a connection to the SuperLink" in log.read_text()
            assert told in log.read_text()
