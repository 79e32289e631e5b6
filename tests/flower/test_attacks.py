"""Attacks on a deployment with TLS and keys: by a stranger, by a node, and from the server itself.

All of them use Flower's own commands and clients, against real processes on loopback.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'gossamer[flower]'")

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from deployment import Federation, Run, project
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from gossamer.flower import certs, commands, journal
from gossamer.flower.project import PACKAGE
from gossamer.flower.signing import Signature, key_name, packed

CLIENT = """from pathlib import Path

Path({mark!r}).touch()
from flwr.clientapp import ClientApp

app = ClientApp()
"""
SERVER = """import time
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    (node,) = grid.get_node_ids()
    (sent,) = grid.push_messages([Message(RecordDict(), node, "query", ttl=300.0)])
    while not (received := list(grid.pull_messages([sent]))):
        time.sleep(0.2)
    Path({mark!r}).write_text(received[0].error.reason if received[0].has_error() else "it ran")
"""


def evil(folder: Path, marks: Path) -> Path:
    """An app that leaves a mark wherever it runs."""
    project(folder, "fedavg", "--rounds", 1)
    (folder / PACKAGE / "client.py").write_text(CLIENT.format(mark=str(marks / "node")))
    (folder / PACKAGE / "server.py").write_text(SERVER.format(mark=str(marks / "server")))
    return folder


def forged(app: Path, federation: Federation) -> Signature:
    """A signature in the operator's name by another key."""
    certs.make(federation.folder / "forger", [], 1)
    forger: object = load_ssh_private_key(
        (federation.folder / "forger/operator").read_bytes(), None
    )
    digest, now = hashlib.sha256(packed(app)), int(time.time())
    proof = forger.sign(create_message_to_sign(digest.digest(), now))  # type: ignore[attr-defined]
    text = base64.urlsafe_b64encode(proof).decode()
    name = key_name(federation.certs / certs.OPERATOR_PUBLIC)
    return Signature(digest.hexdigest(), name, now, text)


def flwr(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Flower's command, with a configuration of the caller's own."""
    program = str(Path(commands.run(home)[0]))
    return subprocess.run(
        [program, *map(str, words)],
        env=commands.environment(home),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def fleet(federation: Federation, key: Path) -> FleetHttpClient:
    """A node's own client, with some key."""
    private = load_ssh_private_key(key.read_bytes(), None)
    return FleetHttpClient.from_server_address(
        federation.link.address,
        False,
        (federation.certs / certs.CA).read_bytes(),
        [NodeAuthHttpInterceptor(private, private.public_key())],
    )


def test_strangers_hostile_nodes_and_hostile_servers_run_nothing(tmp_path: Path) -> None:
    honest = Run(project(tmp_path / "honest", "fedavg", "--rounds", 2, "--pool", 1, "--clients", 1))
    marks = tmp_path / "marks"
    marks.mkdir()
    app = evil(tmp_path / "evil", marks)
    federation = Federation(tmp_path / "federation", honest.folder, nodes=1)
    federation.signatures.append(forged(app, federation))
    federation.more = ["--trust", "none"]
    with federation:
        federation.submit(honest.folder)
        _stranger(federation, tmp_path / "stranger", app)
        federation.until(lambda: honest.rounds() > 0)
        _node(federation)
        federation.until(honest.over)
        _server(federation, app, marks)
        told = (federation.folder / "node-0.log").read_text()
        assert "refused an app: it is not signed by the operator" in told
        assert "round 2: client 0 trained on 10000 examples" in told
        notes = (federation.states / "node-0" / journal.FILE).read_text().splitlines()
        assert any(json.loads(line)["over"] for line in notes)
    assert honest.log == honest.undisturbed()[1]
    shared = [path for path in federation.states.rglob("*") if path.stat().st_mode & 0o077]
    assert not shared  # nobody else on the node's machine reads a state or a log


def _stranger(federation: Federation, home: Path, app: Path) -> None:
    """With `ca.crt` and Flower's commands: nobody registers, lists, runs or stops anything."""
    home.mkdir()
    own = replace(federation.link, inner=federation.link.port)
    (home / "config.toml").write_text(commands.configuration(own))
    certs.make(home / "keys", [], 1)
    for words in (
        ["supernode", "register", home / "keys" / "node-0.pub", commands.CONNECTION],
        ["supernode", "list", commands.CONNECTION],
        ["run", app, commands.CONNECTION],
        ["ls", commands.CONNECTION],
        ["stop", 1, commands.CONNECTION],
    ):
        done = flwr(home, *words)
        assert done.returncode != 0, words
        assert "404" in done.stdout + done.stderr, done.stdout + done.stderr
    with (
        fleet(federation, home / "keys" / "node-0") as client,
        pytest.raises(httpx.HTTPStatusError, match="401"),
    ):
        client.PullMessages(PullMessagesRequest(node=Node(node_id=1)))


def _node(federation: Federation) -> None:
    """With the key of a node: it is not another node."""
    with (
        fleet(federation, federation.certs / "node-0") as client,
        pytest.raises(httpx.HTTPStatusError, match="401"),
    ):
        client.PullMessages(PullMessagesRequest(node=Node(node_id=1)))


def _server(federation: Federation, app: Path, marks: Path) -> None:
    """On the server's own machine, with Control and a forged signature: no node runs the app."""
    federation.submit(app)
    federation.until((marks / "server").exists, 120)
    assert (marks / "server").read_text() == "The FAB could not be verified."
    assert not (marks / "node").exists()
