"""A project that `flwr run` accepts: the configuration of a run, and two small apps."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gossamer import fields
from gossamer.config import Config
from gossamer.engine.checkpoint import write_atomically
from gossamer.engine.events import CONFIG
from gossamer.flower.server_transport import Patience

PACKAGE = "gossamer_app"
FLOWER = "1.41.0"
"""The version of Flower that projects are written for."""
LONGEST = 32
"""Characters that Flower allows in the name of a project."""

_SERVER = '''"""The server; the run itself is described in config.toml."""

from pathlib import Path

from gossamer.config import read
from gossamer.flower.apps import server_app
from gossamer.flower.server import {function}

CONFIG = Path(__file__).with_name("config.toml")
app = server_app(lambda: {function}(read(CONFIG)), text=CONFIG.read_text(encoding="utf-8"))
'''

_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{method} by Gossamer"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>={flower},<2"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "gossamer"
fab-format-version = 1
fab-include = ["/LICENSE", "/{package}/*.py", "/{package}/*.toml"]
flwr-version-target = "{flower}"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]
{settings}
"""

_IGNORED = """# What a server keeps here is nothing for nodes, nor for a repository.
/.flower/
/certs/
/run/
"""

_LICENSE = """SPDX-License-Identifier: Apache-2.0

Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0
"""


def write(
    folder: Path, config: Config, out: Path, patience: Patience = Patience(), own: bool = False
) -> list[Path]:
    """Writes a project; an existing one is never overwritten.

    Args:
        folder: The project's folder.
        config: The run's configuration.
        out: The folder of the run, at the server.
        patience: How long the server waits, and for how many.
        own: Whether nodes have data of their own.

    Returns:
        The files written.

    Raises:
        FileExistsError: The folder holds a project already.
    """
    if (folder / "pyproject.toml").exists():
        raise FileExistsError(f"{folder} already holds a project; choose another folder")
    method = config.method.rpartition(":")[2]
    name = re.sub(r"[^a-z0-9]+", "-", f"gossamer-{method}".lower())[:LONGEST].strip("-")
    settings = {"out": str(out.resolve())}
    settings |= {fields.flag(item.name): item.default for item in fields.settings(patience)}
    files = {
        "pyproject.toml": _PROJECT.format(
            name=name,
            method=method,
            package=PACKAGE,
            flower=FLOWER,
            settings="\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items()),
        ),
        "LICENSE": _LICENSE,
        ".gitignore": _IGNORED,
        f"{PACKAGE}/__init__.py": '"""Gossamer on Flower."""\n',
        f"{PACKAGE}/server.py": _SERVER.format(function="at_server" if own else "set_up"),
        f"{PACKAGE}/client.py": Path(__file__)
        .with_name("light_client.py")
        .read_text(encoding="utf-8"),
        f"{PACKAGE}/{CONFIG}": config.toml(),
    }
    (folder / PACKAGE).mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        write_atomically(folder / path, text.encode())
    return [folder / path for path in files]
