"""A SuperNode that runs Gossamer's own code and the files that its owner has trusted by hash.

An app that the operator signed may hold code of the operator's own: a method or a model in a Python
file. `gossamer join --trust FILE-HASH` lets such a file run only if it is the one that was looked
at. The check takes place where the SuperNode verifies the operator's signature, before anything of
the app is unpacked.
"""

from __future__ import annotations

import hashlib
import io
import logging
import sys
import tomllib
import zipfile
from collections.abc import Collection
from typing import Any

from gossamer.engine.events import CONFIG
from gossamer.flower.project import COMPONENTS, OWN, PACKAGE, generated
from gossamer.methods import METHODS
from gossamer.models import MODELS

PLAIN = {"pyproject.toml", "LICENSE", ".info/CONTENT", f"{PACKAGE}/{CONFIG}"}
"""Files of an app that are no code."""


def objection(app: bytes, hashes: Collection[str]) -> str:
    """Why an app holds code that is neither Gossamer's nor trusted; empty if it does not.

    Args:
        app: The packed app.
        hashes: SHA-256 of trusted files.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(app)) as file:
            names = file.namelist()
            files = {name: file.read(name) for name in names}
        config = tomllib.loads(files[f"{PACKAGE}/{CONFIG}"].decode())
        told = tomllib.loads(files["pyproject.toml"].decode())["tool"]["flwr"]["app"]["components"]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as damage:
        return f"it is not an app of Gossamer's ({damage})"
    if len(names) != len(files):
        return "it has two files of one name"
    if told != COMPONENTS:
        return f"its parts are {told}, not those of Gossamer's apps"
    ours = {f"{PACKAGE}/{name}": texts for name, texts in generated().items()}
    own = set()
    for name, content in files.items():
        folder, _, file_name = name.rpartition("/")
        if name in PLAIN or content.decode(errors="replace") in ours.get(name, ()):
            continue
        digest = hashlib.sha256(content).hexdigest()
        if folder != PACKAGE or not file_name.startswith(OWN) or digest not in hashes:
            return f"{name} (SHA-256 {digest}) is neither Gossamer's nor trusted"
        own.add(file_name)
    return _reference(config, own)


def _reference(config: dict[str, Any], own: Collection[str]) -> str:
    """Why a configuration refers to code that is neither Gossamer's nor in the app."""
    experiment = config.get("experiment", {})
    model = str(experiment.get("model", "")) if isinstance(experiment, dict) else "?"
    for name, known in ((str(config.get("method")), METHODS), (model, MODELS)):
        place = name.partition(":")[0]
        if name and place not in known and place not in own:
            return f"{name!r} is neither a method or model of Gossamer's nor in a trusted file"
    return ""


def main() -> None:
    """`python -m gossamer.flower.trust HASHES ...`: `flower-supernode ...` with this check."""
    from flwr.supercore.fab import Fab
    from flwr.supernode import start_client_internal as supernode
    from flwr.supernode.cli.flower_supernode import flower_supernode

    hashes = sys.argv.pop(1).split(",")
    signed = supernode._verify_fab

    def verified(fab: Fab, trusted_entities: dict[str, str]) -> bool:
        reason = objection(fab.content, hashes)
        if reason:
            logging.getLogger("flwr").error("FAB verification failed: %s", reason)
        return not reason and bool(signed(fab, trusted_entities))

    supernode._verify_fab = verified
    flower_supernode()


if __name__ == "__main__":
    main()
