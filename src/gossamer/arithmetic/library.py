"""The compiled kernels: the best build for this processor, loaded once."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from gossamer.arithmetic.structs import CCall, CParam, CStep, CStored, CValue

FOLDER = Path(__file__).parent
BUILDS = ("avx512", "avx2", "plain")
"""From the fastest to the one that runs everywhere."""
RECORDS = (CValue, CStep, CParam, CCall, CStored)
"""Compared by size with those that the kernels were compiled with."""
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
        self.lists_fit = function("lists_fit", integer, pointer, pointer, integer)
        self.free_lists = function("free_lists", None, pointer)
        self.pack = function("pack", None, pointer, pointer, pointer)
        self.unpack = function("unpack", None, pointer, pointer, pointer)
        real = ctypes.c_double
        self.descend = function("descend", None, pointer, integer, real, real, real, integer)
        self.single = function(
            "single", pointer, pointer, integer, pointer, *[integer] * 3, pointer
        )
        self.free_single = function("free_single", None, pointer)
        self.single_memory = function("single_memory", pointer, pointer)
        self.free_single_memory = function("free_single_memory", None, pointer)
        self.run_single = function("run_single", None, pointer, pointer, pointer, integer, pointer)
        self.add = function("add", None, pointer, pointer, pointer, integer, real)
        self.square = function("square", real, pointer, pointer, integer)
        self.copy = function("copy", integer, pointer, integer, pointer)
        self.cut = function("cut", ctypes.c_float, pointer, integer, integer, integer)
        self.indices = function("indices", integer, pointer, integer, pointer)
        self.scale = function(
            "scale", integer, pointer, integer, integer, pointer, integer, *[pointer] * 3
        )
        self.turns = function("turns", pointer)
        self.free_turns = function("free_turns", None, pointer)
        self.take_turn = function("take_turn", None, pointer)
        self.end_turn = function("end_turn", None, pointer)
        call = ctypes.POINTER(CCall)
        self.run = function("run", integer, pointer, pointer, call, pointer)


@cache
def builds() -> tuple[str, ...]:
    """The builds that are installed and that this processor can run, the fastest first."""
    plain = FOLDER / "kernels_plain.so"
    if not plain.is_file():
        return ()
    c = ctypes.CDLL(str(plain))
    try:
        Library(plain, "plain")
        current = c.gossamer_sizes() == sum(map(ctypes.sizeof, RECORDS))
    except AttributeError:  # a function is missing
        current = False
    if not current:
        return ()
    possible = BUILDS[len(BUILDS) - 1 - c.gossamer_best_build() :]
    return tuple(build for build in possible if (FOLDER / f"kernels_{build}.so").is_file())


@cache
def library() -> Library | None:
    """The kernels for this processor, or None where they were not built; `missing` says why."""
    wanted = os.environ.get(VARIABLE, "")
    for build in builds():
        if wanted in ("", build):
            return Library(FOLDER / f"kernels_{build}.so", build)
    return None


def missing() -> str:
    """Why there are no kernels, in a sentence."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "off":
        return f"native arithmetic is switched off by {VARIABLE}=off"
    if builds():
        known = ", ".join(builds())
        return f"{VARIABLE}={wanted} names no build that runs here; there are {known}"
    if (FOLDER / "kernels_plain.so").is_file():
        return "native arithmetic was compiled from other sources; install the package again"
    return (
        "native arithmetic was not built, for want of a C++ compiler (C++20) at installation; "
        "sparse models train correctly, but no faster than dense ones"
    )
