"""FedDST as its authors' released code runs it."""

from __future__ import annotations

from typing import Any

from gossamer.core import Method
from gossamer.methods.feddst import FedDST, code_parity

ENTRIES: dict[str, Method[Any, Any, Any, Any, Any]] = {
    "feddst-code": code_parity(FedDST()),
}
