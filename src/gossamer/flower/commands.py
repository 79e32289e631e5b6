"""Flower's own commands with safe flags: TLS and authentication of nodes unless asked otherwise.

Every process has its own home directory, sends no telemetry and installs nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gossamer.flower import certs

CONNECTION = "gossamer"
"""The name of the connection to the SuperLink in Flower's configuration."""

CLOSED = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Environment for a closed network: nothing is reported, checked or installed.

Nor does Ray hide accelerators from actors that asked for none, as it will not in the future.
"""


@dataclass(frozen=True)
class Link:
    """The address at which nodes reach a server, and its certificates."""

    host: str
    port: int
    certificates: Path | None
    """A folder made by `gossamer flower certs`; None is no encryption and no authentication."""
    inner: int = 0
    """At the server: the port of the SuperLink itself, on 127.0.0.1, behind the front."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def near(self) -> str:
        """The host by which the server itself reaches it, even if it listens on all addresses."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's processes."""
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home.resolve()),
        **CLOSED,
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "OMP_NUM_THREADS": "1",
    }


def configuration(link: Link) -> str:
    """Flower's `config.toml`, by which `flwr` finds the SuperLink."""
    how: Mapping[str, object] = {"insecure": True}
    if link.certificates is not None:
        how = {"root-certificates": str((link.certificates / certs.CA).resolve())}
    lines = [f"{name} = {json.dumps(value)}" for name, value in how.items()]
    return "\n".join(
        [
            "[superlink]",
            f'default = "{CONNECTION}"',
            "",
            f"[superlink.{CONNECTION}]",
            f'address = "127.0.0.1:{link.inner}"',
            *lines,
            "",
        ]
    )


def superlink(link: Link, database: Path) -> list[str]:
    """Starts a SuperLink that only this machine reaches; its nodes and keys survive it."""
    command = [_program("flower-superlink"), "--host", "127.0.0.1", "--port", str(link.inner)]
    command += ["--database", str(database.resolve())]
    command.append("--disable-runtime-dependency-installation")
    if link.certificates is None:
        return [*command, "--insecure"]
    folder = link.certificates.resolve()
    return [
        *command,
        "--ssl-ca-certfile",
        str(folder / certs.CA),
        "--ssl-certfile",
        str(folder / certs.SERVER),
        "--ssl-keyfile",
        str(folder / certs.SERVER_KEY),
        "--enable-supernode-auth",
    ]


def register(public: Path) -> list[str]:
    """Registers the key of a node."""
    key = str(public.resolve())
    return [_program("flwr"), "supernode", "register", key, CONNECTION, "--name", public.stem]


@dataclass(frozen=True)
class Member:
    """A node: its share of the clients, and what is its own."""

    index: int
    count: int
    """The number of nodes."""
    states: Path
    """The folder for what clients keep."""
    port: int
    """The node's own, for its client processes."""
    wait: float = 60.0
    """Seconds without the server after which the node ends."""
    worker: Path | None = None
    """The socket of a warm worker."""
    data: str = ""
    """What the node's client trains on, where data are at the nodes only."""
    trusted: Path | None = None
    """A file with the keys whose apps the node runs; None: it runs any."""

    def config(self) -> str:
        """Flower's node-config."""
        config = f"partition-id={self.index} num-partitions={self.count} "
        config += f'state-dir="{self.states.resolve()}"'
        if self.worker is not None:
            config += f' warm-worker="{self.worker}"'
        return config + (f' data="{self.data}"' if self.data else "")


def supernode(link: Link, member: Member, hashes: Sequence[str] = ()) -> list[str]:
    """Starts a node.

    Args:
        link: Where the server is.
        member: The node.
        hashes: Of the files that the node runs besides Gossamer's own; none: it does not ask.
    """
    program = [_program("flower-supernode")]
    if hashes:
        program = [sys.executable, "-m", "gossamer.flower.trust", ",".join(hashes)]
    command = [*program, "--superlink", link.address, "--host", "127.0.0.1"]
    command += ["--port", str(member.port), "--node-config", member.config()]
    command += ["--max-wait-time", f"{member.wait:g}"]
    if member.trusted is not None:
        command += ["--trusted-entities", str(member.trusted)]
    if link.certificates is None:
        return [*command, "--insecure"]
    folder = link.certificates.resolve()
    return [
        *command,
        "--root-certificates",
        str(folder / certs.CA),
        "--auth-supernode-private-key",
        str(certs.node_key(folder, member.index)),
    ]


def build(project: Path) -> list[str]:
    """Packs a project into a file in the working folder."""
    return [_program("flwr"), "build", "--app", str(project.resolve())]


def run(project: Path, nodes: int = 0, out: Path | None = None) -> list[str]:
    """Submits a project and follows its log.

    Args:
        project: The project's folder.
        nodes: Number of nodes with own keys; 0: keys are not checked.
        out: The folder of the run; None: that which the project names.
    """
    command = [_program("flwr"), "run", str(project.resolve()), CONNECTION, "--stream"]
    settings = [f"nodes={nodes}"] if nodes else []
    settings += [f"out={json.dumps(str(out.resolve()))}"] if out else []
    return [*command, "--run-config", " ".join(settings)] if settings else command


def _program(name: str) -> str:
    """A program of the environment that this process runs in."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name
