"""The compiled kernels: the best build for this processor, loaded once."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from gossamer.arithmetic.structs import CCall

FOLDER = Path(__file__).parent
BUILDS = ("avx512", "avx2", "plain")
"""From the fastest to the one that runs everywhere."""
VARIABLE = "GOSSAMER_NATIVE"
"""Environment variable that names a build, or says `off`."""


class Library:
    """The functions of `native/gossamer.cpp`."""

    def __init__(self, path: Path, build: str) -> None:
        self.path = path
        self.build = build
        self.fuses = build != "plain"
        """Whether multiplications and additions are rounded once, as torch does there."""
        c = ctypes.CDLL(str(path))
        pointer, integer = ctypes.c_void_p, ctypes.c_int64

        def function(name: str, result: type | None, *arguments: type) -> ctypes._NamedFuncPointer:
            each: ctypes._NamedFuncPointer = getattr(c, f"gossamer_{name}")
            each.restype, each.argtypes = result, arguments
            return each

        self.plan = function("plan", pointer, pointer, integer, pointer, *[integer] * 4)
        self.free_plan = function("free_plan", None, pointer)
        self.workspace = function("workspace", pointer)
        self.workspace_bytes = function("workspace_bytes", integer, pointer)
        self.free_workspace = function("free_workspace", None, pointer)
        self.lists = function("lists", pointer, pointer, integer, pointer)
        self.lists_count = function("lists_count", integer, pointer)
        self.free_lists = function("free_lists", None, pointer)
        self.pack = function("pack", None, pointer, pointer, pointer)
        self.unpack = function("unpack", None, pointer, pointer, pointer)
        real = ctypes.c_double
        self.descend = function("descend", None, pointer, integer, real, real, real, integer)
        self.add = function("add", None, pointer, pointer, integer, real)
        self.run = function("run", integer, pointer, pointer, ctypes.POINTER(CCall))


@cache
def library() -> Library | None:
    """The kernels for this processor, or None where they were not built; `missing` says why."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "off":
        return None
    plain = FOLDER / "kernels_plain.so"
    if not plain.is_file():
        return None
    best = ctypes.CDLL(str(plain)).gossamer_best_build()
    for build in BUILDS[2 - best :] if not wanted else (wanted,):
        path = FOLDER / f"kernels_{build}.so"
        if path.is_file():
            return Library(path, build)
    return None


def missing() -> str:
    """Why there are no kernels, in a sentence."""
    if os.environ.get(VARIABLE) == "off":
        return f"native arithmetic is switched off by {VARIABLE}=off"
    return (
        "native arithmetic was not built, for want of a C++ compiler (C++20) at installation; "
        "sparse models train correctly, but no faster than dense ones"
    )
