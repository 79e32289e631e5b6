"""References to Python code in configurations: `my.py:build`, `package.module:build`.

A function or class that a file or an importable module defines can be named, so that another
process can build the same object again. An object that was made on the way cannot: a configuration
calls it `python:NAME`, and whoever reads that says how to go on.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path

PYTHON = "python"
"""Marks an object that only the program which made it has."""


def reference(member: object) -> str | None:
    """How another process finds a function or class; None if it cannot.

    >>> reference(Path)
    'pathlib:Path'
    >>> reference(lambda: 1) is None
    True
    """
    name, module = getattr(member, "__qualname__", ""), getattr(member, "__module__", None)
    if not name.isidentifier() or module is None:
        return None
    home = sys.modules.get(module)
    if home is None or getattr(home, name, None) is not member:
        return None
    own_file = module == "__main__" or module.startswith("gossamer_user_")
    if not own_file and _importable(module):
        return f"{module}:{name}"
    try:
        file = Path(inspect.getfile(member)).resolve()  # type: ignore[arg-type]
    except (TypeError, OSError):
        return None
    return f"{file}:{name}" if file.suffix == ".py" and file.is_file() else None


def _importable(module: str) -> bool:
    """Whether a module is part of an installed package, and so found from any folder."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None:
        return False
    installed = ("site-packages", "dist-packages")
    return any(part in installed for part in Path(spec.origin).parts) or (
        module.partition(".")[0] in sys.stdlib_module_names or module.startswith("gossamer.")
    )


def is_code(name: str) -> bool:
    """Whether a name refers to Python code: `my.py:make`, or `package.module:make`."""
    place, colon, member = name.partition(":")
    if not colon or not member.isidentifier():
        return False
    return place.endswith(".py") or ("." in place and all(map(str.isidentifier, place.split("."))))


def only_in_python(name: str) -> bool:
    """Whether a name stands for an object that cannot be built again."""
    return name.partition(":")[0] == PYTHON


def gone(what: str, name: str, argument: str) -> ValueError:
    """The error of building such an object again."""
    return ValueError(
        f"the {what} of this run, {name.partition(':')[2]}, was an object of the Python program "
        f"that started it, which no file defines; go on in Python: gs.resume(folder, "
        f"{argument}=...) continues the run, export.take(folder, parts=...) takes its model"
    )
