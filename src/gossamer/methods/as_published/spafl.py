"""SpaFL as its authors' two released codes run it."""

from __future__ import annotations

from typing import Any

from gossamer.core import Method
from gossamer.methods.spafl import bytecode, release

ENTRIES: dict[str, Method[Any, Any, Any, Any, Any]] = {
    "spafl-iclr-bytecode": bytecode(),
    "spafl-neurips-release": release(),
}
