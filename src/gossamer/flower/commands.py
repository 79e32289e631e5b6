"""Flower's own commands with safe flags: TLS and authentication of nodes unless asked otherwise.

Every process has its own home directory, sends no telemetry and installs nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
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
    """The address of a SuperLink, and its certificates."""

    host: str
    port: int
    certificates: Path | None
    """A folder made by `gossamer flower certs`; None is no encryption and no authentication."""

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
            f'address = "{link.near}:{link.port}"',
            *lines,
            "",
        ]
    )


def superlink(link: Link, database: Path) -> list[str]:
    """Starts a SuperLink whose nodes and keys survive it."""
    command = [_program("flower-superlink"), "--host", link.host, "--port", str(link.port)]
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


def supernode(
    link: Link,
    index: int,
    count: int,
    states: Path,
    port: int,
    wait: float = 60.0,
    worker: Path | None = None,
    data: str = "",
) -> list[str]:
    """Starts a node for its share of the clients.

    Args:
        link: The SuperLink.
        index: The node's number.
        count: The number of nodes.
        states: The folder for what clients keep.
        port: The node's own, for its client processes.
        wait: Seconds without the SuperLink after which the node ends.
        worker: The socket of a warm worker.
        data: What the node's client trains on, where data are at the nodes only.
    """
    config = f'partition-id={index} num-partitions={count} state-dir="{states.resolve()}"'
    if worker is not None:
        config += f' warm-worker="{worker}"'
    if data:
        config += f' data="{data}"'
    command = [_program("flower-supernode"), "--superlink", link.address]
    command += ["--host", "127.0.0.1", "--port", str(port), "--node-config", config]
    command += ["--max-wait-time", f"{wait:g}"]
    if link.certificates is None:
        return [*command, "--insecure"]
    folder = link.certificates.resolve()
    return [
        *command,
        "--root-certificates",
        str(folder / certs.CA),
        "--auth-supernode-private-key",
        str(certs.node_key(folder, index)),
    ]


def run(project: Path, nodes: int = 0) -> list[str]:
    """Submits a project and follows its log.

    Args:
        project: The project's folder.
        nodes: Number of nodes with own keys; 0: keys are not checked.
    """
    command = [_program("flwr"), "run", str(project.resolve()), CONNECTION, "--stream"]
    return [*command, "--run-config", f"nodes={nodes}"] if nodes else command


def _program(name: str) -> str:
    """A program of the environment that this process runs in."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name
