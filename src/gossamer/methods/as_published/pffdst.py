"""PFFDST as its authors' released code runs it."""

from __future__ import annotations

from typing import Any

from gossamer.core import Method
from gossamer.methods.pffdst import PFFDST, code_parity, released

ENTRIES: dict[str, Method[Any, Any, Any, Any, Any]] = {
    "pffdst-code": code_parity(PFFDST()),
    "pffdst-release": released(),
}
