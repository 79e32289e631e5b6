"""CIFAR-10 and CIFAR-100 as their authors publish them: Python pickles, proved by md5."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Bytes, Images, Ints
from gossamer.data.sources.pickles import read_pickle
from gossamer.data.sources.source import Remote, Source

MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


def read_batch(path: Path, md5: str | None, *label_names: str) -> tuple[Bytes, list[Ints]]:
    """Images as (rows, 32, 32, 3) and one array of labels for every name asked for."""
    content = read_pickle(path, md5)
    pixels = content.get("data")
    labels = [content.get(name) for name in label_names]
    if not isinstance(pixels, np.ndarray) or not all(isinstance(y, list) for y in labels):
        raise ValueError(f"{path} lacks data or {' or '.join(label_names)}; download it again")
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), [np.asarray(y, np.int64) for y in labels]


def read_cifar10(folder: Path) -> Arrays:
    """Ten kinds of things, 32 x 32 in colour."""
    parts = [read_batch(folder / name, MD5[name], "labels") for name in BATCHES]
    test, (test_labels,) = read_batch(folder / "test_batch", MD5["test_batch"], "labels")
    train = np.concatenate([images for images, _ in parts])
    labels = Labels(np.concatenate([labels[0] for _, labels in parts]), test_labels, 10)
    kind = Images((32, 32, 3), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), flips=True)
    return Arrays("cifar10", kind, train, test, labels)


def coarse_of(fine: Ints, coarse: Ints, classes: int = 100) -> Ints:
    """The coarse class of every fine class, read from labelled examples."""
    table = np.zeros(classes, np.int64)
    table[fine] = coarse
    return table


def read_cifar100(folder: Path) -> Arrays:
    """A hundred kinds of things in twenty families, 32 x 32 in colour."""
    names = ("fine_labels", "coarse_labels")
    train, (fine, coarse) = read_batch(folder / "train", MD5["train"], *names)
    test, (test_fine, _) = read_batch(folder / "test", MD5["test"], *names)
    labels = Labels(fine, test_fine, 100, coarse=coarse_of(fine, coarse))
    kind = Images((32, 32, 3), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), flips=True)
    return Arrays("cifar100", kind, train, test, labels)


CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    classes=10,
    train=50_000,
    test=10_000,
    shape=(3, 32, 32),
    licence="none stated; cite Krizhevsky 2009",
    read=read_cifar10,
    files=(*BATCHES, "test_batch"),
    folders=("cifar10/cifar-10-batches-py", "cifar-10-batches-py"),
    remotes=(
        Remote(
            "cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
            unpack=True,
        ),
    ),
)

CIFAR100 = Source(
    name="cifar100",
    title="CIFAR-100",
    classes=100,
    train=50_000,
    test=10_000,
    shape=(3, 32, 32),
    licence="none stated; cite Krizhevsky 2009",
    read=read_cifar100,
    files=("train", "test"),
    folders=("cifar100/cifar-100-python", "cifar-100-python"),
    remotes=(
        Remote(
            "cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
            unpack=True,
        ),
    ),
)
