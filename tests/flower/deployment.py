"""Federations of real processes on loopback: one SuperLink and four nodes, for one run or many."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loopback import simulated

from gossamer.cli import main
from gossamer.cli.flower_processes import await_link, register
from gossamer.config import read
from gossamer.engine import Summary
from gossamer.engine.checkpoint import newest
from gossamer.engine.events import CONFIG
from gossamer.engine.store import Store
from gossamer.flower import certs, commands
from gossamer.flower.front import Front, facing, public_keys
from gossamer.flower.node_state import NodeState
from gossamer.flower.project import PACKAGE
from gossamer.flower.server import set_up
from gossamer.flower.signing import sign
from gossamer.methods import METHODS
from gossamer.wire import record_types
from helpers import lines

NODES = 4
LIMIT = 900.0
SMALL = ["--data", "fmnist-mini", "--model", "mlp:hidden=16"]


def gossamer(*words: object) -> list[str]:
    return [sys.executable, "-m", "gossamer", *map(str, words)]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def started(
    command: list[str], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process in a group of its own, with all that it will start."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=file, start_new_session=True, env=environment
        )


def ended(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and all that it started, at once."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the test."""
    process = started(command, log)
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


def project(folder: Path, method: str, *more: object) -> Path:
    """Writes a project for the four nodes, with four clients a round."""
    known = ["--clients", 4] if hasattr(METHODS[method], "clients") else []
    words = ["--method", method, *SMALL, "--pool", NODES, *known, *more]
    assert main(["flower", "init", str(folder), *map(str, words)]) == 0
    return folder


class Run:
    """A project's run: what it is to be, and what it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.setup = set_up(read(folder / PACKAGE / CONFIG))
        self.out = folder / "run"

    @property
    def log(self) -> list[str]:
        path = self.out / "events.jsonl"
        return lines(path) if path.exists() else []

    def rounds(self) -> int:
        return sum('"round-finished"' in line for line in self.log)

    def over(self) -> bool:
        return any('"finished"' in line for line in self.log)

    def undisturbed(self) -> tuple[Summary, list[str]]:
        """What the engine makes of it in this process."""
        out = self.folder / "threads"
        return simulated(self.setup, out), lines(out / "events.jsonl")

    def states(self, nodes: Path) -> dict[int, bytes | None]:
        """What clients hold, of that which the server takes them to hold."""
        found = newest(self.out / "rounds")
        assert found is not None
        store = Store(self.out / "rounds", record_types(self.setup.method))
        store.rollback(found.progress.round)
        (name,) = {path.name for path in nodes.glob(f"node-*/{self.setup.name}-*")}
        return {
            client: NodeState(nodes / f"node-{client % NODES}").get(
                name, client, (store.raw(client) or b"").decode()
            )
            for client in store.clients()
        }


class Federation:
    """A SuperLink with TLS behind its front, and four nodes that it knows; some apps are signed.

    What is killed can be started again.
    """

    def __init__(self, folder: Path, *apps: Path, nodes: int = NODES) -> None:
        self.folder, self.states = folder, folder / "states"
        self.certs, self.home = folder / "certs", folder / "home"
        self.home.mkdir(parents=True)
        certs.make(self.certs, ["127.0.0.1"], nodes)
        self.signatures = [sign(app, self.certs / certs.OPERATOR) for app in apps]
        port, inner, *self.ports = free_ports(2 + nodes)
        self.link = commands.Link("127.0.0.1", port, self.certs, inner)
        (self.home / "config.toml").write_text(commands.configuration(self.link))
        self.environment = commands.environment(self.home)
        self.server: subprocess.Popen[bytes] | None = None
        self.front = ExitStack()
        self.more: list[str] = []  # options of the nodes
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.runs: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Federation:
        try:
            for index in range(len(self.ports)):
                self.join(index)
            self.serve()
            for key in sorted(self.certs.glob("node-*.pub")):
                register(key, self.home, self.environment)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        for process in (*self.runs, *self.nodes.values(), self.server):
            if process is not None:
                ended(process)
        self.front.close()

    def serve(self) -> None:
        command = commands.superlink(self.link, self.home / "state.db")
        self.server = started(command, self.folder / "server.log", self.environment)
        front = Front(self.link, public_keys(self.certs), self.signatures)
        self.front.enter_context(facing(front, self.link))
        await_link(self.link, self.server)

    def join(self, index: int) -> None:
        how = ["--certs", self.certs, "--states", self.states, "--port", self.ports[index]]
        words = [
            "join",
            self.link.address,
            "--node",
            index,
            "--nodes",
            len(self.ports),
            *how,
            *self.more,
        ]
        self.nodes[index] = started(gossamer(*words), self.folder / f"node-{index}.log")

    def submit(self, folder: Path) -> None:
        log = self.folder / "runs.log"
        self.runs.append(started(commands.run(folder, len(self.ports)), log, self.environment))

    def kill_server(self) -> None:
        """With the runs that it carries."""
        assert self.server is not None
        ended(self.server)
        self.front.close()
        for process in self.runs:
            ended(process)
        self.runs.clear()

    def kill_node(self, index: int) -> None:
        ended(self.nodes[index])

    def until(self, what: Callable[[], bool], seconds: float = LIMIT) -> None:
        """Waits; an error shows what everybody said."""
        deadline = time.monotonic() + seconds
        while not what():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:g} s\n{self.told()}")
            time.sleep(0.1)

    def told(self) -> str:
        texts = [path.read_text()[-3000:] for path in sorted(self.folder.glob("*.log"))]
        return "\n".join(texts)
