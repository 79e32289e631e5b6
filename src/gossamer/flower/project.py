"""A project that `flwr run` accepts: the configuration of a run, two small apps, and own files."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gossamer import fields
from gossamer.config import Config, absolute, absolute_paths
from gossamer.engine.checkpoint import write_atomically
from gossamer.engine.events import CONFIG
from gossamer.flower.server_transport import Patience
from gossamer.task.first_weights import KINDS

PACKAGE = "gossamer_app"
FLOWER = "1.41.0"
"""The version of Flower that projects are written for."""
COMPONENTS = {"serverapp": f"{PACKAGE}.server:app", "clientapp": f"{PACKAGE}.client:app"}
LONGEST = 32
"""Characters that Flower allows in the name of a project."""

_SERVER = '''"""The server; the run itself is described in config.toml."""

from pathlib import Path

from gossamer.config import read
from gossamer.flower.apps import server_app
from gossamer.flower.server import {function}

CONFIG = read(Path(__file__).with_name("config.toml"), shipped=True)
app = server_app(lambda: {function}(CONFIG), text=CONFIG.toml())
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
{components}

[tool.flwr.app.config]
{settings}
"""

OWN = "own_"
"""What the names of the operator's own files begin with, inside the app."""

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

    A method or model of the operator's own becomes part of the app, so that nodes have it too.

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
        ValueError: The run begins with weights of a file, which nodes would not have.
    """
    if config.experiment.start not in ("", *KINDS):
        raise ValueError(
            f"first weights of a file or a run do not travel to nodes, and `start=` is "
            f"{config.experiment.start!r}; load them in a function, `model=my.py:build`, which "
            f"does, from a path that every node has"
        )
    if (folder / "pyproject.toml").exists():
        raise FileExistsError(f"{folder} already holds a project; choose another folder")
    method = config.method.rpartition(":")[2]
    name = re.sub(r"[^a-z0-9]+", "-", f"gossamer-{method}".lower())[:LONGEST].strip("-")
    settings_text, shipped = _shipped(config)
    settings = {"out": str(out.resolve())}
    settings |= {fields.flag(item.name): item.default for item in fields.settings(patience)}
    files = {
        "pyproject.toml": _PROJECT.format(
            name=name,
            method=method,
            package=PACKAGE,
            flower=FLOWER,
            components="\n".join(f'{name} = "{place}"' for name, place in COMPONENTS.items()),
            settings="\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items()),
        ),
        "LICENSE": _LICENSE,
        ".gitignore": _IGNORED,
        **{f"{PACKAGE}/{name}": texts[-1 if own else 0] for name, texts in generated().items()},
        f"{PACKAGE}/{CONFIG}": settings_text,
        **{f"{PACKAGE}/{name}": content for name, content in shipped.items()},
    }
    (folder / PACKAGE).mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        write_atomically(folder / path, text.encode())
    return [folder / path for path in files]


def generated() -> dict[str, list[str]]:
    """The Python files of an app that are Gossamer's, by name: all texts that each can have."""
    client = Path(__file__).with_name("light_client.py").read_text(encoding="utf-8")
    return {
        "__init__.py": ['"""Gossamer on Flower."""\n'],
        "server.py": [_SERVER.format(function=name) for name in ("set_up", "at_server")],
        "client.py": [client],
    }


def own_files(folder: Path) -> list[Path]:
    """The files of the operator's own in a project."""
    return sorted((folder / PACKAGE).glob(f"{OWN}*.py"))


def _shipped(config: Config) -> tuple[str, dict[str, str]]:
    """The configuration with the names that own files have in the app, and these files."""
    text, files = config.toml(), dict[str, str]()
    references = (absolute(config.method), absolute_paths(config.experiment).model)
    places = [reference.partition(":")[0] for reference in references if ":" in reference]
    for place in dict.fromkeys(place for place in places if place.endswith(".py")):
        name = f"{OWN}{len(files)}_{Path(place).name}"
        files[name] = Path(place).read_text(encoding="utf-8")
        quoted = json.dumps(place, ensure_ascii=False)[:-1]
        text = text.replace(f"{quoted}:", f'"{name}:')
    return text, files
