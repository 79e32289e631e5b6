"""What needs no PyTorch does not wait for it, and what is imported is not searched for garbage."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

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


def test_nobody_looks_for_garbage_in_what_a_command_imports() -> None:
    code = """
import gc, sys
from gossamer import cli
looked = []
gc.callbacks.append(lambda phase, info: looked.append(phase))
sys.argv = ["gossamer", "run", "nosuchmethod"]
cli.main()
print(len(looked) < 10, gc.get_freeze_count() > 100_000, gc.isenabled())
"""
    assert python(code).split() == ["True", "True", "True"]


def test_what_others_have_in_the_process_is_not_kept() -> None:
    code = """
import gc
from gossamer import cli
cli.main(["run", "nosuchmethod"])
print(gc.get_freeze_count())
"""
    assert python(code).split() == ["0"]


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with cli._frozen_imports(True):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_reader_that_has_enough_ends_the_command_without_a_traceback() -> None:
    for words in ("--help", "ls --all"):
        command = [sys.executable, "-m", "gossamer", *words.split()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdout is not None and running.stderr is not None
            running.stdout.close()  # before anything is written
            assert running.stderr.read() == b""
            assert running.wait() == 1


def test_ctrl_c_within_the_import_of_torch_is_an_interruption(tmp_path: Path) -> None:
    """As PyTorch's own import does, this one turns the interruption into another error."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("""
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    signal.sigtimedwait([signal.SIGUSR1], 5)
except KeyboardInterrupt:
    raise ImportError("initialisation failed") from None
""")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "gossamer", "run", "fedavg"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert (done.returncode, done.stderr) == (130, "gossamer: interrupted\n")
