"""The builds of the kernels for different processors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from arithmetic_cases import KERNELS

from gossamer import Params
from gossamer.arithmetic import library
from gossamer.arithmetic.library import VARIABLE, builds
from helpers import same

pytestmark = KERNELS
HERE = Path(__file__).parent
Trained = Callable[[str], dict[str, Params]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Models that a build has trained, by name."""

    @cache
    def models(build: str) -> dict[str, Params]:
        if build not in builds():
            pytest.skip(f"this processor or installation has no {build}")
        path = tmp_path_factory.mktemp(build) / "models.pt"
        paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, VARIABLE: build, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, str(HERE / "trained.py"), build, str(path)]
        subprocess.run(command, env=environment, check=True)
        return torch.load(path)

    return models


def test_avx512_and_avx2_have_the_same_bits(trained: Trained) -> None:
    left, right = trained("avx512"), trained("avx2")
    assert [name for name in left if not same(left[name], right[name])] == []


def test_the_plain_build_agrees_with_the_best(trained: Trained) -> None:
    left, right = trained(builds()[0]), trained("plain")
    for name in left:
        for leaf, tensor in left[name].items():
            assert torch.allclose(tensor, right[name][leaf], atol=2e-3, rtol=2e-3), (name, leaf)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("off", "native arithmetic is switched off by GOSSAMER_NATIVE=off"),
        ("avx1024", "GOSSAMER_NATIVE=avx1024 names no build that runs here; there are"),
    ],
)
def test_a_variable_switches_the_kernels_off(value: str, reason: str) -> None:
    code = (
        "from gossamer.arithmetic.library import library, missing\n"
        "print('none' if library() is None else 'kernels', missing())"
    )
    environment = {**os.environ, VARIABLE: value}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"none {reason}")


def test_kernels_without_a_function_of_today_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = tmp_path / "old.c"
    source.write_text("int gossamer_sizes(void) { return 0; }\n")
    made = tmp_path / "kernels_plain.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    assert library.builds.__wrapped__() == ()
