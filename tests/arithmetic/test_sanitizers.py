"""The kernels under the sanitizers for addresses and undefined behaviour."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from arithmetic_cases import NETS, net

import gossamer.arithmetic
from gossamer.arithmetic.memory import c_steps, places
from gossamer.arithmetic.steps import chain_of
from gossamer.arithmetic.structs import CStep, CValue

HERE = Path(__file__).parent
SOURCES = Path(gossamer.arithmetic.__file__).parent / "native"
FLAGS = ["-std=c++20", "-O0", "-march=native", "-ffp-contract=off", "-Wno-psabi"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def test_kernels_stay_within_memory_and_have_no_undefined_behaviour(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    (tmp_path / "empty.cpp").write_text("int main() { return 0; }")
    empty = [compiler, *SANITIZE, str(tmp_path / "empty.cpp"), "-o", str(tmp_path / "empty")]
    if subprocess.run(empty, capture_output=True, check=False).returncode:
        pytest.skip("the compiler has no sanitizers")
    driver, plans = tmp_path / "driver", tmp_path / "plans"
    command = [compiler, *FLAGS, *SANITIZE, f"-I{SOURCES}", str(HERE / "sanitized.cpp")]
    subprocess.run([*command, "-o", str(driver)], check=True)
    plans.write_bytes(b"".join(_plan(name) for name in NETS))
    done = subprocess.run([driver, plans], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{len(NETS) * 5 * (6 * 2 + 2)} runs\n"


def _plan(name: str) -> bytes:
    """A model as `Model::read` of sanitized.cpp wants it."""
    task = net(name)
    layout = task.layout
    chain = chain_of(task.module, layout)
    names = (*layout.parameters, *layout.buffers)
    where = places(chain)
    steps = c_steps(chain, {each: number for number, each in enumerate(names)})
    counts = [layout[each].count for each in names]
    header = [len(steps), len(where.values), chain.input, chain.output, where.floats]
    integers = ctypes.c_int64
    return b"".join(
        (
            bytes((integers * 7)(*header, len(names), len(layout.parameters))),
            bytes((CStep * len(steps))(*steps)),
            bytes((CValue * len(where.values))(*where.values)),
            bytes((integers * len(counts))(*counts)),
        )
    )
