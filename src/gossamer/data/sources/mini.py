"""The embedded slice of Fashion-MNIST: real images that need no download.

The first 1,000 training and 200 test images of each class, sorted by class, so that labels need no
room. `tools/make_fmnist_mini.py` makes the file from the official ones.
"""

from __future__ import annotations

import hashlib
import lzma
from pathlib import Path

import numpy as np

from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Bytes
from gossamer.data.sources.idx import FMNIST_IMAGES
from gossamer.data.sources.source import Source
from gossamer.data.sources.unpacked import unpacked

FILE = Path(__file__).parent.parent / "embedded" / "fmnist-mini.xz"
TRAIN, TEST = 1_000, 200
"""Images of each class."""
SHA256 = "28f18b801ea088981350ccec4e88d2d5a6bd303ee86c624887dbcfdb9f49cd6e"
"""Of the decoded bytes."""


def choose(images: Bytes, labels: Bytes, each: int) -> Bytes:
    """The first `each` images of every class, class after class."""
    rows = np.concatenate([np.flatnonzero(labels == label)[:each] for label in range(10)])
    return np.take(images, rows, axis=0)


def encode(images: Bytes) -> bytes:
    """Plain xz; predicting pixels from their neighbours first was measured to be larger."""
    settings = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}
    return lzma.compress(images.tobytes(), filters=[settings])


def read_mini(folder: Path) -> Arrays:
    """10,000 + 2,000 images, in about half a second the first time."""
    for anew in (False, True):
        content = unpacked(folder / FILE.name, lzma.decompress, SHA256, anew=anew)
        if hashlib.sha256(content).hexdigest() == SHA256:
            break
    else:
        raise ValueError(f"{folder / FILE.name} is damaged; install gossamer again")
    images = np.frombuffer(content, np.uint8).reshape(-1, 28, 28, 1)
    labels = Labels(np.repeat(np.arange(10), TRAIN), np.repeat(np.arange(10), TEST), 10)
    train = 10 * TRAIN
    return Arrays("fmnist-mini", FMNIST_IMAGES, images[:train], images[train:], labels)


FMNIST_MINI = Source(
    name="fmnist-mini",
    title="Fashion-MNIST, one sixth, embedded",
    classes=10,
    train=10 * TRAIN,
    test=10 * TEST,
    shape=(1, 28, 28),
    licence="MIT",
    read=read_mini,
    files=(FILE.name,),
    embedded=True,
)
