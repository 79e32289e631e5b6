"""FLASH as its authors' released code runs it."""

from __future__ import annotations

from typing import Any

from gossamer.core import Method
from gossamer.methods.flash import Flash, code_parity, jmwst, pdst
from gossamer.methods.nst import NST
from gossamer.methods.nst import code_parity as nst_code

ENTRIES: dict[str, Method[Any, Any, Any, Any, Any]] = {
    "nst-code": nst_code(NST()),
    "pdst-code": code_parity(pdst()),
    "spdst-code": code_parity(Flash()),
    "jmwst-code": code_parity(jmwst()),
}
