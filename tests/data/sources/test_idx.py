from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

from gossamer.data import load
from gossamer.data.download import md5
from gossamer.data.sources.idx import FILES, MNIST, read_idx, read_mnist


def test_fashion_mnist_has_its_known_sizes(fashion: Path) -> None:
    clothes = load("fmnist")
    assert np.bincount(clothes.labels.train).tolist() == [6000] * 10
    assert np.bincount(clothes.labels.test).tolist() == [1000] * 10
    assert clothes.train[np.arange(2)].shape == (2, 28, 28, 1)


def test_the_constants_of_fashion_mnist_are_its_moments(fashion: Path) -> None:
    pixels = load("fmnist").train[np.arange(60_000)] / np.float32(255)
    assert pixels.mean(dtype=np.float64) == pytest.approx(0.2860, abs=5e-5)
    assert pixels.std(dtype=np.float64) == pytest.approx(0.3530, abs=5e-5)


def test_mnist_is_read_from_the_official_files(
    official: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSAMER_DATA", str(official))
    digits = load("mnist")
    assert len(digits.train) == 60_000
    assert len(digits.test) == 10_000
    counts = np.bincount(digits.labels.train)
    assert counts.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_the_md5s_for_downloads_are_those_of_the_official_files(official: Path) -> None:
    folder = official / "MNIST" / "raw"
    assert [md5(folder / remote.name) for remote in MNIST.remotes] == [
        remote.md5 for remote in MNIST.remotes
    ]


def test_plain_files_will_do(official: Path, tmp_path: Path) -> None:
    for file in FILES:
        with gzip.open(official / "MNIST" / "raw" / file) as packed:
            (tmp_path / file.removesuffix(".gz")).write_bytes(packed.read())
    assert len(read_mnist(tmp_path).train) == 60_000


def test_another_set_in_the_same_format_is_refused(fashion: Path, tmp_path: Path) -> None:
    for file in FILES:
        shutil.copy(fashion / file, tmp_path / file)
    with pytest.raises(ValueError, match=r"the official mnist has .*`gossamer data get mnist`"):
        read_mnist(tmp_path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match="is not an IDX file"):
        read_idx(path)
    path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 5, 1, 2, 3]))
    with pytest.raises(ValueError, match=r"has 3 values where its header promises \[5\]"):
        read_idx(path)


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_damaged_archive_is_told_in_words(tmp_path: Path, how: str) -> None:
    whole = gzip.compress(b"\0\0\x08\x01\0\0\0\x40" + bytes(range(64)), mtime=0)
    path = tmp_path / FILES[1]
    path.write_bytes(whole[:-20] if how == "cut" else whole[:20] + b"\xff\xff" + whole[22:])
    with pytest.raises(ValueError, match=r"is damaged .*; download it again"):
        read_idx(path)
