"""What needs no PyTorch does not wait for it, and what is imported is not searched for garbage."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

import gossamer
from gossamer import cli


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("words", [["--help"], ["--version"], []])
def test_help_comes_without_pytorch(words: list[str]) -> None:
    code = (
        f"from gossamer.cli import main; main({words}); import sys; print('torch' in sys.modules)"
    )
    assert python(code).splitlines()[-1] == "False"


def test_everything_public_comes_when_it_is_asked_for() -> None:
    code = "import gossamer as gs; print(gs.FedAvg.__name__, gs.data.federation.__name__)"
    assert python(code).split() == ["FedAvg", "federation"]
    code = "from gossamer import *; print(FedAvg.__name__, Task.__name__)"
    assert python(code).split() == ["FedAvg", "Task"]
    assert {"FedAvg", "Task", "__version__"} <= set(dir(gossamer))


def test_what_is_not_there_is_said_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'gossamer' has no attribute 'Fedavg'"):
        gossamer.Fedavg  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from gossamer import nothing  # type: ignore[attr-defined]  # noqa: F401


def test_what_a_command_imports_is_no_garbage_but_what_comes_later_may_be() -> None:
    code = """
import gc
from gossamer import cli
before = gc.get_freeze_count()
cli.main(["run", "nosuchmethod"])
print(before, gc.get_freeze_count() > 100_000, gc.isenabled())
"""
    assert python(code).split() == ["0", "True", "True"]


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with cli._kept(True):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
