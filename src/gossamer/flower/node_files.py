"""Checks every file of a node's folder against its checksum; changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from gossamer.engine.integrity import Finding, capsules, checked, others
from gossamer.flower.node_state import SCHEMAS, read_schema, read_state


def node_folders(folder: Path) -> list[Path]:
    """The folder itself if it is a node's, or the folders of nodes in it."""
    nodes = sorted(path for path in folder.glob("node-*") if path.is_dir())
    return nodes or ([folder] if _is_node(folder) else [])


def node_files(folder: Path) -> list[Finding]:
    """All files of a node: schemas, and what clients kept in each run."""
    found = [
        checked(path, "schema of messages", partial(read_schema, path))
        for path in sorted((folder / SCHEMAS).glob("*.json"))
    ]
    for run in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != SCHEMAS):
        found += _states(run)
        found += capsules(run, run.name)
    return [*found, *others(folder, (each.path for each in found))]


def _states(run: Path) -> Iterator[Finding]:
    clients = [path for path in run.iterdir() if path.name.isdecimal() and path.is_dir()]
    for client in sorted(clients, key=lambda path: int(path.name)):
        for path in sorted(client.glob("*.bin")):
            yield checked(path, f"state of client {client.name}", partial(read_state, path))


def _is_node(folder: Path) -> bool:
    return (folder / SCHEMAS).is_dir() or any(folder.glob("*/*/*.bin"))
