"""Every test computes with one torch thread, as every client does."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from gossamer.engine import workers

settings.register_profile(
    "gossamer",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("gossamer")

# Processes that tests start are to compute with one thread too.
os.environ["OMP_NUM_THREADS"] = "1"
# What is drawn on a terminal does not depend on the one that the tests are started from.
os.environ["TERM"] = "xterm-256color"
# Runs write through to the disk before they go on; in memory that costs nothing.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 6 * 2**30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def nobody_is_light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are to be tested, though clients of tests are so small that the engine needs none."""
    monkeypatch.setattr(workers, "LIGHT", 0.0)
