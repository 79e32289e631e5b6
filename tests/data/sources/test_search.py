from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.data.sources import SOURCES
from gossamer.data.sources.search import cache, find, home


def fill(folder: Path, name: str) -> Path:
    for file in SOURCES[name].files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("fmnist", "fmnist"),
        ("fmnist", "FashionMNIST/raw"),
        ("fmnist", "fashion-mnist"),
        ("mnist", "MNIST/raw"),
        ("cifar10", "cifar10"),
        ("cifar10", "cifar-10-batches-py"),
        ("cifar10", "cifar10/cifar-10-batches-py"),
        ("cifar100", "cifar-100-python"),
        ("tiny-imagenet", "tiny-imagenet-200"),
        ("femnist", "leaf/data/femnist/data"),
        ("sst2", "SST-2"),
    ],
)
def test_common_layouts_are_found(
    name: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill(tmp_path / layout, name)
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path))
    assert find(SOURCES[name]) == folder


def test_the_users_folder_comes_before_the_systems_and_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = fill(cache() / "mnist", "mnist")
    assert find(SOURCES["mnist"]) == cached
    own = fill(tmp_path / "own" / "fmnist", "fmnist")
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path / "own"))
    assert find(SOURCES["fmnist"]) == own
    assert find(SOURCES["mnist"]) == cached
    assert home() == tmp_path / "own"


def test_a_folder_that_lacks_a_file_is_passed_over() -> None:
    folder = fill(cache() / "cifar10", "cifar10")
    assert find(SOURCES["cifar10"]) == folder
    (folder / "test_batch").unlink()
    assert find(SOURCES["cifar10"]) is None
