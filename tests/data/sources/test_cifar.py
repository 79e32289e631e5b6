from __future__ import annotations

import pickle
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gossamer.core import Key
from gossamer.data import Labels, federation, load, parse
from gossamer.data.download import md5
from gossamer.data.sources.cifar import MD5, coarse_of, read_batch


@pytest.fixture(scope="module")
def hundred(packed: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The official test file of CIFAR-100, byte for byte."""
    content = packed.load("cifar100", "test")
    names = packed._text(f"{packed.ROOT}/cifar100/filenames.txt.xz").split("\n")[50_000:60_000]
    pixels = np.ascontiguousarray(content["x"].transpose(0, 3, 1, 2)).reshape(-1, 3072)
    path = tmp_path_factory.mktemp("cifar100") / "test"
    path.write_bytes(
        packed._Py2Pickle().dict(
            [
                ("filenames", names),
                ("batch_label", "testing batch 1 of 1"),
                ("fine_labels", content["y"].tolist()),
                ("coarse_labels", content["coarse"].tolist()),
                ("data", pixels),
            ]
        )
    )
    return path


def test_the_official_test_file_of_cifar100_is_read(hundred: Path) -> None:
    images, (fine, coarse) = read_batch(hundred, MD5["test"], "fine_labels", "coarse_labels")
    assert images.shape == (10_000, 32, 32, 3)
    assert np.bincount(fine).tolist() == [100] * 100
    table = coarse_of(fine, coarse)
    assert np.array_equal(table[fine], coarse)
    assert np.bincount(table).tolist() == [5] * 20


def test_pachinko_divides_real_cifar100_labels(hundred: Path, packed: ModuleType) -> None:
    _, (fine, coarse) = read_batch(hundred, None, "fine_labels", "coarse_labels")
    with np.load(f"{packed.ROOT}/cifar100/train-0.npz", allow_pickle=False) as shard:
        train = shard["y"].astype(np.int64)
    facts = Labels(train, fine, 100, None, coarse_of(fine, coarse))
    split = parse("pachinko")(facts, 100, Key(0), None)
    assert set(split.train.sizes.tolist()) == {100}
    assert np.array_equal(np.sort(split.train.rows), np.arange(10_000))


def test_pixels_are_in_the_right_place(tmp_path: Path) -> None:
    """Red, green and blue planes one after the other, not interleaved."""
    pixels = np.concatenate([np.full(1024, value, np.uint8) for value in (10, 20, 30)])[None]
    pixels[0, 5] = 99  # row 0, column 5, red
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": pixels, "labels": [3]}, 2))
    images, (labels,) = read_batch(path, None, "labels")
    assert images[0, 0, 5].tolist() == [99, 20, 30]
    assert images[0, 5, 0].tolist() == [10, 20, 30]
    assert labels.tolist() == [3]


def test_a_batch_without_labels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": np.zeros((1, 3072), np.uint8)}, 2))
    with pytest.raises(ValueError, match="lacks data or labels"):
        read_batch(path, None, "labels")


@pytest.mark.slow
def test_cifar10_is_read_from_the_official_files(
    cifar10: Path, packed: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSAMER_DATA", str(cifar10))
    things = load("cifar10")
    assert np.bincount(things.labels.train).tolist() == [5000] * 10
    assert np.bincount(things.labels.test).tolist() == [1000] * 10
    pixels = things.train[np.arange(50_000)]
    assert np.array_equal(things.test[np.arange(10_000)], packed.load("cifar10", "test")["x"])
    moments = pixels.reshape(-1, 3) / np.float32(255)
    assert np.allclose(moments.mean(0, dtype=np.float64), (0.4914, 0.4822, 0.4465), atol=1e-4)
    assert np.allclose(moments.std(0, dtype=np.float64), (0.2470, 0.2435, 0.2616), atol=1e-4)


def test_cifar100_comes_with_its_families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official layout with a few pictures and the checksums of those."""
    fine = list(range(100)) * 2
    for part in ("train", "test"):
        content = {
            "data": np.zeros((200, 3072), np.uint8),
            "fine_labels": fine,
            "coarse_labels": [label % 20 for label in fine],
        }
        path = tmp_path / "cifar-100-python" / part
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(content, 2))
        monkeypatch.setitem(MD5, part, md5(path))
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path))
    things = load("cifar100")
    assert things.labels.coarse is not None
    assert things.labels.coarse.tolist() == [label % 20 for label in range(100)]
    assert len(federation("cifar100", "pachinko", pool=20).pool) == 20
    monkeypatch.setitem(MD5, "train", "0" * 32)
    with pytest.raises(ValueError, match=r"train has md5 \w{32}, the official file has 0{32}"):
        load("cifar100")
