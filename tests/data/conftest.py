"""Real data in their official formats, rebuilt from a shared folder where there is one.

The folder is `$GOSSAMER_SHARED`, or `shared` beside the repository.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from gossamer.data.sources import SOURCES
from gossamer.data.sources.search import find

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def nobodys_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests find what they put somewhere themselves, never what the user happens to have."""
    monkeypatch.delenv("GOSSAMER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of packed data sets."""
    folder = Path(os.environ.get("GOSSAMER_SHARED") or ROOT.parent / "shared") / "data"
    if not (folder / "fldata.py").exists():
        pytest.skip(f"no packed data sets in {folder}; set GOSSAMER_SHARED to the folder above it")
    return folder


@pytest.fixture(scope="session")
def packed(shared: Path) -> ModuleType:
    """The reader of the packed data sets, `fldata`."""
    spec = importlib.util.spec_from_file_location("fldata", shared / "fldata.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def official(packed: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all data sets, as GOSSAMER_DATA would name it; MNIST is in it."""
    folder = tmp_path_factory.mktemp("official")
    packed.export("mnist", str(folder))
    return folder


@pytest.fixture(scope="session")
def cifar10(packed: ModuleType, official: Path) -> Path:
    """As `official`, with CIFAR-10 in torchvision's layout."""
    packed.export("cifar10", str(official))
    return official


@pytest.fixture
def fashion() -> Path:
    """The Debian package of Fashion-MNIST."""
    folder = find(SOURCES["fmnist"])
    if folder is None:
        pytest.skip("no Fashion-MNIST; install the Debian package dataset-fashion-mnist")
    return folder
