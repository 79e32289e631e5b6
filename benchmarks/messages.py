"""Bytes on a node's socket beyond the messages that the ledger counts, in a deployment by Flower.

One SuperLink, one node, TLS; between them a relay counts what passes. Two runs of the same job
differ in their rounds alone, so that what a run costs once (the project, registration, schemas)
falls out of the difference. What an idle node sends is measured first and subtracted.
"""

import importlib.util
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from gossamer.cli import main
from gossamer.cli.flower_processes import await_link, free_port, register
from gossamer.engine import events
from gossamer.flower import certs, commands
from gossamer.flower.signing import sign

SHORT, LONG = 2, 6
IDLE = 30.0
"""Seconds for which an idle node is listened to."""
JOBS = {
    "fedavg": ["--model", "lenet5_caffe"],
    "spafl": ["--model", "lenet5_caffe"],
}


class Relay:
    """Passes connections on and counts bytes."""

    def __init__(self, port: int) -> None:
        self.count = 0
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            one = self._listening.accept()[0]
            other = socket.create_connection(("127.0.0.1", self._to))
            for pair in ((one, other), (other, one)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self.count += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:  # one side is gone, and so is the other
            source.close()
            target.close()


def measure() -> dict[str, object]:
    """Bytes of a message beside its body: our head, and all that Flower, HTTP and TLS add."""
    if importlib.util.find_spec("flwr") is None:
        return {"skipped": "flwr is missing: pip install 'gossamer[flower]'"}
    from gossamer.flower.front import Front, facing, public_keys

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "home").mkdir()
        certs.make(folder / "certs", ["127.0.0.1"], 1)
        link = commands.Link("127.0.0.1", free_port(), folder / "certs", free_port())
        projects = [_project(folder, job, rounds) for job in JOBS for rounds in (SHORT, LONG)]
        signatures = [sign(each, folder / "certs" / certs.OPERATOR) for each in projects]
        (folder / "home" / "config.toml").write_text(commands.configuration(link))
        environment = commands.environment(folder / "home")
        command = commands.superlink(link, folder / "home" / "state.db")
        log = (folder / "log").open("wb")
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        relay = Relay(link.port)
        words = ["join", f"127.0.0.1:{relay.port}", "--node", "0", "--nodes", "1"]
        words += ["--certs", str(folder / "certs"), "--states", str(folder / "states")]
        node = subprocess.Popen([sys.executable, "-m", "gossamer", *words], stdout=log, stderr=log)
        front = Front(link, public_keys(folder / "certs"), signatures)
        try:
            with facing(front, link):
                await_link(link, server)
                register(folder / "certs" / "node-0.pub", folder / "home", environment)
                idle = _idle(relay)
                found = {job: _job(folder, job, relay, environment, idle) for job in JOBS}
        finally:
            for process in (node, server):
                process.terminate()
                process.wait()
            log.close()
    return {"idle_bytes_per_second": round(idle, 1), **found}


def _idle(relay: Relay) -> float:
    """Bytes a second of a node that has nothing to do."""
    while not relay.count:
        time.sleep(0.1)
    time.sleep(10)
    start, before = time.monotonic(), relay.count
    time.sleep(IDLE)
    return (relay.count - before) / (time.monotonic() - start)


def _project(folder: Path, job: str, rounds: int) -> Path:
    project = folder / f"{job}-{rounds}"
    words = ["--method", job, "--data", "fmnist-mini", "--pool", "4", "--clients", "4"]
    words += [*JOBS[job], "--rounds", str(rounds), "--eval-every", "0"]
    assert main(["flower", "init", str(project), *words]) == 0
    return project


def _job(
    folder: Path, job: str, relay: Relay, environment: dict[str, str], idle: float
) -> dict[str, float]:
    totals = []
    for rounds in (SHORT, LONG):
        project = folder / f"{job}-{rounds}"
        start, before = time.monotonic(), relay.count
        subprocess.run(
            commands.run(project, 1), env=environment, check=True, stdout=subprocess.DEVNULL
        )
        passed = relay.count - before - idle * (time.monotonic() - start)
        log = events.read(project / "run" / "events.jsonl")
        assert log[-1]["event"] == "finished"
        lines = (project / "run" / "messages.jsonl").read_text().splitlines()
        tallies = [json.loads(line) for line in lines]
        sums = {key: sum(tally[key] for tally in tallies) for key in ("messages", "head", "body")}
        totals.append({**sums, "socket": passed})
    short, long = totals
    more = {key: long[key] - short[key] for key in short}
    count = more["messages"]
    return {
        "messages": count,
        "body": round(more["body"] / count, 1),
        "head": round(more["head"] / count, 1),
        "flower": round((more["socket"] - more["body"] - more["head"]) / count, 1),
    }
